/* y = x W^T for few rows x, where a row's bits do not depend on how many rows there are.
 *
 * Knows no models and no caches. Every output is summed in one order, whatever shares the call: the inputs are taken
 * STEP at a time by LANES partial sums in float32, which are added up at the end. Weights [outputs, inputs] are read
 * once, as they stand, for up to MOST_ROWS rows: a tile of rows x outputs keeps its sums in registers (16 on AVX2), and
 * fetches the weights of the tile that follows while it multiplies its own.
 *
 * bfloat16 is the upper half of a float32. A word holds two of them, so a step of 2 x LANES numbers is LANES words, and
 * one shift and one mask give the even and the odd ones; x is laid out to match.
 *
 * One core of AVX2 multiplies 8 pairs a cycle, if sums stay in registers and a cycle loads one vector at most. So each
 * height of tile is a function of its own, of constant sizes, and a vector of x is loaded once for all outputs.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
enum { STEP = 2 * LANES, MOST_ROWS = 5, MOST_OUTPUTS = 6, BLOCK_OUTPUTS = 48, CACHE_LINE = 64 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float four_floats __attribute__((vector_size(16)));
typedef int32_t four_places __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

#define INLINED static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
/* Compilers read a vector from memory again for each use of it; this keeps it where it is. */
#ifdef __x86_64__
#define IN_REGISTER(vector) __asm__("" : "+v"(vector))
#else
#define IN_REGISTER(vector) (void)(vector)
#endif

typedef struct {
    const float *x; /* [rows, width]: width is inputs rounded up to STEP, filled with 0 */
    const char *weight;
    char *y;
    long rows, inputs, outputs, width;
} Product;

INLINED void load(const char *from, const int narrow, floats *first, floats *second) {
    if (narrow) {
        words pairs;
        memcpy(&pairs, from, sizeof pairs);
        IN_REGISTER(pairs);
        *first = (floats)(pairs << 16);
        *second = (floats)(pairs & 0xffff0000u);
    } else {
        memcpy(first, from, sizeof *first);
        memcpy(second, from + sizeof *first, sizeof *second);
    }
}

/* `count` numbers, fewer than a step, and 0 behind them. */
INLINED void load_rest(const char *from, long count, const int narrow, floats *first, floats *second) {
    char rest[STEP * sizeof(float)] = {0};
    load(memcpy(rest, from, count * (narrow ? 2 : 4)), narrow, first, second);
}

INLINED float total(floats lanes) {
    four_floats sums[LANES / 4];
    memcpy(sums, &lanes, sizeof sums);
    UNROLLED for (int half = LANES / 8; half > 0; half /= 2)
        UNROLLED for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    sums[0] += __builtin_shuffle(sums[0], (four_places){2, 3, 0, 1});
    return sums[0][0] + sums[0][1];
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

/* sums += x first + x' second, where x' stands LANES behind x. */
INLINED void add(floats sums[MOST_ROWS][MOST_OUTPUTS], const float *x, long width, const floats *first, const floats *second,
                 const int rows, const int outputs) {
    UNROLLED for (int half = 0; half < 2; half++) {
        const floats *weights = half ? second : first;
        UNROLLED for (int r = 0; r < rows; r++) {
            floats across = *(const floats *)(x + r * width + half * LANES);
            IN_REGISTER(across);
            UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] += across * weights[o];
        }
    }
}

/* `rows` and `outputs` are constants wherever this is inlined, so that its loops unroll and `sums` are registers. */
INLINED void tile(const Product *p, long row, long output, const int rows, const int outputs, const int narrow) {
    const long size = narrow ? 2 : 4, line = p->inputs * size, width = p->width, whole = p->inputs / STEP * STEP;
    const int stride = STEP * size < CACHE_LINE ? CACHE_LINE / size : STEP;
    const char *weight = p->weight + output * line;
    const float *x = p->x + row * width;
    floats sums[MOST_ROWS][MOST_OUTPUTS], first[MOST_OUTPUTS], second[MOST_OUTPUTS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++) sums[r][o] = (floats){0};
    long at = 0;
    for (; at + stride <= whole; at += stride) {
        UNROLLED for (int o = 0; o < outputs; o++)
            UNROLLED for (int ahead = 0; ahead < stride * size; ahead += CACHE_LINE)
                __builtin_prefetch(weight + (outputs + o) * line + at * size + ahead);
        UNROLLED for (int step = 0; step < stride; step += STEP) {
            UNROLLED for (int o = 0; o < outputs; o++)
                load(weight + o * line + (at + step) * size, narrow, &first[o], &second[o]);
            add(sums, x + at + step, width, first, second, rows, outputs);
        }
    }
    for (; at < whole; at += STEP) {
        UNROLLED for (int o = 0; o < outputs; o++) load(weight + o * line + at * size, narrow, &first[o], &second[o]);
        add(sums, x + at, width, first, second, rows, outputs);
    }
    if (at < p->inputs) {
        UNROLLED for (int o = 0; o < outputs; o++)
            load_rest(weight + o * line + at * size, p->inputs - at, narrow, &first[o], &second[o]);
        add(sums, x + at, width, first, second, rows, outputs);
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outputs; o++)
            store(p->y + ((row + r) * p->outputs + output + o) * size, total(sums[r][o]), narrow);
}

