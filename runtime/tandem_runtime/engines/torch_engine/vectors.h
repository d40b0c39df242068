/* Vectors of LANES numbers for `between.c`: how float32 and bfloat16 (the upper half of a float32) come in and go out, and
 * what is computed from one or two of them.
 *
 * Knows no rows and no heads. All arithmetic is float32, and every sum across a vector is taken in one order. Compilers
 * know the vectors; a line of assembly stands where they would take several operations for one of the processor's.
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "operations.h"

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
enum { COLUMNS = 2 * LANES };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef float four_floats __attribute__((vector_size(16)));

#define UNROLLED _Pragma("GCC unroll 8")
#define ALL(number) ((number) - (floats){0})
/* Compilers make three operations of a comparison and a choice where processors have one. */
#ifdef __AVX__
#define CHOOSE(name, to, x, limit) __asm__(name " %2, %1, %0" : "=v"(to) : "v"(limit), "v"(x))
#endif

INLINED long size_of(const int narrow) { return narrow ? 2 : 4; }

INLINED floats chosen(integers where, floats yes, floats no) {
    return (floats)((where & (integers)yes) | (~where & (integers)no));
}

/* To the nearest bfloat16, the even one of two equally near. */
INLINED words as_bfloat16(floats value) {
#ifdef __AVX512BF16__
    halves upper;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(upper) : "v"(value));
    return __builtin_convertvector(upper, words);
#else
    const words bits = (words)value, nan = (words)(value != value);
    return (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) & ~nan) | (0x7fc0 & nan);
#endif
}

INLINED floats rounded(floats value, const int narrow) { return narrow ? (floats)(as_bfloat16(value) << 16) : value; }

INLINED floats load_lanes(const char *from, const int narrow) {
    floats value;
    halves upper;
    if (!narrow) return *(floats *)memcpy(&value, from, sizeof value);
    memcpy(&upper, from, sizeof upper);
    return (floats)(__builtin_convertvector(upper, words) << 16);
}

INLINED void store_lanes(char *to, floats value, const int narrow) {
    const halves upper = __builtin_convertvector(as_bfloat16(value), halves);
    if (narrow)
        memcpy(to, &upper, sizeof upper);
    else
        memcpy(to, &value, sizeof value);
}

/* The number `at` of a row of `length` and those behind it. */
INLINED floats load(const char *row, long at, long length, const int narrow) {
    const long size = size_of(narrow);
    if (at + LANES <= length) return load_lanes(row + at * size, narrow);
    char rest[sizeof(floats)] = {0};
    return load_lanes(memcpy(rest, row + at * size, (length - at) * size), narrow);
}

INLINED void store(char *row, long at, long length, floats value, const int narrow) {
    const long size = size_of(narrow);
    if (at + LANES <= length) {
        store_lanes(row + at * size, value, narrow);
        return;
    }
    char rest[sizeof(floats)];
    store_lanes(rest, value, narrow);
    memcpy(row + at * size, rest, (length - at) * size);
}

/* COLUMNS numbers: the first half and the second, but of bfloat16 the even and the odd ones, which a shift and a mask give
 * where to spread them would take shuffles. */
typedef struct {
    floats half[COLUMNS / LANES];
} Columns;

INLINED Columns load_columns(const char *from, const int narrow) {
    Columns columns;
    words pairs;
    if (!narrow) return *(Columns *)memcpy(&columns, from, sizeof columns);
    memcpy(&pairs, from, sizeof pairs);
    return (Columns){{(floats)(pairs << 16), (floats)(pairs & 0xffff0000u)}};
}

/* The numbers `at` .. at + COLUMNS - 1 of a row of `length`. */
INLINED Columns columns_at(const char *row, long at, long length, const int narrow) {
    const long size = size_of(narrow);
    if (at + COLUMNS <= length) return load_columns(row + at * size, narrow);
    char rest[sizeof(Columns)] = {0};
    return load_columns(memcpy(rest, row + at * size, (length - at) * size), narrow);
}

INLINED void put_columns(char *row, long at, long length, Columns columns, const int narrow) {
    const long size = size_of(narrow), count = length - at < COLUMNS ? length - at : COLUMNS;
    if (narrow) columns.half[0] = (floats)(as_bfloat16(columns.half[0]) | as_bfloat16(columns.half[1]) << 16);
    if (count == COLUMNS)
        memcpy(row + at * size, &columns, COLUMNS * size);
    else
        memcpy(row + at * size, &columns, count * size);
}

INLINED float total(floats lanes) {
    four_floats parts[LANES / 4];
    memcpy(parts, &lanes, sizeof parts);
    UNROLLED for (int half = LANES / 8; half > 0; half /= 2)
        UNROLLED for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

INLINED float greatest(floats lanes) {
    float each[LANES];
    memcpy(each, &lanes, sizeof each);
    UNROLLED for (int half = LANES / 2; half > 0; half /= 2)
        UNROLLED for (int i = 0; i < half; i++) each[i] = each[i + half] > each[i] ? each[i + half] : each[i];
    return each[0];
}

/* Each number of x, or `limit` where that is greater (less); NaN stays. */
INLINED floats at_least(floats x, floats limit) {
#ifdef CHOOSE
    CHOOSE("vmaxps", x, x, limit);
    return x;
#else
    return chosen(limit > x, limit, x);
#endif
}

INLINED floats at_most(floats x, floats limit) {
#ifdef CHOOSE
    CHOOSE("vminps", x, x, limit);
    return x;
#else
    return chosen(limit < x, limit, x);
#endif
}

INLINED floats sum_and_product(float sum, floats a, floats b) {
    floats all = ALL(sum);
    ADD_PRODUCT(all, a, b);
    return all;
}

/* e^x within 2 units of the last place (Cephes' polynomial on r = x - n ln 2) for x of -86 .. 88, and that of the nearer
 * end for others: what is beyond counts for nothing beside the 1 that is in every sum here. NaN of NaN. */
INLINED floats exponential(floats x) {
    const float magic = 12582912.0f; /* 1.5 x 2^23: what is added to it is rounded to a whole number, in its last bits */
    x = at_most(at_least(x, ALL(-86.0f)), ALL(88.0f));
    const floats shifted = sum_and_product(magic, x, ALL(1.44269504f)), n = shifted - magic;
    floats r = x;
    ADD_PRODUCT(r, n, ALL(-0.693359375f));
    ADD_PRODUCT(r, n, ALL(2.12194440e-4f));
    floats p = sum_and_product(1.3981999507e-3f, ALL(1.9875691500e-4f), r);
    p = sum_and_product(8.3334519073e-3f, p, r);
    p = sum_and_product(4.1665795894e-2f, p, r);
    p = sum_and_product(1.6666665459e-1f, p, r);
    p = sum_and_product(5.0000001201e-1f, p, r);
    floats value = r + 1.0f;
    ADD_PRODUCT(value, p, r * r);
    return value * (floats)(((words)shifted << 23) + 0x3f800000u);
}

INLINED float inverse_length(floats squares, long length, float epsilon) {
    return 1.0f / sqrtf(total(squares) / length + epsilon);
}
