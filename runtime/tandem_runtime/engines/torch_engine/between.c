/* What lies between the products of a layer: norms, rotation, gating, and attention over paged keys and values.
 *
 * Knows no weights of products and no schedules. Every row is computed by itself and every sum is taken in one order, so
 * a row's bits do not depend on what shares its call. Numbers are float32 or bfloat16 (the upper half of a float32),
 * arithmetic is float32, eight numbers at a time; where a row ends within eight, zeros stand behind it.
 *
 * Keys and values stand in blocks of BLOCK tokens: of one layer, [blocks][kv_heads][d][BLOCK] keys, so that eight keys
 * meet one number of a query at once, and [blocks][kv_heads][BLOCK][d] values. A query at position t meets the keys
 * 0..t, and no number that stands beyond is ever multiplied by anything that counts: what an earlier owner left there,
 * NaN too, cannot get out.
 */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, BLOCK = 16, COLUMNS = 2 * LANES, MOST_QUERIES = 6, CACHE_LINE = 64 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef float four_floats __attribute__((vector_size(2 * LANES)));

#define INLINED static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")
#define ALL(number) ((number) - (floats){0})
/* sum += a b, rounded once where an x86 processor can, and twice on all others. */
#ifdef __FMA__
#define ADD_PRODUCT(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#else
#define ADD_PRODUCT(sum, a, b) ((sum) += (a) * (b))
#endif
/* From so many numbers on, threads pay. */
#define THREADS(numbers) ((numbers) < 65536 ? 1 : threads)

INLINED long size_of(const int narrow) { return narrow ? 2 : 4; }

INLINED floats chosen(integers where, floats yes, floats no) {
    return (floats)((where & (integers)yes) | (~where & (integers)no));
}

/* To the nearest bfloat16, the even one of two equally near. */
INLINED words as_bfloat16(floats value) {
    const words bits = (words)value, nan = (words)(value != value);
    return (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) & ~nan) | (0x7fc0 & nan);
}

INLINED floats rounded(floats value, const int narrow) { return narrow ? (floats)(as_bfloat16(value) << 16) : value; }

INLINED floats load_eight(const char *from, const int narrow) {
    floats value;
    halves upper;
    if (!narrow) return *(floats *)memcpy(&value, from, sizeof value);
    memcpy(&upper, from, sizeof upper);
    return (floats)(__builtin_convertvector(upper, words) << 16);
}

INLINED void store_eight(char *to, floats value, const int narrow) {
    const halves upper = __builtin_convertvector(as_bfloat16(value), halves);
    if (narrow)
        memcpy(to, &upper, sizeof upper);
    else
        memcpy(to, &value, sizeof value);
}

/* The number `at` of a row of `length` and the seven behind it. */
INLINED floats load(const char *row, long at, long length, const int narrow) {
    const long size = size_of(narrow);
    if (at + LANES <= length) return load_eight(row + at * size, narrow);
    char rest[sizeof(floats)] = {0};
    return load_eight(memcpy(rest, row + at * size, (length - at) * size), narrow);
}

INLINED void store(char *row, long at, long length, floats value, const int narrow) {
    const long size = size_of(narrow);
    if (at + LANES <= length) {
        store_eight(row + at * size, value, narrow);
        return;
    }
    char rest[sizeof(floats)];
    store_eight(rest, value, narrow);
    memcpy(row + at * size, rest, (length - at) * size);
}

/* COLUMNS numbers: the first eight and the last, but of bfloat16 the even and the odd ones, which a shift and a mask give
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

INLINED Columns in_order(Columns columns, const int narrow) {
    const floats even = columns.half[0], odd = columns.half[1];
    if (!narrow) return columns;
    return (Columns){{__builtin_shuffle(even, odd, (integers){0, 8, 1, 9, 2, 10, 3, 11}),
                      __builtin_shuffle(even, odd, (integers){4, 12, 5, 13, 6, 14, 7, 15})}};
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
    four_floats low, high;
    memcpy(&low, &lanes, sizeof low);
    memcpy(&high, (const char *)&lanes + sizeof low, sizeof high);
    low += high;
    return (low[0] + low[2]) + (low[1] + low[3]);
}

INLINED floats sum_and_product(float sum, floats a, floats b) {
    floats all = ALL(sum);
    ADD_PRODUCT(all, a, b);
    return all;
}

/* e^x within 2 units of the last place (Cephes' polynomial on r = x - n ln 2); 0 below -87, NaN of NaN. */
INLINED floats exponential(floats x) {
    const floats magic = ALL(12582912.0f); /* 1.5 x 2^23: what is added to it is rounded to a whole number */
    const integers vanishing = x < -87.0f;
    x = chosen(x > 88.0f, ALL(88.0f), chosen(vanishing, ALL(-87.0f), x));
    const floats n = (x * 1.44269504f + magic) - magic;
    const floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    floats p = sum_and_product(1.3981999507e-3f, ALL(1.9875691500e-4f), r);
    p = sum_and_product(8.3334519073e-3f, p, r);
    p = sum_and_product(4.1665795894e-2f, p, r);
    p = sum_and_product(1.6666665459e-1f, p, r);
    p = sum_and_product(5.0000001201e-1f, p, r);
    p = p * (r * r) + r + 1.0f;
    const floats power = (floats)((__builtin_convertvector(n, integers) + 127) << 23);
    return chosen(vanishing, (floats){0}, p * power);
}