/* `rows` rows against the outputs from..until, `outputs` of them at a time: a sum waits for the one before it, so that
 * enough of them must be under way, and for few rows it takes more outputs. */
#define STRIP(name, rows, outputs, narrow)                                                                     \
    static __attribute__((noinline)) void name(const Product *p, long row, long from, long until) {            \
        for (; from + outputs <= until; from += outputs) tile(p, row, from, rows, outputs, narrow);            \
        for (; from < until; from++) tile(p, row, from, rows, 1, narrow);                                      \
    }
#define STRIPS(type, narrow, outputs_of_2)                                                                     \
    STRIP(type##_1, 1, 6, narrow)                                                                              \
    STRIP(type##_2, 2, outputs_of_2, narrow)                                                                   \
    STRIP(type##_3, 3, 2, narrow)                                                                              \
    STRIP(type##_4, 4, 2, narrow)                                                                              \
    STRIP(type##_5, 5, 2, narrow)                                                                              \
    static const Strip type[MOST_ROWS] = {type##_1, type##_2, type##_3, type##_4, type##_5};

typedef void (*Strip)(const Product *p, long row, long from, long until);
STRIPS(float32, 0, 4)
STRIPS(bfloat16, 1, 3)

/* All rows, in strips of nearly equal height, against the outputs from..until. */
static void block(const Product *p, const Strip *strips, long from, long until) {
    for (long row = 0, height; row < p->rows; row += height) {
        const long left = p->rows - row, count = (left + MOST_ROWS - 1) / MOST_ROWS;
        height = (left + count - 1) / count;
        strips[height - 1](p, row, from, until);
    }
}

/* x as float32, in the order in which `load` gives weights. */
INLINED void lay_out(const char *x, float *wide, const Product *p, const int narrow) {
    const long size = narrow ? 2 : 4, whole = p->inputs / STEP * STEP;
    for (long r = 0; r < p->rows; r++, x += p->inputs * size) {
        floats *to = (floats *)(wide + r * p->width);
        for (long at = 0; at < whole; at += STEP, to += 2) load(x + at * size, narrow, to, to + 1);
        if (whole < p->inputs) load_rest(x + whole * size, p->inputs - whole, narrow, to, to + 1);
    }
}

INLINED int product(const void *x, Product p, int threads, const int narrow) {
    p.width = (p.inputs + STEP - 1) / STEP * STEP;
    float *wide = aligned_alloc(CACHE_LINE, p.rows * p.width * sizeof *wide);
    if (!wide) return 0;
    p.x = wide;
    lay_out(x, wide, &p, narrow);
#pragma omp parallel for num_threads(threads)
    for (long from = 0; from < p.outputs; from += BLOCK_OUTPUTS)
        block(&p, narrow ? bfloat16 : float32, from, from + BLOCK_OUTPUTS < p.outputs ? from + BLOCK_OUTPUTS : p.outputs);
    free(wide);
    return 1;
}

/* x [rows, inputs], weight [outputs, inputs], y [rows, outputs], each without gaps; 0 where memory does not suffice. */
int product_float32(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int threads) {
    return product(x, (Product){0, weight, y, rows, inputs, outputs, 0}, threads, 0);
}

int product_bfloat16(const void *x, const void *weight, void *y, long rows, long inputs, long outputs, int threads) {
    return product(x, (Product){0, weight, y, rows, inputs, outputs, 0}, threads, 1);
}
