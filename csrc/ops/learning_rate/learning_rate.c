/*
 * learning_rate.c - Polyak's rate, the user's rate, and the evidence between them.
 *
 * The user's rate is kept, to the bit, until the smoothed rate of Polyak exceeds 2.2
 * times it (RIVAL_ABOVE) or falls below a third of it (RIVAL), and again once the two
 * have crossed. Below Polyak's, the rate rises while the loss falls by more than
 * chance, and returns to the user's while it does not. Above Polyak's, it follows that
 * down, and falls further while the loss rises. Losses well above the first one take
 * the rate back to the user's, or lower where Polyak's is lower or losses explode.
 *
 * Clipping and schedules shorten steps, which makes Polyak's rate higher. The rate
 * ignores both: it neither compensates for them nor follows them down.
 */
#include "ops/learning_rate/learning_rate.h"

#include <math.h>

/* Weights of what is new in running averages, by how many steps they look back. */
#define STEPS_5  0.2
#define STEPS_10 0.1
#define STEPS_20 0.05
#define STEPS_50 0.02

/* Chosen on other seeds than `bench lr` reports. All but FIRST_STEPS, FIRST_RIVAL,
 * FALLING, LAST_RIVAL and RECENT were tried on other batch sizes and budgets too. */
#define RIVAL        1.0986122886681098 /* log 3 */
#define RIVAL_ABOVE  0.78845736036427   /* log 2.2: upwards, where losses are known */
#define FIRST_STEPS  12.0               /* their ratios say little */
#define FIRST_RIVAL  2.4  /* more than RIVAL_ABOVE at the first, and less with each */
#define FALLING      0.15 /* latest ratio below the smoothed, by which none rises */
#define LAST_RIVAL   0.6  /* more than RIVAL as losses come to nothing */
#define GONE         0.1  /* of the first loss, from where on they do */
#define RECENT       1.5  /* weight of the latest loss in the trend, times all steps */
#define STRIDE       0.1  /* change of the exponent in a step */
#define FAR          0.5  /* faster, for each power of e beyond the first */
#define SEEN         0.2  /* fall of the loss, of the first, that shows steps at work */
#define STILL        1e-3 /* of the loss: added to chance as steps are seen */
#define LOWEST_SHARE 2.0794415416798357 /* log 8: of Polyak's rate, while losses rise */
#define CHANCE       1.0                /* standard deviations that count as evidence */
#define LOG_10       2.302585092994046
#define TOO_HIGH     1.2  /* of the first loss */
#define SPIKE        10.0 /* of the first loss, out of all proportion to it */
#define RECOVERY     0.01 /* of the ceiling, in a step */
#define FLOOR_SHARE  0.8  /* of the lowest loss, that a floor is at most */
#define PROGRESS     0.2  /* fall of fast below slow loss at which no floor counts */
#define TINY         1e-30
#define LARGE        1e150 /* of losses and sums; their squares are numbers still */
#define BEYOND       1e300 /* finite, so that it can be saved as any number */

/* Standard deviation of fast minus slow average of independent numbers of deviation 1:
 * sqrt(a / (2 - a) + b / (2 - b) - 2ab / (a + b - ab)), a and b the two weights. In the
 * first 75 steps the trend looks back less far, and in the first ten less than fast:
 * rates wait there while losses fall. */
#define DEVIATION 0.16980660753820143

static double clip(double x, double low, double high)
{
    return fmin(fmax(x, low), high);
}

static double log_ratio(double above, double below)
{
    return log(clip(above / below, TINY, BEYOND));
}

/* Whether the sum can be used. */
static bool is_some(double sum)
{
    return sum > 0 && sum <= LARGE;
}

/* A running average from its weighted sum, which began at zero. */
static double average(double sum, double weight, double n)
{
    return sum / (1 - pow(1 - weight, n));
}

static void add(double *sum, double weight, double value)
{
    *sum += weight * (value - *sum);
}

/*
 * The floor that loss would reach where the root of descent, which is linear in the
 * gradient, reaches zero; extrapolated from the two averages. Near a minimum descent
 * falls with the loss itself rather than its square, and the estimate stays below the
 * floor, on the safe side.
 */
static double extrapolated_floor(const ptac_rate *r, double fast, double slow)
{
    const double fast_root = average(r->fast_root, STEPS_10, r->n_steps);
    const double slow_root = average(r->slow_root, STEPS_50, r->n_steps);
    const double fall = slow - fast;
    const double slope = (slow_root - fast_root) / (fabs(fall) < 1e-12 ? 1e-12 : fall);
    const double found = slope > 0 ? fast - fast_root / fmax(slope, 1e-12) : r->floor;

    return clip(found, 0, FLOOR_SHARE * r->lowest);
}

