/* y = x W^T for few rows x, where a row's bits do not depend on how many rows there are.
 *
 * Knows no models and no caches. Every output is summed in one order, whatever shares the call: the inputs are taken
 * STEP at a time by LANES partial sums in float32, which are added up at the end. Weights [outputs, inputs] are read
 * once, as they stand, for up to MOST_ROWS rows: a tile of rows x outputs keeps its sums in registers (16 on AVX2), and
 * fetches the weights that follow, those of the next tile or further on, while it multiplies its own, in the order in
 * which they stand: so memory is read as one stream, which what fetches ahead by itself follows. More rows meet a block of
 * outputs in several strips, of which only the first would wait for memory: so each fetches its part of the next block.
 *
 * bfloat16 is the upper half of a float32. A word holds two of them, so a step of 2 x LANES numbers is LANES words, of
 * which a shift gives the even and a mask the odd ones, one half of the step after the other; x is laid out to match.
 * Where the processor adds both products of such a word to a sum by itself (AVX512 with BF16), words stay as they are.
 *
 * Many rows take as long as multiplying takes: one core of the first AVX2 processors of AMD multiplies 8 pairs a cycle,
 * later ones 16, and 32 of bfloat16 with AVX512. They do so only if every sum stays in a register of its own, which
 * compilers are told below: of 16 registers, 6 rows x 2 outputs take 12 for sums, 2 for weights, one for x and one for
 * the mask; AVX512 has 32. So each height of tile is a function of its own, of constant sizes. What ends a tile is done
 * for four sums at once, and rounded for a whole block of outputs.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"

#define FOUR(a, b, c, d, more) (a) + (more), (b) + (more), (c) + (more), (d) + (more)
#ifdef __AVX512F__
enum { LANES = 16 };
#define IN_EACH_FOUR(a, b, c, d) ((places){FOUR(a, b, c, d, 0), FOUR(a, b, c, d, 4), FOUR(a, b, c, d, 8), FOUR(a, b, c, d, 12)})
#else
enum { LANES = 8 };
#define IN_EACH_FOUR(a, b, c, d) ((places){FOUR(a, b, c, d, 0), FOUR(a, b, c, d, 4)})
#endif
enum { STEP = 2 * LANES, MOST_ROWS = 6, MOST_OUTPUTS = 8, BLOCK_OUTPUTS = 48, CACHE_LINE = 64, LEAST_AHEAD = 16384 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float four_floats __attribute__((vector_size(16)));
typedef int32_t places __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

#define UNROLLED _Pragma("GCC unroll 16")
/* The first cache is full of x and the weights at hand. */
#define TO_SECOND_CACHE(pointer) __builtin_prefetch(pointer, 0, 2)
/* Compilers read a vector from memory again for each use of it; this forbids it. */
#define READ_AGAIN(pointer) __asm__("" : "+r"(pointer))

typedef struct {
    const char *x; /* of each row `line` bytes: its inputs, rounded up to STEP and filled with 0, as weights are taken */
    const char *weight;
    char *y;
    long rows, inputs, outputs, line;
} Product;

/* The rows from `row` on, the strip number `strip` of `strips`, against the outputs from..until. */
typedef struct {
    long row, strip, strips, from, until;
} Part;

INLINED int in_words(const int narrow) { return narrow && WHOLE_WORDS; }

/* A step of bfloat16. */
INLINED floats whole_of(const char *step) {
    floats words_as_they_are;
    return *(floats *)memcpy(&words_as_they_are, step, sizeof words_as_they_are);
}

/* The first or the second half of a step of weights. */
INLINED floats half_of(const char *step, const int half, const int narrow) {
    words pairs;
    if (!narrow) return *(floats *)memcpy(&pairs, step + half * sizeof pairs, sizeof pairs);
    memcpy(&pairs, step, sizeof pairs);
    return (floats)(half ? pairs & 0xffff0000u : pairs << 16);
}