INLINED float inverse_length(floats squares, long length, float epsilon) {
    return 1.0f / sqrtf(total(squares) / length + epsilon);
}

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

/* One head in place: normed by `weight` [d], where there is one, and turned by `turns` [cosines, cosines, -sines, sines]. */
INLINED void turn_head(char *head, const char *weight, const char *turns, long d, float epsilon, const int narrow) {
    const long half = d / 2, size = size_of(narrow);
    float scale = 0;
    if (weight) {
        floats squares = {0};
        for (long at = 0; at < d; at += LANES) {
            const floats value = load(head, at, d, narrow);
            squares += value * value;
        }
        scale = inverse_length(squares, d, epsilon);
    }
    for (long at = 0; at < half; at += LANES) {
        floats left = load(head, at, half, narrow), right = load(head + half * size, at, half, narrow);
        if (weight) {
            left = rounded(rounded(left * scale, narrow) * load(weight, at, half, narrow), narrow);
            right = rounded(rounded(right * scale, narrow) * load(weight + half * size, at, half, narrow), narrow);
        }
        const floats cosine = load(turns, at, half, narrow), sine = load(turns + (d + half) * size, at, half, narrow);
        store(head, at, half, left * cosine - right * sine, narrow);
        store(head + half * size, at, half, right * cosine + left * sine, narrow);
    }
}

/* `rows` queries of one sequence that stand after each other: the flat rows from `first` on, at positions from `start` on.
 * The sequence's blocks are those of `tables` from `table` on. */
typedef struct {
    int64_t first, rows, start, table;
} Tile;

/* Heads stand in the order of queries, keys, values; `out` is [rows, heads, d]. */
typedef struct {
    char *qkv, *out, *keys, *values;              /* of each flat row [heads + 2 kv_heads, d]; a layer's memory */
    const char *head_norms, *table;               /* [heads + kv_heads, d] or none; of each position [2 d] */
    const int64_t *positions;                     /* [rows] */
    const Tile *tiles;
    const int32_t *tables;
    float *scratch; /* of each thread [`each`] */
    int64_t rows, tile_count, heads, kv_heads, d, each, threads;
    float epsilon;
} Attention;

INLINED char *head_of(const Attention *a, long row, long head, const int narrow) {
    return a->qkv + (row * (a->heads + 2 * a->kv_heads) + head) * a->d * size_of(narrow);
}

/* Where a layer's keys or values of the block that holds position `at` begin, for one key head. */
INLINED long block_of(const Attention *a, const int32_t *table, long at, long head, const int narrow) {
    return (table[at / BLOCK] * a->kv_heads + head) * BLOCK * a->d * size_of(narrow);
}

INLINED void write(const Attention *a, const Tile *tile, long head, const int narrow) {
    const long size = size_of(narrow), d = a->d;
    for (long r = tile->first, at = tile->start; r < tile->first + tile->rows; r++, at++) {
        const char *key = head_of(a, r, a->heads + head, narrow), *value = key + a->kv_heads * d * size;
        const long own = block_of(a, a->tables + tile->table, at, head, narrow), place = at % BLOCK;
        for (long i = 0; i < d; i++) memcpy(a->keys + own + (i * BLOCK + place) * size, key + i * size, size);
        memcpy(a->values + own + place * d * size, value, d * size);
    }
}

typedef Columns Sums[MOST_QUERIES];

/* sums [queries, COLUMNS] += x [queries, count] y [count, COLUMNS], in the order of y's rows. Each number of queries has a
 * function of its own, of constant sizes, whose sums stay in registers. */
INLINED void panel(Sums sums, const float *x, long x_line, const char *y, long y_line, long count, const int queries, const int narrow) {
    const long size = size_of(narrow);
    floats own[MOST_QUERIES][COLUMNS / LANES];
    UNROLLED for (int q = 0; q < queries; q++)
        UNROLLED for (int c = 0; c < COLUMNS / LANES; c++) own[q][c] = sums[q].half[c];
    for (long i = 0; i < count; i++) {
        const Columns columns = load_columns(y + i * y_line * size, narrow);
        UNROLLED for (int q = 0; q < queries; q++) {
            const floats all = ALL(x[q * x_line + i]);
            UNROLLED for (int c = 0; c < COLUMNS / LANES; c++) ADD_PRODUCT(own[q][c], all, columns.half[c]);
        }
    }
    UNROLLED for (int q = 0; q < queries; q++)
        UNROLLED for (int c = 0; c < COLUMNS / LANES; c++) sums[q].half[c] = own[q][c];
}

