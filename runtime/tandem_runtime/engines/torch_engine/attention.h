/* Attention of `between.c`: queries and keys turn, keys and values are written, queries meet them.
 *
 * Knows where a layer's keys and values stand, and no weights of products and no schedules.
 *
 * They stand in blocks of BLOCK tokens, in words of four bytes: one float32, or two bfloat16. Of one layer keys are
 * [blocks][kv_heads][words of a key][BLOCK], so that many keys meet one word of a query at once and no sum runs across a
 * vector; a word has two neighbours of one key. Values are [blocks][kv_heads][words of a block][d]; a word has one number of
 * two neighbouring tokens. Where the processor adds both products of such words to a sum by itself (AVX512 with BF16), words
 * stay as they are, and weights are rounded to bfloat16 to match; elsewhere a shift gives the first of a word and a mask the
 * second.
 *
 * A query at position t meets the keys 0..t, one after the other, and no number that stands beyond is ever multiplied by
 * anything that counts: what an earlier owner left there, NaN too, cannot get out. Each query has scores, weights and sums of
 * its own; what shares a tile with it shares nothing but what is read.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "vectors.h"

enum { BLOCK = 16, WORD = 4, MOST_QUERIES = 6 };

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
    char *qkv, *out, *keys, *values; /* of each flat row [heads + 2 kv_heads, d]; a layer's memory */
    const char *head_norms, *table;  /* [heads + kv_heads, d] or none; of each position [2 d] */
    const int64_t *positions;        /* of each flat row */
    const Tile *tiles;
    const int32_t *tables;
    float *scratch; /* of each thread [`each`] */
    int64_t tile_count, heads, kv_heads, d, each, threads;
    float epsilon;
} Attention;

INLINED char *head_of(const Attention *a, long row, long head, const int narrow) {
    return a->qkv + (row * (a->heads + 2 * a->kv_heads) + head) * a->d * size_of(narrow);
}

/* Where a layer's keys or values of the block that holds position `at` begin, for one key head. */
INLINED long block_of(const Attention *a, const int32_t *table, long at, long head, const int narrow) {
    return (table[at / BLOCK] * a->kv_heads + head) * BLOCK * a->d * size_of(narrow);
}

INLINED int in_words(const int narrow) { return narrow && WHOLE_WORDS; }

/* How many keys share a word of values, and how many words a query or a weight has for each such word. */
INLINED int keys_in_word(const int narrow) { return narrow ? 2 : 1; }
INLINED int words_for_word(const int narrow) { return narrow && !WHOLE_WORDS ? 2 : 1; }

/* Of two tokens that share words of values either may be written by another thread, so each writes its halves only. */
INLINED void write(const Attention *a, const int32_t *table, long at, long head, const char *key, const char *value, const int narrow) {
    const long size = size_of(narrow), d = a->d, own = block_of(a, table, at, head, narrow), place = at % BLOCK;
    for (long i = 0; i < d * size / WORD; i++) memcpy(a->keys + own + (i * BLOCK + place) * WORD, key + i * WORD, WORD);
    char *values = a->values + own + place / keys_in_word(narrow) * d * WORD + place % keys_in_word(narrow) * size;
    for (long i = 0; i < d; i++) memcpy(values + i * WORD, value + i * size, size);
}

/* The queries and the key of one key head turn, row by row, and its keys and values go to where they stand. */
INLINED void settle(const Attention *a, const Tile *tile, long head, const int narrow) {
    const long line = a->d * size_of(narrow), groups = a->heads / a->kv_heads;
    for (long r = tile->first, at = tile->start; r < tile->first + tile->rows; r++, at++) {
        const char *turns = a->table + a->positions[r] * 2 * line;
        for (long g = 0; g <= groups; g++) {
            const long turned = g < groups ? head * groups + g : a->heads + head;
            const char *norm = a->head_norms ? a->head_norms + turned * line : 0;
            turn_head(head_of(a, r, turned, narrow), norm, turns, a->d, a->epsilon, narrow);
        }
        const char *key = head_of(a, r, a->heads + head, narrow);
        write(a, a->tables + tile->table, at, head, key, key + a->kv_heads * line, narrow);
    }
}

typedef Columns Sums[MOST_QUERIES];

INLINED floats everywhere(const char *word) {
    uint32_t bits;
    memcpy(&bits, word, sizeof bits);
    return (floats)(bits + (words){0});
}