/* The sums of four vectors, each in the order in which any would be summed alone: first within every four lanes of all. */
INLINED four_floats totals(const floats *lanes) {
    floats pairs[2];
    UNROLLED for (int i = 0; i < 2; i++) {
        const floats a = lanes[2 * i], b = lanes[2 * i + 1];
        pairs[i] = __builtin_shuffle(a, b, IN_EACH_FOUR(0, LANES, 1, LANES + 1)) +
                   __builtin_shuffle(a, b, IN_EACH_FOUR(2, LANES + 2, 3, LANES + 3));
    }
    const floats fours = __builtin_shuffle(pairs[0], pairs[1], IN_EACH_FOUR(0, 1, LANES, LANES + 1)) +
                         __builtin_shuffle(pairs[0], pairs[1], IN_EACH_FOUR(2, 3, LANES + 2, LANES + 3));
    four_floats parts[LANES / 4];
    memcpy(parts, &fours, sizeof parts);
    UNROLLED for (int half = LANES / 8; half > 0; half /= 2)
        UNROLLED for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* bfloat16 takes the nearest, the even one of two equally near. */
INLINED uint16_t as_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* sums += x w for one step of each; weights of an output stand `line` bytes behind those of the one before. */
INLINED void add(floats sums[MOST_ROWS][MOST_OUTPUTS], const char *x, long x_line, const char *weight, long line, const int rows,
                 const int outputs, const int narrow) {
    const int words = in_words(narrow);
    for (int half = 0; half < 2 - words; half++) {
        floats weights[MOST_OUTPUTS];
        UNROLLED for (int o = 0; o < outputs; o++) {
            weights[o] = words ? whole_of(weight + o * line) : half_of(weight + o * line, half, narrow);
            IN_REGISTER(weights[o]);
        }
        READ_AGAIN(weight);
        UNROLLED for (int r = 0; r < rows; r++) {
            floats across = *(const floats *)(x + r * x_line + half * sizeof(floats));
            IN_REGISTER(across);
            UNROLLED for (int o = 0; o < outputs; o++) {
                if (words)
                    ADD_PAIRS(sums[r][o], across, weights[o]);
                else
                    ADD_PRODUCT(sums[r][o], across, weights[o]);
            }
        }
    }
}

/* How far behind a tile of `size` bytes the weights stand that it fetches. */
INLINED long ahead(const Part *part, long tile, long size, long of_block) {
    if (part->strips > 1 && tile % part->strips == part->strip) return of_block;
    return size < LEAST_AHEAD ? LEAST_AHEAD : size;
}

/* Sums to y [rows, BLOCK_OUTPUTS]. `rows` and `outputs` are constants wherever this is inlined, so that its loops unroll. */
INLINED void tile(const Product *p, const Part *part, long output, float *y, const int rows, const int outputs, const int narrow) {
    const long size = narrow ? 2 : 4, line = p->inputs * size, whole = p->inputs / STEP * STEP;
    const int stride = STEP * size < CACHE_LINE ? CACHE_LINE / size : STEP;
    const long x_size = in_words(narrow) ? 2 : 4;
    const char *weight = p->weight + output * line, *x = p->x + part->row * p->line;
    const char *next = weight + ahead(part, (output - part->from) / outputs, outputs * line, BLOCK_OUTPUTS * line);
    floats sums[MOST_ROWS][MOST_OUTPUTS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] = (floats){0};
    long at = 0;
    for (; at + stride <= whole; at += stride) {
        UNROLLED for (int o = 0; o < outputs; o++)
            UNROLLED for (int ahead = 0; ahead < stride * size; ahead += CACHE_LINE)
                TO_SECOND_CACHE(next + (at * outputs + o * stride) * size + ahead);
        UNROLLED for (int step = 0; step < stride; step += STEP)
            add(sums, x + (at + step) * x_size, p->line, weight + (at + step) * size, line, rows, outputs, narrow);
    }
    for (; at < whole; at += STEP) add(sums, x + at * x_size, p->line, weight + at * size, line, rows, outputs, narrow);
    if (at < p->inputs) {
        char rest[MOST_OUTPUTS][STEP * sizeof(float)] = {0};
        UNROLLED for (int o = 0; o < outputs; o++) memcpy(rest[o], weight + o * line + at * size, (p->inputs - at) * size);
        add(sums, x + at * x_size, p->line, rest[0], sizeof rest[0], rows, outputs, narrow);
    }
    UNROLLED for (int i = 0; i < rows * outputs; i += 4) {
        floats four[4];
        UNROLLED for (int j = 0; j < 4; j++)
            four[j] = i + j < rows * outputs ? sums[(i + j) / outputs][(i + j) % outputs] : (floats){0};
        const four_floats sum = totals(four);
        for (int j = 0; j < 4 && i + j < rows * outputs; j++) y[(i + j) / outputs * BLOCK_OUTPUTS + (i + j) % outputs] = sum[j];
    }
}

/* y [rows, BLOCK_OUTPUTS] to where it belongs. */
INLINED void store(const Product *p, const Part *part, const float *y, const int rows, const int narrow) {
    const long count = part->until - part->from;
    for (int r = 0; r < rows; r++, y += BLOCK_OUTPUTS) {
        const long first = (part->row + r) * p->outputs + part->from;
        if (narrow)
            for (long i = 0; i < count; i++) ((uint16_t *)p->y)[first + i] = as_bfloat16(y[i]);
        else
            memcpy((float *)p->y + first, y, count * sizeof *y);
    }
}

/* `rows` rows against BLOCK_OUTPUTS outputs at most, `outputs` of them at a time: a sum waits for the one before it, so
 * that enough of them must be under way, and for few rows it takes more outputs. */
#define STRIP(name, rows, outputs, narrow)                                                                     \
    static __attribute__((noinline)) void name(const Product *p, const Part *part) {                           \
        const long from = part->from, until = part->until;                                                     \
        float y[rows * BLOCK_OUTPUTS];                                                                         \
        long at = from;                                                                                        \
        for (; at + outputs <= until; at += outputs) tile(p, part, at, y + at - from, rows, outputs, narrow); \
        for (; at < until; at++) tile(p, part, at, y + at - from, rows, 1, narrow);                           \
        store(p, part, y, rows, narrow);                                                                       \
    }
#ifdef __AVX512F__
#define STRIPS(type, narrow)      \
    STRIP(type##_1, 1, 8, narrow) \
    STRIP(type##_2, 2, 8, narrow) \
    STRIP(type##_3, 3, 6, narrow) \
    STRIP(type##_4, 4, 4, narrow) \
    STRIP(type##_5, 5, 4, narrow) \
    STRIP(type##_6, 6, 4, narrow) \
    static const Strip type[MOST_ROWS] = {type##_1, type##_2, type##_3, type##_4, type##_5, type##_6};
#else
#define STRIPS(type, narrow)      \
    STRIP(type##_1, 1, 8, narrow) \
    STRIP(type##_2, 2, 4, narrow) \
    STRIP(type##_3, 3, 3, narrow) \
    STRIP(type##_4, 4, 2, narrow) \
    STRIP(type##_5, 5, 2, narrow) \
    STRIP(type##_6, 6, 2, narrow) \
    static const Strip type[MOST_ROWS] = {type##_1, type##_2, type##_3, type##_4, type##_5, type##_6};
#endif

typedef void (*Strip)(const Product *p, const Part *part);
STRIPS(float32, 0)
STRIPS(bfloat16, 1)

/* The rows of x one behind the other, as `Product` has them. */
INLINED void lay_out(const char *x, char *to, const Product *p, const int narrow) {
    const long size = narrow ? 2 : 4;
    for (long r = 0; r < p->rows; r++, x += p->inputs * size)
        for (long at = 0; at < p->inputs; at += STEP) {
            char rest[STEP * sizeof(float)] = {0};
            const long left = p->inputs - at;
            const char *step = left < STEP ? memcpy(rest, x + at * size, left * size) : x + at * size;
            for (int half = 0; half < 2 - in_words(narrow); half++, to += sizeof(floats)) {
                const floats next = in_words(narrow) ? whole_of(step) : half_of(step, half, narrow);
                memcpy(to, &next, sizeof next);
            }
        }
}

/* Whether rows stand as `Product` has them before anything is done: whole steps that no half is taken from. */
INLINED int are_laid_out(const void *x, long inputs, const int narrow) {
    return (!narrow || WHOLE_WORDS) && inputs % STEP == 0 && (uintptr_t)x % sizeof(floats) == 0;
}

/* All rows, in strips of nearly equal height, against the outputs from..until. */
static void block(const Product *p, const Strip *of_height, long from, long until) {
    Part part = {0, 0, (p->rows + MOST_ROWS - 1) / MOST_ROWS, from, until};
    for (long height; part.row < p->rows; part.row += height, part.strip++) {
        const long left = part.strips - part.strip;
        height = (p->rows - part.row + left - 1) / left;
        of_height[height - 1](p, &part);
    }
}

INLINED int product(const void *x, Product p, int threads, const int narrow) {
    p.line = (p.inputs + STEP - 1) / STEP * (2 - in_words(narrow)) * sizeof(floats);
    char *rows = 0;
    p.x = x;
    if (!are_laid_out(x, p.inputs, narrow)) {
        rows = aligned_alloc(CACHE_LINE, (p.rows * p.line + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
        if (!rows) return 0;
        lay_out(x, rows, &p, narrow);
        p.x = rows;
    }
#pragma omp parallel for num_threads(threads)
    for (long from = 0; from < p.outputs; from += BLOCK_OUTPUTS)
        block(&p, narrow ? bfloat16 : float32, from, from + BLOCK_OUTPUTS < p.outputs ? from + BLOCK_OUTPUTS : p.outputs);
    free(rows);
    return 1;
}

/* x [rows, inputs], weight [outputs, inputs], y [rows, outputs], each without gaps; 0 where memory does not suffice. */
int product_float32(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int threads) {
    return product(x, (Product){0, weight, y, rows, inputs, outputs, 0}, threads, 0);
}

int product_bfloat16(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int threads) {
    return product(x, (Product){0, weight, y, rows, inputs, outputs, 0}, threads, 1);
}
