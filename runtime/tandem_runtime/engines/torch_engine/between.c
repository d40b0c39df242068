/* What lies between the products of a layer: norms, gating, and attention (`attention.h`).
 *
 * Knows no weights of products and no schedules. Every row is computed by itself and every sum is taken in one order, so
 * a row's bits do not depend on what shares its call.
 */
#include <omp.h>

#include "attention.h"
#include "vectors.h"

/* From so many numbers on, threads pay. */
#define THREADS(numbers) ((numbers) < 65536 ? 1 : threads)

/* One row: x <- x + delta, where there is one; out <- the norm of x, by `weight` [width]. */
INLINED void norm_row(char *x, const char *delta, const char *weight, char *out, long width, float epsilon, const int narrow) {
    floats squares[COLUMNS / LANES] = {0};
    for (long at = 0; at < width; at += COLUMNS) {
        Columns value = columns_at(x, at, width, narrow);
        if (delta) {
            const Columns more = columns_at(delta, at, width, narrow);
            UNROLLED for (int c = 0; c < COLUMNS / LANES; c++) value.half[c] = rounded(value.half[c] + more.half[c], narrow);
            put_columns(x, at, width, value, narrow);
        }
        UNROLLED for (int c = 0; c < COLUMNS / LANES; c++) ADD_PRODUCT(squares[c], value.half[c], value.half[c]);
    }
    const float scale = inverse_length(squares[0] + squares[1], width, epsilon);
    for (long at = 0; at < width; at += COLUMNS) {
        const Columns weights = columns_at(weight, at, width, narrow);
        Columns value = columns_at(x, at, width, narrow);
        UNROLLED for (int c = 0; c < COLUMNS / LANES; c++)
            value.half[c] = rounded(value.half[c] * scale, narrow) * weights.half[c];
        put_columns(out, at, width, value, narrow);
    }
}

/* One row: out <- silu(gate) up. */
INLINED void gate_row(const char *gate, const char *up, char *out, long width, const int narrow) {
    for (long at = 0; at < width; at += COLUMNS) {
        const Columns factors = columns_at(up, at, width, narrow);
        Columns value = columns_at(gate, at, width, narrow), powers;
        UNROLLED for (int c = 0; c < COLUMNS / LANES; c++) powers.half[c] = exponential(-value.half[c]);
        UNROLLED for (int c = 0; c < COLUMNS / LANES; c++)
            value.half[c] = value.half[c] / (1.0f + powers.half[c]) * factors.half[c];
        put_columns(out, at, width, value, narrow);
    }
}

/* What Python calls. Loops over rows stand here, since a compiler makes a function of its own of each loop that threads
 * share, in which `narrow` would not be constant.
 *
 * x [rows, width] <- x + delta, where there is one; out <- the norm of x.
 * gate_up [rows, 2 width] -> out [rows, width].
 * Heads turn, and all rows write, before any attends: a query sees those of its step that stand before it. */
#define IN_BOTH_TYPES(type, narrow)                                                                                              \
    void norm_##type(char *x, const char *delta, const char *weight, char *out, long rows, long width, float epsilon, int threads) { \
        const long line = width * size_of(narrow);                                                                               \
        _Pragma("omp parallel for num_threads(THREADS(rows * width))")                                                           \
        for (long r = 0; r < rows; r++)                                                                                          \
            norm_row(x + r * line, delta ? delta + r * line : 0, weight, out + r * line, width, epsilon, narrow);                \
    }                                                                                                                            \
    void gated_##type(const char *gate_up, char *out, long rows, long width, int threads) {                                      \
        const long line = width * size_of(narrow);                                                                               \
        _Pragma("omp parallel for num_threads(THREADS(rows * width))")                                                           \
        for (long r = 0; r < rows; r++)                                                                                          \
            gate_row(gate_up + 2 * r * line, gate_up + (2 * r + 1) * line, out + r * line, width, narrow);                       \
    }                                                                                                                            \
    void attend_##type(const Attention *a) {                                                                                     \
        const long works = a->tile_count * a->kv_heads;                                                                          \
        _Pragma("omp parallel num_threads(a->threads)") {                                                                        \
            _Pragma("omp for")                                                                                                   \
            for (long i = 0; i < works; i++) settle(a, a->tiles + i / a->kv_heads, i % a->kv_heads, narrow);                     \
            _Pragma("omp for schedule(dynamic)")                                                                                 \
            for (long i = 0; i < works; i++) {                                                                                   \
                float *own = a->scratch + omp_get_thread_num() * a->each;                                                        \
                attend_tile(a, a->tiles + i / a->kv_heads, i % a->kv_heads, own, narrow);                                        \
            }                                                                                                                    \
        }                                                                                                                        \
    }

IN_BOTH_TYPES(float32, 0)
IN_BOTH_TYPES(bfloat16, 1)