/* Words as they are; of bfloat16, where they have to be taken apart, the first or the second of each. */
INLINED floats taken_of(const char *from, const int second, const int narrow) {
    words pairs;
    memcpy(&pairs, from, sizeof pairs);
    if (words_for_word(narrow) == 1) return (floats)pairs;
    return (floats)(second ? pairs & 0xffff0000u : pairs << 16);
}

INLINED void add(floats *sum, floats x, floats y, const int narrow) {
    if (in_words(narrow))
        ADD_PAIRS(*sum, x, y);
    else
        ADD_PRODUCT(*sum, x, y);
}

/* What meets: rows x, `x_line` bytes each, and y, of which each block has `rows` rows of `y_line` bytes from `offset` on. A
 * row of y has COLUMNS words, the second half `apart` bytes behind the first. */
typedef struct {
    const char *x;
    const char *const *blocks;
    long x_line, y_line, offset, rows, apart;
} Meeting;

/* sums [queries, COLUMNS] += x [queries, count] y [count, COLUMNS], words all, in the order of y's rows. Each number of
 * queries has a function of its own, of constant sizes, whose sums stay in registers. */
INLINED void panel(Sums sums, const Meeting *m, long count, const int queries, const int narrow) {
    const int parts = words_for_word(narrow);
    const long x_line = m->x_line, y_line = m->y_line, apart = m->apart;
    const char *x = m->x;
    floats own[MOST_QUERIES][2];
    UNROLLED for (int q = 0; q < queries; q++)
        UNROLLED for (int c = 0; c < 2; c++) own[q][c] = sums[q].half[c];
    for (const char *const *block = m->blocks; count > 0; block++, count -= m->rows) {
        const char *y = *block + m->offset;
        for (long left = count < m->rows ? count : m->rows; left > 0; left--, y += y_line)
            UNROLLED for (int part = 0; part < parts; part++, x += WORD) {
                floats first = taken_of(y, part, narrow), second = taken_of(y + apart, part, narrow);
                IN_REGISTER(first);
                IN_REGISTER(second);
                UNROLLED for (int q = 0; q < queries; q++) {
                    floats all = everywhere(x + q * x_line);
                    IN_REGISTER(all);
                    add(&own[q][0], all, first, narrow);
                    add(&own[q][1], all, second, narrow);
                }
            }
    }
    UNROLLED for (int q = 0; q < queries; q++)
        UNROLLED for (int c = 0; c < 2; c++) sums[q].half[c] = own[q][c];
}

typedef void (*Panel)(Sums sums, const Meeting *m, long count);

