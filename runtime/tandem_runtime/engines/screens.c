/* The two passes over a whole row that a coupled choice makes: see screens.py and coupling.py.
 *
 * Knows no requests, and decides nothing.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, BLOCK = 16 * LANES };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t halves __attribute__((vector_size(4 * LANES)));

#define INLINED static inline __attribute__((always_inline))

typedef struct {
    uint64_t lucky, luckier;
    double reach, further_reach, slack;
} Bounds;

/* The token of the largest score logit / T + g among `tokens` [count], ascending, all of `row` where they are 0; -1 if
 * another score comes within `slack` of it. At first the best is the `likeliest`, which is one of them, by its score
 * `best`; those below `floor` cannot win. `mixes` are mix(token). Others than lucky words have noise below `reach`, and
 * than luckier ones below `further_reach`, so only few tokens get logarithms. The lower 33 bits of both are 0: the
 * mixer's last step leaves the upper 31 as they are, so it is made late. */
long winner(const float *row, const uint64_t *mixes, const int64_t *tokens, long count, uint64_t position_key,
            double temperature, float floor, long likeliest, double best, const Bounds *bounds) {
    const uint64_t lucky = bounds->lucky, luckier = bounds->luckier;
    float near = (best - bounds->slack - bounds->reach) * temperature;
    float hopeful = (best - bounds->slack - bounds->further_reach) * temperature;
    double second = -__builtin_inf();
    long chosen = likeliest;
    for (long at = 0; at < count; at++) {
        const long token = tokens ? tokens[at] : at;
        const float logit = row[token];
        if (logit < floor) continue;
        uint64_t word = (mixes[token] ^ position_key) + 0x9E3779B97F4A7C15u;
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
        word = (word ^ word >> 27) * 0x94D049BB133111EBu;
        if (__builtin_expect(word < lucky && logit < near, 1)) continue;
        if ((word < luckier && logit < hopeful) || token == likeliest) continue;
        word ^= word >> 31;
        const double score = logit / temperature - log(-log(((word >> 12) + 0.5) * 0x1p-52));
        if (score <= best) {
            second = score > second ? score : second;
            continue;
        }
        second = best;
        best = score;
        chosen = token;
        near = (best - bounds->slack - bounds->reach) * temperature;
        hopeful = (best - bounds->slack - bounds->further_reach) * temperature;
    }
    return second >= best - bounds->slack ? -1 : chosen;
}

/* 2^y for -125 <= y <= 0, else 0. y = n + f with n the nearest integer, which adding 1.5 x 2^23 leaves in the lowest bits;
 * 2^f by its Taylor series to f^4, off by less than (ln 2 / 2)^5 / 5! / 2^-1/2 < 2^-14 of itself. */
INLINED floats power(floats y) {
    const floats shifted = y + 12582912.0f, f = y - (shifted - 12582912.0f);
    floats series = f * 9.6181291e-3f + 5.5504109e-2f;
    series = series * f + 2.4022651e-1f;
    series = series * f + 6.9314718e-1f;
    series = series * f + 1.0f;
    return (floats)(((halves)series + ((halves)shifted << 23)) & (halves)(y >= -125.0f));
}

/* Adds up to BLOCK weights in float32, then all of them to the sums. `equal`: does a logit of `limit` rank before it? */
INLINED void weigh_block(const float *row, long count, float peak, float scale, float limit, const int equal, double *sums) {
    floats before = {0}, total = {0};
    for (long at = 0; at < count; at += LANES) {
        floats logits;
        if (at + LANES <= count)
            memcpy(&logits, row + at, sizeof logits);
        else {
            logits = (floats){0} - __builtin_inff();
            memcpy(&logits, row + at, (count - at) * sizeof *row);
        }
        const floats weight = power((logits - peak) * scale);
        total += weight;
        before += (floats)((halves)weight & (halves)(equal ? logits >= limit : logits > limit));
    }
    for (int lane = 0; lane < LANES; lane++) {
        sums[0] += before[lane];
        sums[1] += total[lane];
    }
}

INLINED void weigh(const float *row, long count, float peak, float scale, float limit, const int equal, double *sums) {
    for (long at = 0; at < count; at += BLOCK)
        weigh_block(row + at, count - at < BLOCK ? count - at : BLOCK, peak, scale, limit, equal, sums);
}

/* The share of the mass of `row` [count] that ranks before `place`: 2^(scale (logit - peak)) each, ties by the lower
 * place. `peak` is the row's maximum. */
double share_before(const float *row, long count, float peak, float scale, long place) {
    const float limit = row[place];
    double sums[2] = {0, 0};
    weigh(row, place, peak, scale, limit, 1, sums);
    weigh(row + place, count - place, peak, scale, limit, 0, sums);
    return sums[0] / sums[1];
}
