/* y = x W^T for few rows x and weights of 8 or 4 bits, where a row's bits do not depend on how many rows there are.
 *
 * Knows no models and no caches. To turn each weight into a float would take longer than to read it. So x becomes
 * whole numbers instead, once: in each block of 64 inputs c of 16 bits and a float32 scale t, x = t c, which rounds by
 * less than bfloat16 does. Products of whole numbers are exact and go by pairs; a group's sum of them is then scaled
 * and added in float32, in one order per output: LANES partial sums, added up at the end.
 *
 * A row of weights is a run of bytes, its inputs filled to whole blocks with weight 0 (`quantised.py` writes them):
 *   8 bits: the codes q, then a float32 scale s; w = s q.
 *   4 bits: blocks of 16 words of 16 bits, input 16 j + lane in the bits from 4 j on of word `lane`, as n; for each group
 *           of 32 inputs a bfloat16 scale s; likewise an offset m, filled with 0 to whole LANES of groups; w = s n + m.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "operations.h"

enum { LANES = 8, WORDS = 16, BLOCK = 64, PARTS = BLOCK / WORDS, GROUPS = 2, GROUP = BLOCK / GROUPS };
enum { MOST_ROWS = 6, MOST_OUTPUTS = 2, BLOCK_OUTPUTS = 48, LARGEST = 32767, AHEAD = 16384, CACHE_LINE = 64 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float half_floats __attribute__((vector_size(2 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int16_t shorts __attribute__((vector_size(2 * WORDS)));
typedef uint16_t nibbles __attribute__((vector_size(2 * WORDS)));
typedef int8_t bytes __attribute__((vector_size(WORDS)));

#define UNROLLED _Pragma("GCC unroll 8")
/* What will be read, in the order in which it stands. */
#define TO_SECOND_CACHE(pointer) __builtin_prefetch(pointer, 0, 2)

typedef struct {
    int16_t *codes;      /* [rows, blocks, BLOCK]: x as whole numbers */
    float *scales;       /* [rows, blocks] */
    float *sums;         /* [rows, groups]: of x in each group */
    const char *weight;  /* [outputs, line bytes] */
    char *y;
    long rows, inputs, outputs, blocks, groups, line; /* groups: filled to whole LANES */
    int narrow;          /* x and y are bfloat16 */
} Product;

INLINED float total(floats lanes) {
    half_floats low, high;
    memcpy(&low, &lanes, sizeof low);
    memcpy(&high, (const char *)&lanes + sizeof low, sizeof high);
    low += high;
    return (low[0] + low[2]) + (low[1] + low[3]);
}