#define PANEL(name, queries, narrow)                                                                 \
    static __attribute__((noinline)) void name(Sums sums, const Meeting *m, long count) {            \
        panel(sums, m, count, queries, narrow);                                                      \
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

INLINED void meet(Sums sums, long queries, const Meeting *m, long count, const int narrow) {
    (narrow ? bfloat16 : float32)[queries - 1](sums, m, count);
}

/* Weights in place of the first `count` scores, by their distance from the greatest; returns what they add up to. Weights
 * that meet whole words are bfloat16, one behind the other, and add up as they were rounded. */
INLINED float weigh(float *scores, long count, float scale, const int narrow) {
    floats most = ALL(-INFINITY), sums = {0};
    for (long at = count; at % LANES; at++) scores[at] = -INFINITY;
    for (long at = 0; at < count; at += LANES) most = at_least(*(floats *)(scores + at), most);
    const float top = greatest(most);
    for (long at = 0; at < count; at += LANES) {
        const floats weights = rounded(exponential((*(floats *)(scores + at) - top) * scale), in_words(narrow));
        store_lanes((char *)scores + at * size_of(in_words(narrow)), weights, in_words(narrow));
        sums += weights;
    }
    return total(sums);
}

/* Queries of some key heads, `count` of each, of which `groups` stand at one position, from `start` on. The last see `seen`
 * keys, in `keys` places, which are whole COLUMNS. */
typedef struct {
    long heads, count, groups, start, seen, keys, d;
    long line, next_head;                    /* bytes of a query, and from one head's keys or values to the next one's */
    char *queries;                           /* [heads, count] */
    float *scores, *totals;                  /* [heads, count, keys], [heads, count] */
    Columns *sums;                           /* [heads, parts of d, queries at once] */
    const char **key_blocks, **value_blocks; /* [blocks], of the first of these heads */
} Work;

INLINED long seen_by(const Work *w, long query) { return w->start + query / w->groups + 1; }

INLINED float *scores_of(const Work *w, long head, long query) { return w->scores + (head * w->count + query) * w->keys; }

/* Half of the columns are one block's keys, or half a block's. A block that has no other beside it meets itself: what comes
 * of that stands beyond what any query sees. */
INLINED void score_columns(const Work *w, long head, long at, long first, long queries, const int narrow) {
    Sums sums = {0};
    const long words = w->d * size_of(narrow) / WORD, other = at + LANES < w->seen ? at + LANES : at;
    const char *block = w->key_blocks[at / BLOCK], *second = w->key_blocks[other / BLOCK] + other % BLOCK * WORD;
    const char *x = w->queries + (head * w->count + first) * w->line;
    const Meeting m = {x, &block, w->line, BLOCK * WORD, head * w->next_head, words, second - block};
    meet(sums, queries, &m, words, narrow);
    for (long q = 0; q < queries; q++) memcpy(scores_of(w, head, first + q) + at, sums + q, sizeof *sums);
}

INLINED void score(const Work *w, long first, long queries, const int narrow) {
    const float scale = 1.0f / sqrtf(w->d);
    for (long at = 0; at < seen_by(w, first + queries - 1); at += COLUMNS)
        for (long head = 0; head < w->heads; head++) score_columns(w, head, at, first, queries, narrow);
    for (long head = 0; head < w->heads; head++)
        for (long q = first; q < first + queries; q++)
            w->totals[head * w->count + q] = weigh(scores_of(w, head, q), seen_by(w, q), scale, narrow);
}

/* What the queries from `first` on have to meet the values from the position `at` on, the columns from `column` on. */
INLINED Meeting values_from(const Work *w, long head, long first, long at, long column, const int narrow) {
    const long each = keys_in_word(narrow);
    const char *weights = (char *)scores_of(w, head, first) + at * size_of(in_words(narrow));
    const long offset = head * w->next_head + (at % BLOCK / each * w->d + column) * WORD;
    return (Meeting){weights, w->value_blocks + at / BLOCK, w->keys * sizeof(float), w->d * WORD, offset, BLOCK / each, sizeof(floats)};
}

/* `m`'s first row of y alone, in a copy with zeros behind it where it has fewer than COLUMNS words. Where only the first of
 * the two values in each word is to be seen, the copy is without the others. */
INLINED void meet_copy(Sums sums, long queries, const Meeting *m, long width, const int without, const int narrow) {
    words copy[2] = {{0}};
    const char *row = (char *)copy;
    memcpy(copy, *m->blocks + m->offset, (width < COLUMNS ? width : COLUMNS) * WORD);
    if (without) UNROLLED for (int c = 0; c < 2; c++) copy[c] &= 0xffffu;
    const Meeting alone = {m->x, &row, m->x_line, 0, 0, 1, sizeof *copy};
    meet(sums, queries, &alone, 1, narrow);
}

/* sums += the values of the positions from..until, which begin with a word; of the last word the second may be left out. */
INLINED void mix(Sums sums, const Work *w, long head, long first, long queries, long column, long from, long until, const int narrow) {
    const long each = keys_in_word(narrow), whole = until / each * each;
    for (long at = from, next; at < until; at = next) {
        const Meeting m = values_from(w, head, first, at, column, narrow);
        if (w->d < COLUMNS || at == whole) {
            next = at + each;
            meet_copy(sums, queries, &m, w->d - column, at == whole, narrow);
        } else {
            const long edge = at % BLOCK ? at / BLOCK * BLOCK + BLOCK : whole;
            next = edge < whole ? edge : whole;
            meet(sums, queries, &m, (next - at) / each, narrow);
        }
    }
}

/* The last columns are taken together with some before them, where they alone are fewer than COLUMNS. */
INLINED long column_of(const Work *w, long part) {
    const long column = part * COLUMNS;
    return column + COLUMNS > w->d && w->d >= COLUMNS ? w->d - COLUMNS : column;
}

/* What not all queries see, once for those of one row; then all sums are done. */
INLINED void finish(const Work *w, Columns *sums, long head, long first, long queries, long column, long from, char *out, long line,
                    const int narrow) {
    for (long q = 0, row; q < queries; q += row) {
        const long left = w->groups - (first + q) % w->groups;
        row = left < queries - q ? left : queries - q;
        mix(sums + q, w, head, first + q, row, column, from, seen_by(w, first + q), narrow);
    }
    for (long q = first; q < first + queries; q++) {
        char *to = out + q / w->groups * line + (head * w->groups + q % w->groups) * w->d * size_of(narrow);
        for (int c = 0; c < 2 && column + c * LANES < w->d; c++)
            store(to, column + c * LANES, w->d, sums[q - first].half[c] / w->totals[head * w->count + q], narrow);
    }
}

/* Words that all of these queries see whole are read once for all: of one head at a time from beginning to end, while its
 * sums stay in registers; of several block by block, in the order in which they stand in memory. */
INLINED void gather(const Work *w, char *out, long line, long first, long queries, const int narrow) {
    const long each = keys_in_word(narrow), together = seen_by(w, first) / each * each, parts = (w->d + COLUMNS - 1) / COLUMNS;
    const long step = w->heads > 1 ? BLOCK : together;
    memset(w->sums, 0, w->heads * parts * queries * sizeof *w->sums);
    for (long from = 0, until; from < together; from = until) {
        until = from + step < together ? from + step : together;
        for (long head = 0; head < w->heads; head++)
            for (long part = 0; part < parts; part++)
                mix(w->sums + (head * parts + part) * queries, w, head, first, queries, column_of(w, part), from, until, narrow);
    }
    for (long head = 0; head < w->heads; head++)
        for (long part = 0; part < parts; part++)
            finish(w, w->sums + (head * parts + part) * queries, head, first, queries, column_of(w, part), together, out, line, narrow);
}

/* Queries as words of keys meet them. */
INLINED void lay_out(const Attention *a, const Tile *tile, long head, const Work *w, const int narrow) {
    for (long q = 0; q < w->heads * w->count; q++) {
        const long row = q % w->count / w->groups, own = head + q / w->count;
        const char *query = head_of(a, tile->first + row, own * w->groups + q % w->count % w->groups, narrow);
        char *to = w->queries + q * w->line;
        if (words_for_word(narrow) == 1)
            memcpy(to, query, w->line);
        else
            for (long at = 0; at < a->d; at += LANES) store(to, at, a->d, load(query, at, a->d, narrow), 0);
    }
}

INLINED void find_blocks(const Attention *a, const Tile *tile, long head, const Work *w, const int narrow) {
    for (long block = 0; block * BLOCK < w->seen; block++) {
        const long at = block_of(a, a->tables + tile->table, block * BLOCK, head, narrow);
        w->key_blocks[block] = a->keys + at;
        w->value_blocks[block] = a->values + at;
    }
}

INLINED Work work_of(const Attention *a, const Tile *tile, long heads, char *scratch, const int narrow) {
    const long groups = a->heads / a->kv_heads, count = tile->rows * groups, seen = tile->start + tile->rows, d = a->d;
    const long keys = (seen + COLUMNS - 1) / COLUMNS * COLUMNS, parts = (d + COLUMNS - 1) / COLUMNS;
    const long line = d * size_of(narrow) * words_for_word(narrow), next_head = BLOCK * d * size_of(narrow);
    Work w = {heads, count, groups, tile->start, seen, keys, d, line, next_head, 0, 0, 0, 0, 0, 0};
    w.scores = (float *)scratch;
    w.sums = (Columns *)(w.scores + heads * count * keys);
    w.key_blocks = (const char **)(w.sums + heads * parts * MOST_QUERIES);
    w.value_blocks = w.key_blocks + keys / BLOCK;
    w.totals = (float *)(w.value_blocks + keys / BLOCK);
    w.queries = (char *)(w.totals + heads * count);
    return w;
}

/* The `heads` key heads from `head` on. */
INLINED void attend_heads(const Attention *a, const Tile *tile, long head, long heads, float *scratch, const int narrow) {
    const long size = size_of(narrow);
    const Work w = work_of(a, tile, heads, (char *)scratch, narrow);
    find_blocks(a, tile, head, &w, narrow);
    lay_out(a, tile, head, &w, narrow);
    char *out = a->out + (tile->first * a->heads + head * w.groups) * a->d * size;
    for (long first = 0, height; first < w.count; first += height) {
        const long left = w.count - first, strips = (left + MOST_QUERIES - 1) / MOST_QUERIES;
        height = (left + strips - 1) / strips;
        score(&w, first, height, narrow);
        gather(&w, out, a->heads * a->d * size, first, height, narrow);
    }
}

/* A tile's key heads one by one; but few queries wait for memory, which reads what stands together twice as fast, so that
 * where there are tiles enough for all threads, whoever has the first head of such a tile does them all. */
INLINED void attend_tile(const Attention *a, const Tile *tile, long head, float *scratch, const int narrow) {
    const int is_small = tile->rows * (a->heads / a->kv_heads) <= MOST_QUERIES;
    if (!is_small || (a->tile_count < 2 * a->threads && a->threads > 1))
        attend_heads(a, tile, head, 1, scratch, narrow);
    else if (head == 0)
        attend_heads(a, tile, 0, a->kv_heads, scratch, narrow);
}