/* The share of the loss that lies above the floor, while little progress is made. */
static double share_above_floor(const ptac_rate *r, double fast, double slow)
{
    const double doubt = clip(1 - (1 - fast / fmax(slow, 1e-12)) / PROGRESS, 0, 1);

    return 1 - doubt * clip(r->floor / fmax(r->loss, 1e-12), 0, 0.95);
}

/* Above which a ratio raises the rate. */
static double rival_above(const ptac_rate *r)
{
    return RIVAL_ABOVE + FIRST_RIVAL * fmax(0, 1 - r->n_steps / FIRST_STEPS);
}

/*
 * Below which, negated, a ratio lowers the rate. A rate that has brought the loss near
 * zero is no bad one; few batches then have large gradients, and stand for all.
 */
static double rival_below(const ptac_rate *r, double fast)
{
    return RIVAL + LAST_RIVAL * fmax(0, 1 - fast / (GONE * r->first_loss));
}

/*
 * Where the rate may move: decided by smoothed ratios, left when these cross zero. The
 * latest is that of a few steps: where it falls away, nothing is raised by what was.
 */
static double next_side(const ptac_rate *r, double above, double below, double latest)
{
    if (r->above > above && latest > r->above - FALLING)
        return 1;
    if (r->below < -below)
        return -1;
    if ((r->side > 0 && r->above < 0) || (r->side < 0 && r->below > 0))
        return 0;
    return r->side;
}

/* What the rate is at least, however losses rise. */
static double lowest(const ptac_rate *r, double polyak)
{
    return r->side < 0 ? fmin(polyak, 0) - LOWEST_SHARE : 0;
}

/* How far losses have fallen, of what it takes for steps to be seen in them. */
static double seen(const ptac_rate *r)
{
    return clip((1 - r->lowest / r->first_loss) / SEEN, 0, 1);
}

static double moved_up(const ptac_rate *r, double polyak, double evidence,
                       double most_growth)
{
    /* Far below Polyak's rate steps may be too small to be seen in the losses: within a
     * factor of 10 these have to fall for more, from 100 on it is enough that they do
     * not rise. Once losses have fallen, steps are seen: what stands still now is at
     * its minimum, where Polyak's rate knows no bound. */
    const double distance = polyak - r->exponent;
    const double far = clip((distance - LOG_10) / LOG_10, 0, 1) * (1 - seen(r));
    double stride = clip(evidence - CHANCE * (1 - 2 * far), -2, 1) * STRIDE;

    if (stride > 0)
        stride *= 1 + FAR * fmax(distance - 1, 0);
    return clip(r->exponent + fmin(stride, most_growth), 0, fmax(polyak, 0));
}

static double moved_down(const ptac_rate *r, double polyak, double evidence,
                         bool falls_by_evidence)
{
    const double top = falls_by_evidence ? 0 : fmin(polyak, 0);
    const double stride = evidence < -CHANCE ? -STRIDE : STRIDE / 2;

    return clip(r->exponent + stride, lowest(r, polyak), top);
}

static bool is_too_high(const ptac_rate *r, double fast)
{
    return fast > TOO_HIGH * r->first_loss;
}

/* Whether losses take this exponent back: the user's only where Polyak's is lower. */
static bool takes_back(const ptac_rate *r, double exponent, double fast)
{
    return is_too_high(r, fast) && (r->side < 0 || exponent > 0);
}

/*
 * Take the rate back while losses are above the first; then let it recover slowly. What
 * the user's own rate leads to is nothing to take back. (Nor is what the lowest rate
 * does, it seems; but a first loss that followed it would follow any rise, in time.)
 */
static void limit(ptac_rate *r, double fast, double polyak, double most_exponent)
{
    const double least = fmax(lowest(r, polyak), -most_exponent);

    if (is_too_high(r, fast)) {
        if (!takes_back(r, r->exponent, fast))
            add(&r->first_loss, STEPS_20, fast);
        r->ceiling = fmax(fmin(r->ceiling, r->exponent) - 2 * STRIDE, least);
    } else {
        r->ceiling += RECOVERY;
    }
}

/*
 * A loss that a raised rate has led to, so high that the user's own could make the next
 * one infinite: the step goes by Polyak's rate of this loss alone, from where the rate
 * grows again. Not of Adam's kind, whose steps do not grow with gradients.
 */