INLINED float widened(uint16_t upper) {
    const uint32_t bits = (uint32_t)upper << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bfloat16 takes the nearest, the even one of two equally near. */
INLINED void store(const Product *p, long at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t upper = value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    if (p->narrow)
        memcpy(p->y + at * sizeof upper, &upper, sizeof upper);
    else
        memcpy(p->y + at * sizeof bits, &bits, sizeof bits);
}

/* a0 b0 + a1 b1, a2 b2 + a3 b3, ... */
INLINED integers by_pairs(shorts a, shorts b) {
#ifdef __AVX2__
    return (integers)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    const integers c = (integers)a, d = (integers)b;
    return (c >> 16) * (d >> 16) + (c << 16 >> 16) * (d << 16 >> 16);
#endif
}

INLINED shorts widened_bytes(const char *from) {
#ifdef __AVX2__
    return (shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
#else
    bytes codes;
    memcpy(&codes, from, sizeof codes);
    return __builtin_convertvector(codes, shorts);
#endif
}

/* That of a block of x, in all lanes. */
INLINED floats scale_of(const Product *p, long row, long block) { return p->scales[row * p->blocks + block] - (floats){0}; }

/* `rows` and `outputs` are constants wherever these are inlined, so that loops unroll and sums are registers. */
INLINED void sum_8(const Product *p, long row, const char *weight, floats sums[MOST_ROWS][MOST_OUTPUTS], const int rows,
                   const int outputs) {
    for (long block = 0; block < p->blocks; block++)
        UNROLLED for (int o = 0; o < outputs; o++) {
            const char *here = weight + o * p->line + block * BLOCK;
            integers dots[MOST_ROWS];
            UNROLLED for (int r = 0; r < rows; r++) dots[r] = (integers){0};
            UNROLLED for (int j = 0; j < PARTS; j++) {
                const shorts wide = widened_bytes(here + j * WORDS);
                UNROLLED for (int r = 0; r < rows; r++) {
                    const int16_t *x = p->codes + ((row + r) * p->blocks + block) * BLOCK + j * WORDS;
                    dots[r] += by_pairs(*(const shorts *)x, wide);
                }
            }
            UNROLLED for (int r = 0; r < rows; r++)
                ADD_PRODUCT(sums[r][o], __builtin_convertvector(dots[r], floats), scale_of(p, row + r, block));
        }
    UNROLLED for (int o = 0; o < outputs; o++) {
        float scale;
        memcpy(&scale, weight + (o + 1) * p->line - sizeof scale, sizeof scale);
        UNROLLED for (int r = 0; r < rows; r++) sums[r][o] *= scale;
    }
}

INLINED void sum_4(const Product *p, long row, const char *weight, floats sums[MOST_ROWS][MOST_OUTPUTS], const int rows,
                   const int outputs) {
    const char *scales = weight + p->blocks * sizeof(nibbles);
    const char *offsets = scales + p->blocks * GROUPS * sizeof(uint16_t);
    for (long block = 0; block < p->blocks; block++)
        UNROLLED for (int o = 0; o < outputs; o++) {
            nibbles codes;
            memcpy(&codes, weight + o * p->line + block * sizeof codes, sizeof codes);
            uint32_t pair;
            memcpy(&pair, scales + o * p->line + block * sizeof pair, sizeof pair);
            const words both = (words){0} + pair;
            const floats first = (floats)(both << 16), second = (floats)(both & 0xffff0000u);
            const shorts a = (shorts)(codes & 15), b = (shorts)(codes >> 4 & 15);
            const shorts c = (shorts)(codes >> 8 & 15), d = (shorts)(codes >> 12);
            UNROLLED for (int r = 0; r < rows; r++) {
                const shorts *x = (const shorts *)(p->codes + ((row + r) * p->blocks + block) * BLOCK);
                const floats low = __builtin_convertvector(by_pairs(x[0], a) + by_pairs(x[1], b), floats);
                const floats high = __builtin_convertvector(by_pairs(x[2], c) + by_pairs(x[3], d), floats);
                floats sum = low * first;
                ADD_PRODUCT(sum, high, second);
                ADD_PRODUCT(sums[r][o], sum, scale_of(p, row + r, block));
            }
        }
    for (long group = 0; group < p->groups; group += LANES)
        UNROLLED for (int o = 0; o < outputs; o++) {
            halves upper;
            memcpy(&upper, offsets + o * p->line + group * sizeof(uint16_t), sizeof upper);
            const floats offset = (floats)(__builtin_convertvector(upper, words) << 16);
            UNROLLED for (int r = 0; r < rows; r++)
                ADD_PRODUCT(sums[r][o], *(const floats *)(p->sums + (row + r) * p->groups + group), offset);
        }
}

INLINED void tile(const Product *p, long row, long output, const int rows, const int outputs, const int bits) {
    floats sums[MOST_ROWS][MOST_OUTPUTS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] = (floats){0};
    const char *weight = p->weight + output * p->line;
    for (long at = 0; at < outputs * p->line; at += CACHE_LINE) TO_SECOND_CACHE(weight + AHEAD + at);
    if (bits == 8)
        sum_8(p, row, weight, sums, rows, outputs);
    else
        sum_4(p, row, weight, sums, rows, outputs);
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++) store(p, (row + r) * p->outputs + output + o, total(sums[r][o]));
}

INLINED void strip(const Product *p, long row, long from, long until, const int rows, const int outputs, const int bits) {
    for (; from + outputs <= until; from += outputs) tile(p, row, from, rows, outputs, bits);
    for (; from < until; from++) tile(p, row, from, rows, 1, bits);
}

/* All rows, in strips of nearly equal height, against the outputs from..until. */
INLINED void block(const Product *p, long from, long until, const int bits) {
    for (long row = 0, height; row < p->rows; row += height) {
        const long left = p->rows - row, strips = (left + MOST_ROWS - 1) / MOST_ROWS;
        height = (left + strips - 1) / strips;
        switch (height) {
        case 1: strip(p, row, from, until, 1, 2, bits); break;
        case 2: strip(p, row, from, until, 2, 2, bits); break;
        case 3: strip(p, row, from, until, 3, 2, bits); break;
        case 4: strip(p, row, from, until, 4, 1, bits); break;
        case 5: strip(p, row, from, until, 5, 1, bits); break;
        case 6: strip(p, row, from, until, 6, 1, bits); break;
        }
    }
}

INLINED float number(const Product *p, const void *x, long at) {
    return p->narrow ? widened(((const uint16_t *)x)[at]) : ((const float *)x)[at];
}

/* A block of x that is not finite gets the scale NaN: all outputs of its row become NaN. */
static void lay_out(const Product *p, const void *x, long row, long block) {
    const long first = block * BLOCK, count = p->inputs - first < BLOCK ? p->inputs - first : BLOCK;
    int16_t *codes = p->codes + (row * p->blocks + block) * BLOCK;
    float values[BLOCK] = {0}, largest = 0;
    int finite = 1;
    for (long at = 0; at < count; at++) {
        values[at] = number(p, x, row * p->inputs + first + at);
        largest = fabsf(values[at]) > largest ? fabsf(values[at]) : largest;
        finite &= fabsf(values[at]) <= 0x1.fffffep127f;
    }
    const float scale = finite ? largest / LARGEST : NAN, inverse = finite && scale > 0 ? LARGEST / largest : 0;
    p->scales[row * p->blocks + block] = scale;
    for (int group = 0; group < GROUPS; group++) {
        int32_t sum = 0;
        for (int at = group * GROUP; at < (group + 1) * GROUP; at++) {
            codes[at] = finite ? (int16_t)lrintf(values[at] * inverse) : 0;
            sum += codes[at];
        }
        p->sums[row * p->groups + block * GROUPS + group] = sum * scale;
    }
}

static void multiply(const Product *p, int bits, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long from = 0; from < p->outputs; from += BLOCK_OUTPUTS) {
        const long until = from + BLOCK_OUTPUTS < p->outputs ? from + BLOCK_OUTPUTS : p->outputs;
        if (bits == 8)
            block(p, from, until, 8);
        else
            block(p, from, until, 4);
    }
}

