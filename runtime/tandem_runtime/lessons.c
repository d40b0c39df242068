/* Knows the sums of what rounds teach: beliefs about acceptance and costs, and what each K would bring by them.

   Refuses to know why. That is written in `domain/acceptance.py`, `domain/costs.py` and `domain/lessons.py`, which say
   the same in Python: names and order are theirs, and a test holds both together. Nothing here is a rule of its own, and
   no constant: all come from there, when this is compiled. What has been believed is never changed; what follows from it
   is written elsewhere.

   A weight w_j is a whole number of grains, so the powers g^(w_j) of the grid's levels are looked up. */

#include <math.h>
#include <stdint.h>

#include "planes.h"

#define FURTHEST 512 /* grains: g^w is 0 or 1 beyond, to 1e-9; a tilt is within TILTED */

struct lessons {
    double chances[PACES][LEVELS], haunts[LEVELS];
    double together, among; /* Kin */
    double failed, expected; /* Own, of the session that taught this */
    struct plane draft_token, forward, overhead, plain;
    double doubted, plain_doubted, company_since; /* not a number: None */
    int64_t told, positions;
    double tilts[MOST];
};

struct question {
    int64_t minimum, maximum, last, rows; /* `last` below 0: there was none */
    double draft_rows, failed, expected, price, hits, ready, now;
};

struct answer {
    int64_t k; /* 0: no cost of proposals is known */
    double speed_up, doubt, plain_doubt, fixed, draft_token, verify_token, plain_token;
    double survivals[MOST];
};

struct lesson {
    double failed, expected, now, draft_seconds, verify_seconds, forward_seconds, drafting_seconds, seconds;
    int64_t proposed, accepted, cut, unjudged, beside, rows, draft_rows, prefill, warm, waited, prepared, credited;
    double credits[MOST];
};

static const double LOG_GRID[LEVELS] = LOG_GRID_VALUES, PRIOR[LEVELS] = PRIOR_VALUES;
static const double JUMP[PACES] = JUMP_VALUES, DRIFT[PACES] = DRIFT_VALUES;

static double powers[2 * FURTHEST + 1][LEVELS], refused[2 * TILTED + 1][LEVELS], odds[2 * TILTED + 1][LEVELS];
static double jumped[LONGEST_STEP + 1][PACES], climate_kept[LONGEST_STEP + 1];

/* What is looked up. */
void begin(void)
{
    for (int grains = -FURTHEST; grains <= FURTHEST; grains++)
        for (int level = 0; level < LEVELS; level++)
            powers[grains + FURTHEST][level] = exp(exp(grains * GRAIN) * LOG_GRID[level]);
    for (int grains = -TILTED; grains <= TILTED; grains++)
        for (int level = 0; level < LEVELS; level++) {
            double accepted = exp(grains * GRAIN) * LOG_GRID[level];
            refused[grains + TILTED][level] = log1p(-exp(accepted));
            odds[grains + TILTED][level] = accepted - refused[grains + TILTED][level];
        }
    for (int tokens = 0; tokens <= LONGEST_STEP; tokens++) {
        climate_kept[tokens] = pow(CLIMATE_KEPT, tokens);
        for (int pace = 0; pace < PACES; pace++)
            jumped[tokens][pace] = 1 - pow(1 - JUMP[pace], tokens);
    }
}

int64_t size_of_lessons(void) { return sizeof(struct lessons); }
int64_t size_of_answer(void) { return sizeof(struct answer); }

/* Acceptance. */

static double tilt(const struct lessons *of, int position)
{
    if (position < of->positions)
        return of->tilts[position];
    return of->positions ? of->tilts[of->positions - 1] : 0.0;
}

static int grains(double logarithm) { return (int)nearbyint(logarithm / GRAIN); }

static int frailty(const struct lessons *of, double failed, double expected)
{
    double variance = of->together / of->among;
    if (variance < LEAST_VARIANCE)
        return 0;
    return (int)nearbyint(log((1 / variance + failed) / (1 / variance + expected)) / GRAIN);
}

