/* Knows what one cost is believed to be, a plane over K and the batch, and how a sample moves it.

   Refuses to know which costs there are, and why: `domain/costs.py` says the same in Python (see `lessons.c`). */
#pragma once

#include <math.h>

#define NOISE_VARIANCE (NOISE * NOISE)
#define SAMPLE_VARIANCE (WALK_PER_SAMPLE * WALK_PER_SAMPLE)
#define SECOND_VARIANCE (WALK_PER_SECOND * WALK_PER_SECOND)
#define SLOPE_VARIANCE (SLOPE_WALK * SLOPE_WALK)

struct plane {
    double level, per_token, per_session, p00, p01, p02, p11, p12, p22, at, known;
};

/* As max and min of Python, also where one is not a number. */
static double larger(double one, double other) { return other > one ? other : one; }
static double smaller(double one, double other) { return other < one ? other : one; }
/* And as its comparisons. */
static double at_least(double least, double x) { return x > least ? x : least; }
static double square(double x) { return x * x; }

static double seconds_of(const struct plane *of, double k, double rows)
{
    double level = of->level, per_token = of->per_token, per_session = of->per_session;
    if (per_token < 0) {
        level -= of->p01 / of->p11 * per_token;
        per_session -= of->p12 / of->p11 * per_token;
        per_token = 0.0;
    }
    if (per_session < 0) {
        level -= of->p02 / of->p22 * per_session;
        per_session = 0.0;
    }
    return at_least(0.0, level + per_token * k + per_session * (rows - 1));
}

static double doubt_of(const struct plane *of, double seconds, double rows, double now)
{
    double x = rows - 1, walked = SECOND_VARIANCE * larger(now - of->at, 0.0);
    double variance = larger(of->p00 + 2 * of->p02 * x + of->p22 * x * x, 0.0);
    return sqrt(variance / square(larger(seconds, LEAST_SECONDS)) + walked);
}

static double strangeness_of(const struct plane *of, double seconds, double rows)
{
    if (of->p22 <= 0)
        return 0.0;
    return sqrt(of->p22) * fabs(rows - 1 + of->p02 / of->p22) / larger(seconds, LEAST_SECONDS);
}

static int fresh(const struct plane *of, double now) { return of->known && now - of->at <= AGE_LIMIT_SECONDS; }

static void loosen_plane(struct plane *of) { of->p00 = larger(of->p00, square(LOOSE * of->level)); }

static void begin_plane(struct plane *of, double seconds, double k, double rows, double now, double row_share)
{
    double noise = square(NOISE * seconds), slope = square(SLOPE_DOUBT * seconds);
    double others = rows - 1, level = seconds / (1 + row_share * others);
    *of = (struct plane){
        level, 0.0, row_share * level,
        noise + slope * (k * k + others * others), -slope * k, -slope * others,
        slope, 0.0, slope, now, 1.0,
    };
}

static void learn(struct plane *of, double seconds, double k, double rows, double now, double row_share)
{
    if (!of->known) {
        begin_plane(of, seconds, k, rows, now, row_share);
        return;
    }
    struct plane p = *of;
    double x = rows - 1, elapsed = now > p.at ? now - p.at : 0.0;
    double predicted = p.level + p.per_token * k + p.per_session * x;
    double scale = square(larger(larger(predicted, seconds / OUTLIER_FACTOR), LEAST_SECONDS));
    double walk = x > MANY ? WALK_PER_SAMPLE / x : SLOPE_WALK;
    p.p00 += scale * (SAMPLE_VARIANCE + SECOND_VARIANCE * elapsed);
    p.p11 += scale * SLOPE_VARIANCE;
    p.p22 += scale * walk * walk;
    if (k == 0 && p.p01 == 0 && p.p12 == 0) { /* K never was another: this sample tells nothing of s_K */
        double u = p.p00 + p.p02 * x, w = p.p02 + p.p22 * x, total = u + w * x + scale * NOISE_VARIANCE;
        double miss = (seconds - p.level - p.per_session * x) / total;
        *of = (struct plane){
            p.level + u * miss, p.per_token, p.per_session + w * miss,
            p.p00 - u * u / total, p.p01, p.p02 - u * w / total,
            p.p11, p.p12, p.p22 - w * w / total, p.at + elapsed, 1.0,
        };
        return;
    }
    double u = p.p00 + p.p01 * k + p.p02 * x, v = p.p01 + p.p11 * k + p.p12 * x, w = p.p02 + p.p12 * k + p.p22 * x;
    double total = u + v * k + w * x + scale * NOISE_VARIANCE;
    double miss = (seconds - p.level - p.per_token * k - p.per_session * x) / total;
    *of = (struct plane){
        p.level + u * miss, p.per_token + v * miss, p.per_session + w * miss,
        p.p00 - u * u / total, p.p01 - u * v / total, p.p02 - u * w / total,
        p.p11 - v * v / total, p.p12 - v * w / total, p.p22 - w * w / total, p.at + elapsed, 1.0,
    };
}