/* x [rows, inputs] of float32 or (narrow) bfloat16, y [rows, outputs] likewise, weight of `bits` as said above, each
 * without gaps; 0 where memory does not suffice. */
int quantised_product(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int bits,
                      int narrow, int threads) {
    Product p = {.weight = weight, .y = y, .rows = rows, .inputs = inputs, .outputs = outputs, .narrow = narrow};
    p.blocks = (inputs + BLOCK - 1) / BLOCK;
    p.groups = (p.blocks * GROUPS + LANES - 1) / LANES * LANES;
    const long of_groups = (p.blocks * GROUPS + p.groups) * (long)sizeof(uint16_t);
    p.line = bits == 8 ? p.blocks * BLOCK + (long)sizeof(float) : p.blocks * (long)sizeof(nibbles) + of_groups;
    p.codes = aligned_alloc(sizeof(shorts), rows * p.blocks * BLOCK * sizeof *p.codes);
    p.sums = aligned_alloc(sizeof(floats), rows * p.groups * sizeof *p.sums);
    p.scales = malloc(rows * p.blocks * sizeof *p.scales);
    const int suffices = p.codes && p.sums && p.scales;
    if (suffices) {
        memset(p.sums, 0, rows * p.groups * sizeof *p.sums);
        for (long row = 0; row < rows; row++)
            for (long block = 0; block < p.blocks; block++) lay_out(&p, x, row, block);
        multiply(&p, bits, threads);
    }
    free(p.codes);
    free(p.sums);
    free(p.scales);
    return suffices;
}