static void survive(const struct lessons *of, int frail, int positions, double *survivals)
{
    double weights[LEVELS];
    for (int level = 0; level < LEVELS; level++) {
        weights[level] = 0;
        for (int pace = 0; pace < PACES; pace++)
            weights[level] += of->chances[pace][level];
    }
    for (int position = 0; position < positions; position++) {
        int weight = grains(tilt(of, position)) + frail;
        weight = weight < -FURTHEST ? -FURTHEST : weight > FURTHEST ? FURTHEST : weight;
        const double *power = powers[weight + FURTHEST];
        double sums[4] = {0};
        for (int level = 0; level < LEVELS; level++) {
            weights[level] *= power[level];
            sums[level % 4] += weights[level];
        }
        survivals[position] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}

static void likelihood_of(const struct lessons *of, double examined, const double *credited, int positions, double *out)
{
    double most = -INFINITY;
    for (int level = 0; level < LEVELS; level++)
        out[level] = 0;
    for (int position = 0; position < positions; position++) {
        int weight = grains(tilt(of, position)) + TILTED;
        for (int level = 0; level < LEVELS; level++)
            out[level] += examined * refused[weight][level] + credited[position] * odds[weight][level];
    }
    for (int level = 0; level < LEVELS; level++)
        most = larger(most, out[level]);
    for (int level = 0; level < LEVELS; level++)
        out[level] = exp(out[level] - most);
}

/* One token: levels drift, and paces change. */
static void drift(double staying[PACES][LEVELS])
{
    double drifted[LEVELS];
    for (int pace = 0; pace < PACES; pace++) {
        double *levels = staying[pace], share = DRIFT[pace];
        if (share == 0)
            continue;
        for (int level = 1; level < LEVELS - 1; level++)
            drifted[level] = (1 - 2 * share) * levels[level] + share * (levels[level - 1] + levels[level + 1]);
        drifted[0] = (1 - share) * levels[0] + share * levels[1];
        drifted[LEVELS - 1] = (1 - share) * levels[LEVELS - 1] + share * levels[LEVELS - 2];
        for (int level = 0; level < LEVELS; level++)
            levels[level] = drifted[level];
    }
    for (int level = 0; level < LEVELS; level++) {
        double all = 0;
        for (int pace = 0; pace < PACES; pace++)
            all += staying[pace][level];
        for (int pace = 0; pace < PACES; pace++)
            staying[pace][level] = (1 - SWITCH) * staying[pace][level] + SWITCH / PACES * all;
    }
}

static void believe(struct lessons *of, const double *likelihood, int tokens)
{
    int step = tokens < LONGEST_STEP ? tokens : LONGEST_STEP;
    double seen[PACES][LEVELS], staying[PACES][LEVELS], jumping[PACES], total = 0, everywhere = 0;
    for (int pace = 0; pace < PACES; pace++)
        for (int level = 0; level < LEVELS; level++)
            total += seen[pace][level] = likelihood[level] * of->chances[pace][level];
    for (int pace = 0; pace < PACES; pace++) {
        double there = 0;
        for (int level = 0; level < LEVELS; level++) {
            seen[pace][level] /= total;
            there += seen[pace][level];
            staying[pace][level] = (1 - jumped[step][pace]) * seen[pace][level];
        }
        jumping[pace] = jumped[step][pace] * there;
        everywhere += there;
    }
    for (int token = 0; token < step; token++)
        drift(staying);
    for (int level = 0; level < LEVELS; level++) {
        double here = 0;
        for (int pace = 0; pace < PACES; pace++) {
            of->chances[pace][level] = jumping[pace] * of->haunts[level] + staying[pace][level];
            here += seen[pace][level];
        }
        double gained = CLIMATE_SHARE * here + (1 - CLIMATE_SHARE) * PRIOR[level] * everywhere;
        of->haunts[level] = climate_kept[step] * of->haunts[level] + (1 - climate_kept[step]) * gained;
    }
}

static void tilt_by(struct lessons *of, const double *credits, const double *survivals, int tokens)
{
    for (int position = (int)of->positions; position < tokens; position++)
        of->tilts[position] = tilt(of, (int)of->positions);
    if (tokens > of->positions)
        of->positions = tokens;
    for (int position = 0; position < tokens; position++) {
        double before = position ? survivals[position - 1] : 1.0;
        double chance = before != 0 ? survivals[position] / before : 0.0;
        double moved = TILT_KEPT * of->tilts[position] + TILT_STEP * (chance - credits[position]);
        of->tilts[position] = -TILT_MOST < moved && moved < TILT_MOST ? moved : copysign(TILT_MOST, moved);
    }
}

static void record(struct lessons *of, double tokens, double failed, double expected)
{
    double kept = pow(KIN_KEPT, tokens), own_kept = pow(OWN_KEPT, tokens);
    of->together = of->together * kept + (of->failed - of->expected) * (failed - expected);
    of->among = of->among * kept + of->expected * expected;
    of->failed = of->failed * own_kept + failed;
    of->expected = of->expected * own_kept + expected;
}

static void observe(struct lessons *of, const struct lesson *by)
{
    double credits[MOST], survivals[MOST], likelihood[LEVELS], stood = 0, expected = 0;
    int judged = (int)(by->proposed - by->unjudged), tokens = (int)by->credited;
    if (!tokens)
        tokens = (int)by->accepted + (by->accepted + by->cut < judged);
    if (tokens <= 0)
        return;
    if (tokens > MOST) /* nobody proposes as many; memory ends here all the same */
        tokens = MOST;
    survive(of, 0, tokens, survivals);
    for (int position = 0; position < tokens; position++) {
        double before = position ? survivals[position - 1] : 1.0;
        credits[position] = by->credited ? by->credits[position] : position < by->accepted;
        stood += credits[position];
        expected += before != 0 ? survivals[position] / before : 0.0;
    }
    likelihood_of(of, 1.0, credits, tokens, likelihood);
    believe(of, likelihood, tokens);
    tilt_by(of, credits, survivals, tokens);
    record(of, tokens, tokens - stood, tokens - expected);
    of->told++;
}

/* After some first guesses, evenly among them. */
void hear(const struct lessons *before, struct lessons *after, double matched, double examined)
{
    double likelihood[LEVELS];
    *after = *before;
    if (!examined)
        return;
    double pieces = smaller(ceil(examined / PIECE), MOST_PIECES), credited = matched / pieces;
    likelihood_of(after, examined / pieces, &credited, 1, likelihood);
    for (int piece = 0; piece < pieces; piece++)
        believe(after, likelihood, (int)nearbyint(examined / pieces));
    after->told++;
}

/* Costs. */

static void loosen_costs(struct lessons *of)
{
    loosen_plane(&of->draft_token);
    loosen_plane(&of->forward);
    loosen_plane(&of->overhead);
    loosen_plane(&of->plain);
    of->doubted = 1;
}

static int tells_costs(const struct lesson *of)
{
    if (of->prefill || (of->proposed && !of->warm))
        return 0;
    double all = of->seconds + of->verify_seconds + of->forward_seconds + of->draft_seconds + of->drafting_seconds;
    return all < INFINITY && of->seconds >= 0 && of->verify_seconds >= 0 && of->forward_seconds >= 0 &&
           of->draft_seconds >= 0 && of->drafting_seconds >= 0;
}

static int near(double seconds, double usual)
{
    return usual / OUTLIER_FACTOR <= seconds && seconds <= usual * OUTLIER_FACTOR;
}

static double guesses(const struct lesson *of)
{
    return (double)(of->proposed - of->unjudged + of->beside) / of->rows;
}

static int is_unlike(const struct lessons *known, const struct lesson *of)
{
    if (!of->proposed)
        return known->plain.known && !near(of->seconds, seconds_of(&known->plain, 0, of->rows));
    if (!known->draft_token.known || !known->forward.known || !known->overhead.known)
        return 0;
    double fixed = larger(known->overhead.level, 0.0) + seconds_of(&known->forward, 0, of->rows);
    double guess = larger(known->forward.per_token, 0.0);
    double draft = of->prepared ? 0.0 : seconds_of(&known->draft_token, 0, of->draft_rows);
    return !near(of->seconds, fixed + guess * guesses(of) + draft * of->proposed);
}

static void follow_plain(struct lessons *known, const struct lesson *of, int unlike)
{
    double since = !of->beside ? NAN : isnan(known->company_since) ? of->now : smaller(known->company_since, of->now);
    int bounds = of->waited || (!isnan(since) && of->now - since < COMPANY_SECONDS);
    known->company_since = since;
    if (bounds && !known->plain.known) {
        if (of->beside)
            return;
        begin_plane(&known->plain, of->seconds, 0, of->rows, of->now, 0.0);
        loosen_plane(&known->plain);
        return;
    }
    if (bounds && of->seconds > seconds_of(&known->plain, 0, of->rows))
        return;
    if (unlike && !known->plain_doubted) {
        known->plain_doubted = 1;
        return;
    }
    if (unlike)
        loosen_costs(known);
    learn(&known->plain, of->seconds, 0, of->rows, of->now, 0.0);
    known->plain_doubted = 0;
}

static void follow_proposals(struct lessons *known, const struct lesson *of)
{
    double forward = of->forward_seconds != 0 ? of->forward_seconds : of->verify_seconds;
    double drafting = of->drafting_seconds != 0 ? of->drafting_seconds : of->draft_seconds;
    if (!of->prepared)
        learn(&known->draft_token, drafting / of->proposed, 0, of->draft_rows, of->now, ROW_SHARE);
    learn(&known->forward, forward, guesses(of), of->rows, of->now, 0.0);
    double beside = larger(of->seconds - drafting - forward, 0.0);
    if (!(known->overhead.known && of->waited && beside > known->overhead.level))
        learn(&known->overhead, beside, 0, 1, of->now, 0.0);
    known->doubted = 0;
    known->company_since = NAN;
}

static void follow(struct lessons *known, const struct lesson *of)
{
    if (!tells_costs(of))
        return;
    int unlike = is_unlike(known, of);
    if (!of->proposed) {
        follow_plain(known, of, unlike);
        return;
    }
    if (unlike && !known->doubted) {
        known->doubted = 1;
        return;
    }
    if (unlike)
        loosen_costs(known);
    follow_proposals(known, of);
}

/* After one more round, of a session with that record; the record that it has then is in what follows. */
void teach(const struct lessons *before, struct lessons *after, const struct lesson *by)
{
    *after = *before;
    after->failed = by->failed;
    after->expected = by->expected;
    if (by->proposed)
        observe(after, by);
    follow(after, by);
}

/* Which the next few rounds can change. */
void loosen(const struct lessons *before, struct lessons *after, int acceptance, int costs)
{
    *after = *before;
    if (costs)
        loosen_costs(after);
    if (!acceptance)
        return;
    for (int pace = 0; pace < PACES; pace++)
        for (int level = 0; level < LEVELS; level++)
            after->chances[pace][level] = (1 - OPEN) * after->chances[pace][level] + OPEN / PACES * after->haunts[level];
    after->told++;
}

/* What each K would bring. */

static int price(const struct lessons *known, const struct question *of, struct answer *to)
{
    if (!fresh(&known->draft_token, of->now) || !fresh(&known->forward, of->now))
        return 0;
    double verify = seconds_of(&known->forward, 0, of->rows);
    to->fixed = (known->overhead.known ? larger(known->overhead.level, 0.0) : 0.0) + verify;
    to->draft_token = seconds_of(&known->draft_token, 0, of->draft_rows);
    to->verify_token = larger(known->forward.per_token, 0.0);
    to->plain_token = -1.0;
    to->plain_doubt = INFINITY;
    to->doubt = 0.0;
    if (fresh(&known->plain, of->now)) {
        to->plain_token = seconds_of(&known->plain, 0, of->rows);
        to->plain_doubt = doubt_of(&known->plain, to->plain_token, of->rows, of->now);
        to->doubt = strangeness_of(&known->forward, verify, of->rows);
    }
    return 1;
}

static double baseline(const struct answer *costs)
{
    return at_least(LEAST_SECONDS, costs->plain_token < 0 ? costs->fixed : costs->plain_token);
}

static double cost(const struct question *of, const struct answer *costs, int k)
{
    double seconds = costs->fixed + k * (costs->draft_token + costs->verify_token);
    if (of->hits)
        seconds -= of->hits * smaller(k, of->ready) * costs->draft_token;
    return at_least(LEAST_SECONDS, seconds);
}

static double next_token(const struct question *of, const struct answer *costs, int k)
{
    double left = of->ready - k;
    if (!of->hits || left <= 0)
        return costs->draft_token + costs->verify_token;
    return costs->verify_token + costs->draft_token * (1 - of->hits * (left < 1 ? left : 1.0));
}

static double judged(const struct question *of, const struct answer *to, int position)
{
    return to->survivals[position] >= of->price ? to->survivals[position] : 0.0;
}

static double expected_of(const struct question *of, const struct answer *to, int k)
{
    double sum = 0;
    for (int position = 0; position < k; position++)
        sum += judged(of, to, position);
    return 1 + sum;
}

static void find_best(const struct question *of, struct answer *to)
{
    int most = (int)of->maximum, last = (int)of->last, least = of->minimum > 1 ? (int)of->minimum : 1;
    if (least > most)
        least = most;
    int k = least;
    double expected = expected_of(of, to, least), seconds = cost(of, to, least);
    while (k < most) {
        double further = next_token(of, to, k), survival = judged(of, to, k);
        if (survival * seconds <= further * expected)
            break;
        expected += survival;
        seconds += further;
        k++;
    }
    to->k = k;
    to->speed_up = baseline(to) * expected / seconds;
    if (last != k && least <= last && last <= most) {
        double as_before = baseline(to) * expected_of(of, to, last) / cost(of, to, last);
        if (to->speed_up <= as_before * (1 + HYSTERESIS)) {
            to->k = last;
            to->speed_up = as_before;
        }
    }
    double seconds_at_most = to->fixed + to->k * to->verify_token;
    if (to->plain_token > seconds_at_most)
        to->speed_up = to->speed_up * seconds_at_most / to->plain_token;
}

void weigh(const struct lessons *known, const struct question *of, struct answer *to)
{
    survive(known, frailty(known, of->failed, of->expected), (int)of->maximum, to->survivals);
    if (price(known, of, to))
        find_best(of, to);
    else
        to->k = 0;
}