static double within_spike(const ptac_rate *r, double loss, double exponent,
                           const ptac_rate_input *input)
{
    if (loss <= SPIKE * r->first_loss || exponent <= 0 || input->falls_by_evidence)
        return r->exponent;
    return fmin(r->exponent, log_ratio(loss, input->descent));
}

double ptac_rate_multiplier(const ptac_rate *rate)
{
    return exp(rate->exponent);
}

double ptac_rate_next(ptac_rate *r, const ptac_rate_input *input)
{
    const double loss = input->loss - input->known_floor;
    const double descent = input->descent, most_descent = input->most_descent;
    const double exponent = r->exponent;
    double before, fast, slow, chance, evidence, share, polyak, lower, side;
    bool did_take_back;

    if (!is_some(loss) || !is_some(descent) || !is_some(most_descent))
        return ptac_rate_multiplier(r);
    if (r->n_steps == 0) {
        r->loss = r->first_loss = r->trend = loss;
        r->descent = descent;
        r->most_descent = most_descent;
        r->lowest = BEYOND;
        r->ceiling = BEYOND;
    }
    before = r->n_steps > 0 ? average(r->fast_loss, STEPS_10, r->n_steps) : loss;
    r->n_steps += 1;
    add(&r->loss, STEPS_5, loss);
    add(&r->descent, STEPS_5, descent);
    add(&r->most_descent, STEPS_5, most_descent);
    add(&r->variance, STEPS_50, (loss - before) * (loss - before));
    add(&r->fast_loss, STEPS_10, loss);
    add(&r->slow_loss, STEPS_50, loss);
    add(&r->trend, fmax(STEPS_50, RECENT / (r->n_steps + RECENT - 1)), loss);
    add(&r->fast_root, STEPS_10, sqrt(most_descent));
    add(&r->slow_root, STEPS_50, sqrt(most_descent));
    fast = average(r->fast_loss, STEPS_10, r->n_steps);
    slow = average(r->slow_loss, STEPS_50, r->n_steps);
    r->lowest = fmin(r->lowest, slow);
    chance = DEVIATION * sqrt(average(r->variance, STEPS_50, r->n_steps));
    evidence = (r->trend - fast) / (chance + STILL * slow * seen(r) + 1e-12);
    add(&r->floor, STEPS_50, extrapolated_floor(r, fast, slow));

    share = share_above_floor(r, fast, slow);
    polyak = log_ratio(r->loss * share, r->most_descent);
    lower = log_ratio(r->loss * share, r->descent);
    add(&r->above, fmax(STEPS_20, 1 / r->n_steps), polyak);
    add(&r->below, fmax(STEPS_20, 1 / r->n_steps), log_ratio(r->loss, r->descent));
    did_take_back = takes_back(r, exponent, before);
    side = r->side = next_side(r, rival_above(r), rival_below(r, fast), polyak);
    if (side > 0)
        r->exponent = moved_up(r, polyak, evidence, input->most_growth);
    else if (side < 0)
        r->exponent = moved_down(r, lower, evidence, input->falls_by_evidence);
    else
        r->exponent = clip(0, r->exponent - STRIDE, r->exponent + STRIDE);
    if (takes_back(r, fmin(r->exponent, exponent), fast) && !did_take_back)
        r->n_rollbacks += 1;
    limit(r, fast, lower, input->most_exponent);
    r->exponent = fmin(r->exponent, fmin(r->ceiling, exponent + input->most_growth));
    r->exponent = within_spike(r, loss, exponent, input);
    r->exponent = clip(r->exponent, -input->most_exponent, input->most_exponent);
    return ptac_rate_multiplier(r);
}

double ptac_rate_next_free(ptac_rate *r, double squares, double distance, double lr,
                           const ptac_rate_input *input)
{
    const double smallest = 1e-4; /* a first movement, as the authors' r_epsilon */
    double dog, target;

    if (!is_some(squares) || !(fabs(distance) <= LARGE) || !(lr > 0 && isfinite(lr)))
        return ptac_rate_multiplier(r);
    r->n_free += 1;
    r->squares += squares;
    r->distance = fmax(fmax(r->distance, distance), smallest);
    dog = log_ratio(r->distance, sqrt(r->squares) * lr);
    if (r->n_free > 1)
        add(&r->above, STEPS_20, dog);
    r->below = r->above;
    r->side = next_side(r, RIVAL, RIVAL, r->above);
    target = r->side > 0 ? fmax(dog, 0) : r->side < 0 ? fmin(dog, 0) : 0;
    target = fmin(target, r->exponent + fmin(STRIDE, input->most_growth));
    r->exponent = clip(target, -input->most_exponent, input->most_exponent);
    return ptac_rate_multiplier(r);
}