typedef void (*Panel)(Sums sums, const float *x, long x_line, const char *y, long y_line, long count);

#define PANEL(name, queries, narrow)                                                                                      \
    static __attribute__((noinline)) void name(Sums sums, const float *x, long x_line, const char *y, long y_line, long count) { \
        panel(sums, x, x_line, y, y_line, count, queries, narrow);                                                         \
    }
#define PANELS(type, narrow)    \
    PANEL(type##_1, 1, narrow)  \
    PANEL(type##_2, 2, narrow)  \
    PANEL(type##_3, 3, narrow)  \
    PANEL(type##_4, 4, narrow)  \
    PANEL(type##_5, 5, narrow)  \
    PANEL(type##_6, 6, narrow)  \
    static const Panel type[MOST_QUERIES] = {type##_1, type##_2, type##_3, type##_4, type##_5, type##_6};

PANELS(float32, 0)
PANELS(bfloat16, 1)

INLINED void panels(Sums sums, const float *x, long x_line, const char *y, long y_line, long count, long queries, const int narrow) {
    (narrow ? bfloat16 : float32)[queries - 1](sums, x, x_line, y, y_line, count);
}

/* Weights in place of the first `count` scores, against the greatest of them; returns what they add up to. */
INLINED float weigh(float *scores, long count) {
    floats most = ALL(-INFINITY), sums = {0};
    for (long at = count; at % LANES; at++) scores[at] = -INFINITY;
    for (long at = 0; at < count; at += LANES) most = chosen(*(floats *)(scores + at) > most, *(floats *)(scores + at), most);
    float top = most[0];
    for (int lane = 1; lane < LANES; lane++) top = most[lane] > top ? most[lane] : top;
    for (long at = 0; at < count; at += LANES) {
        floats *eight = (floats *)(scores + at);
        *eight = exponential(*eight - top);
        sums += *eight;
    }
    return total(sums);
}

/* sums += the first `count` values of one block, the columns from `column` on; where fewer than COLUMNS are left, of a
 * copy with zeros behind. */
INLINED void mix_block(Sums sums, const float *weights, long keys, const char *block, long column, long d, long count, long queries,
                       const int narrow) {
    const long size = size_of(narrow), left = d - column;
    const char *values = block + column * size;
    if (left >= COLUMNS) {
        panels(sums, weights, keys, values, d, count, queries, narrow);
        return;
    }
    char copy[BLOCK * COLUMNS * sizeof(float)] = {0};
    for (long i = 0; i < count; i++) memcpy(copy + i * COLUMNS * size, values + i * d * size, left * size);
    panels(sums, weights, keys, copy, COLUMNS, count, queries, narrow);
}

typedef struct {
    const int32_t *table;
    float *queries, *scores, *sums;  /* [queries, d], [queries, keys], [queries] */
    long head, start, groups, keys; /* `keys`: all that the last query sees, in whole blocks */
} Work;

INLINED long seen_by(const Work *w, long query) { return w->start + query / w->groups + 1; }

/* Keys or values of a block, which are about to be read: blocks stand anywhere, so that no processor guesses the next. */
INLINED void fetch(const char *block, long d, const int narrow) {
    for (long at = 0; at < BLOCK * d * size_of(narrow); at += CACHE_LINE) __builtin_prefetch(block + at);
}

INLINED void score(const Attention *a, const Work *w, long first, long queries, const int narrow) {
    for (long at = 0; at < w->keys; at += BLOCK) {
        Sums sums = {0};
        const char *block = a->keys + block_of(a, w->table, at, w->head, narrow);
        if (at + BLOCK < w->keys) fetch(a->keys + block_of(a, w->table, at + BLOCK, w->head, narrow), a->d, narrow);
        fetch(a->values + block_of(a, w->table, at, w->head, narrow), a->d, narrow);
        panels(sums, w->queries + first * a->d, a->d, block, BLOCK, a->d, queries, narrow);
        for (long q = 0; q < queries; q++) {
            const Columns scores = in_order(sums[q], narrow);
            memcpy(w->scores + (first + q) * w->keys + at, &scores, sizeof scores);
        }
    }
    for (long q = first; q < first + queries; q++) w->sums[q] = weigh(w->scores + q * w->keys, seen_by(w, q));
}

/* `sums` += the values of the positions from..until, weighted for the queries from `first` on. */
INLINED void mix(Sums sums, const Attention *a, const Work *w, long first, long queries, long column, long from, long until,
                 const int narrow) {
    for (long at = from; at < until; at += BLOCK) {
        const char *block = a->values + block_of(a, w->table, at, w->head, narrow);
        const long count = until - at < BLOCK ? until - at : BLOCK;
        mix_block(sums, w->scores + first * w->keys + at, w->keys, block, column, a->d, count, queries, narrow);
    }
}

/* Blocks that all of these queries see whole are read once for all; what is left, once for each. */
INLINED void gather(const Attention *a, const Work *w, char *out, long first, long queries, const int narrow) {
    const long d = a->d, size = size_of(narrow), together = seen_by(w, first) / BLOCK * BLOCK;
    for (long column = 0; column < d; column += COLUMNS) {
        Sums sums = {0};
        mix(sums, a, w, first, queries, column, 0, together, narrow);
        for (long q = 0; q < queries; q++) {
            const long query = first + q;
            mix(sums + q, a, w, query, 1, column, together, seen_by(w, query), narrow);
            char *row = out + (query / w->groups * a->heads + query % w->groups) * d * size;
            const Columns mixed = in_order(sums[q], narrow);
            for (int c = 0; c < COLUMNS / LANES && column + c * LANES < d; c++)
                store(row, column + c * LANES, d, mixed.half[c] / w->sums[query], narrow);
        }
    }
}

INLINED void attend_tile(const Attention *a, const Tile *tile, long head, float *scratch, const int narrow) {
    const long groups = a->heads / a->kv_heads, d = a->d, count = tile->rows * groups;
    const long keys = (tile->start + tile->rows + BLOCK - 1) / BLOCK * BLOCK;
    float *queries = scratch + count * keys;
    const Work w = {a->tables + tile->table, queries, scratch, queries + count * d, head, tile->start, groups, keys};
    const float scale = 1.0f / sqrtf(d);
    for (long q = 0; q < count; q++) {
        const char *query = head_of(a, tile->first + q / groups, head * groups + q % groups, narrow);
        for (long at = 0; at < d; at += LANES) store((char *)(queries + q * d), at, d, load(query, at, d, narrow) * scale, 0);
    }
    char *out = a->out + (tile->first * a->heads + head * groups) * d * size_of(narrow);
    for (long first = 0, height; first < count; first += height) {
        const long left = count - first, strips = (left + MOST_QUERIES - 1) / MOST_QUERIES;
        height = (left + strips - 1) / strips;
        score(a, &w, first, height, narrow);
        gather(a, &w, out, first, height, narrow);
    }
}

INLINED void turn(const Attention *a, long row, long head, const int narrow) {
    const long line = a->d * size_of(narrow);
    const char *norm = a->head_norms ? a->head_norms + head * line : 0;
    turn_head(head_of(a, row, head, narrow), norm, a->table + a->positions[row] * 2 * line, a->d, a->epsilon, narrow);
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
        _Pragma("omp parallel for num_threads(THREADS(rows * width))")                                                                         \
        for (long r = 0; r < rows; r++)                                                                                          \
            norm_row(x + r * line, delta ? delta + r * line : 0, weight, out + r * line, width, epsilon, narrow);                \
    }                                                                                                                            \
    void gated_##type(const char *gate_up, char *out, long rows, long width, int threads) {                                      \
        const long line = width * size_of(narrow);                                                                               \
        _Pragma("omp parallel for num_threads(THREADS(rows * width))")                                                                         \
        for (long r = 0; r < rows; r++)                                                                                          \
            gate_row(gate_up + 2 * r * line, gate_up + (2 * r + 1) * line, out + r * line, width, narrow);                       \
    }                                                                                                                            \
    void attend_##type(const Attention *a) {                                                                                     \
        const long turning = a->heads + a->kv_heads, works = a->tile_count * a->kv_heads;                                        \
        _Pragma("omp parallel num_threads(a->threads)") {                                                                        \
            _Pragma("omp for")                                                                                                   \
            for (long i = 0; i < a->rows * turning; i++) turn(a, i / turning, i % turning, narrow);                              \
            _Pragma("omp for")                                                                                                   \
            for (long i = 0; i < works; i++) write(a, a->tiles + i / a->kv_heads, i % a->kv_heads, narrow);                      \
            _Pragma("omp for schedule(dynamic)")                                                                                 \
            for (long i = 0; i < works; i++) {                                                                                   \
                float *own = a->scratch + omp_get_thread_num() * a->each;                                                        \
                attend_tile(a, a->tiles + i / a->kv_heads, i % a->kv_heads, own, narrow);                                        \
            }                                                                                                                    \
        }                                                                                                                        \
    }

IN_BOTH_TYPES(float32, 0)
IN_BOTH_TYPES(bfloat16, 1)
