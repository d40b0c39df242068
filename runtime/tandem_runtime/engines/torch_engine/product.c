/* y = x W^T for few rows x, where a row's bits do not depend on how many rows there are.
 *
 * Knows no models and no caches. Every output is summed in one order, whatever shares the call: the inputs are taken
 * STEP at a time by LANES partial sums in float32, which are added up at the end. Weights [outputs, inputs] are read
 * once, as they stand, for up to MOST_ROWS rows: a tile of rows x outputs keeps its sums in registers (16 on AVX2), and
 * fetches the weights of the tile that follows while it multiplies its own.
 *
 * bfloat16 is the upper half of a float32. A word holds two of them, so a step of 2 x LANES numbers is LANES words, and
 * one shift and one mask give the even and the odd ones; x is laid out to match.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, STEP = 2 * LANES, MOST_ROWS = 6, MOST_OUTPUTS = 8, BLOCK_OUTPUTS = 48 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float half_floats __attribute__((vector_size(2 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

#define INLINED static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

typedef struct {
    const float *x; /* [rows, width]: width is inputs rounded up to STEP, filled with 0 */
    const char *weight;
    char *y;
    long rows, inputs, outputs, width, size; /* size: bytes of a number in weight and y */
} Product;

INLINED void load(const char *from, const int narrow, floats *first, floats *second) {
    if (narrow) {
        words pairs;
        memcpy(&pairs, from, sizeof pairs);
        *first = (floats)(pairs << 16);
        *second = (floats)(pairs & 0xffff0000u);
    } else {
        memcpy(first, from, sizeof *first);
        memcpy(second, from + sizeof *first, sizeof *second);
    }
}

INLINED float total(floats lanes) {
    half_floats low, high;
    memcpy(&low, &lanes, sizeof low);
    memcpy(&high, (const char *)&lanes + sizeof low, sizeof high);
    low += high;
    return (low[0] + low[2]) + (low[1] + low[3]);
}

/* bfloat16 takes the nearest, the even one of two equally near. */
INLINED void store(char *to, float value, const int narrow) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t upper = value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    if (narrow)
        memcpy(to, &upper, sizeof upper);
    else
        memcpy(to, &bits, sizeof bits);
}

/* `rows` and `outputs` are constants wherever this is inlined, so that its loops unroll and `sums` are registers. */
INLINED void tile(const Product *p, long row, long output, const int rows, const int outputs, const int narrow) {
    const long line = p->inputs * p->size;
    const char *weight = p->weight + output * line;
    const float *x = p->x + row * p->width;
    floats sums[MOST_ROWS][MOST_OUTPUTS], first[MOST_OUTPUTS], second[MOST_OUTPUTS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] = (floats){0};
    for (long at = 0; at < p->inputs; at += STEP) {
        UNROLLED for (int o = 0; o < outputs; o++) {
            const char *here = weight + o * line + at * p->size;
            char rest[STEP * sizeof(float)];
            if (at + STEP > p->inputs) {
                memset(rest, 0, sizeof rest);
                here = memcpy(rest, here, (p->inputs - at) * p->size);
            } else
                __builtin_prefetch(here + outputs * line);
            load(here, narrow, &first[o], &second[o]);
        }
        UNROLLED for (int r = 0; r < rows; r++) {
            const floats *across = (const floats *)(x + r * p->width + at);
            UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] += across[0] * first[o];
            UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] += across[1] * second[o];
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++)
            store(p->y + ((row + r) * p->outputs + output + o) * p->size, total(sums[r][o]), narrow);
}

INLINED void strip(const Product *p, long row, long from, long until, const int rows, const int outputs, const int narrow) {
    for (; from + outputs <= until; from += outputs) tile(p, row, from, rows, outputs, narrow);
    for (; from < until; from++) tile(p, row, from, rows, 1, narrow);
}

/* All rows, in strips of nearly equal height, against the outputs from..until. Low strips take more outputs at once:
 * a sum waits for the one before it, so that enough of them must be under way. */
INLINED void block(const Product *p, long from, long until, const int narrow) {
    for (long row = 0, height; row < p->rows; row += height) {
        const long left = p->rows - row, strips = (left + MOST_ROWS - 1) / MOST_ROWS;
        height = (left + strips - 1) / strips;
        switch (height) {
        case 1: strip(p, row, from, until, 1, 8, narrow); break;
        case 2: strip(p, row, from, until, 2, 6, narrow); break;
        case 3: strip(p, row, from, until, 3, 4, narrow); break;
        case 4: strip(p, row, from, until, 4, 3, narrow); break;
        case 5: strip(p, row, from, until, 5, 2, narrow); break;
        case 6: strip(p, row, from, until, 6, 2, narrow); break;
        }
    }
}

/* x as float32, in the order in which `load` gives weights. */
static void lay_out(const void *x, float *wide, const Product *p, const int narrow) {
    memset(wide, 0, p->rows * p->width * sizeof *wide);
    for (long r = 0; r < p->rows; r++, wide += p->width) {
        if (!narrow) {
            memcpy(wide, (const float *)x + r * p->inputs, p->inputs * sizeof *wide);
            continue;
        }
        for (long at = 0; at < p->inputs; at++) {
            const uint32_t bits = (uint32_t)((const uint16_t *)x)[r * p->inputs + at] << 16;
            memcpy(&wide[at / STEP * STEP + at % 2 * LANES + at % STEP / 2], &bits, sizeof bits);
        }
    }
}

INLINED int product(const void *x, Product p, int threads, const int narrow) {
    float *wide = aligned_alloc(sizeof(floats), p.rows * p.width * sizeof *wide);
    if (!wide) return 0;
    p.x = wide;
    lay_out(x, wide, &p, narrow);
#pragma omp parallel for num_threads(threads)
    for (long from = 0; from < p.outputs; from += BLOCK_OUTPUTS)
        block(&p, from, from + BLOCK_OUTPUTS < p.outputs ? from + BLOCK_OUTPUTS : p.outputs, narrow);
    free(wide);
    return 1;
}

/* x [rows, inputs], weight [outputs, inputs], y [rows, outputs], each without gaps; 0 where memory does not suffice. */
int product_float32(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int threads) {
    const long width = (inputs + STEP - 1) / STEP * STEP;
    return product(x, (Product){0, weight, y, rows, inputs, outputs, width, 4}, threads, 0);
}

int product_bfloat16(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int threads) {
    const long width = (inputs + STEP - 1) / STEP * STEP;
    return product(x, (Product){0, weight, y, rows, inputs, outputs, width, 2}, threads, 1);
}
