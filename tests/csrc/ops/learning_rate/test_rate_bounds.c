/*
 * test_rate_bounds.c - what holds for learning rates whatever comes, for their states,
 * and for rates without losses.
 */
#include "random.h"
#include "rate_course.h"
#include "unit.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double step_free(course *c, double squares, double distance, double lr)
{
    const ptac_rate_input input = {
        .most_exponent = c->most_exponent,
        .most_growth = c->most_growth,
    };

    return ptac_rate_next_free(&c->rate, squares, distance, lr, &input);
}

static bool is_finite(const ptac_rate *rate)
{
    double numbers[PTAC_RATE_NUMBERS];

    memcpy(numbers, rate, sizeof numbers);
    for (int i = 0; i < PTAC_RATE_NUMBERS; i++)
        if (!isfinite(numbers[i]))
            return false;
    return true;
}

/* Any number at all, of either sign and size, now and then none. */
static double anything(rng *r)
{
    double number;

    fill_reals(r, PTAC_F64, &number, 1);
    return rng_chance(r, 70) ? fabs(number) : number;
}

/* What losses and descents are in earnest, over many magnitudes. */
static double something(rng *r)
{
    return ldexp(1, (int)rng_between(r, -30, 30)) * (double)rng_between(r, 1, 999);
}

UNIT(rates_stay_within_their_bounds)
{
    static const double mosts[] = {0, LOG_8, LOG_1E9};
    static const double growths[] = {LOG_1_05, LOG_1_5, 50};
    rng r = {11};

    for (int walk = 0; walk < 600; walk++) {
        const bool is_ill_conditioned = rng_chance(&r, 50),
                   is_free = rng_chance(&r, 30);
        double (*const draw)(rng *) = is_ill_conditioned ? anything : something;
        course c = {.most_exponent = mosts[walk % 3],
                    .most_growth = growths[walk / 3 % 3]};
        const double highest = exp(c.most_exponent) * (1 + 1e-12);
        const double growth = exp(c.most_growth) * (1 + 1e-12);
        double last = 1;
        bool was_below = false;

        c.falls_by_evidence = rng_chance(&r, 50);
        for (int i = 0; i < 200; i++) {
            const double a = draw(&r), b = draw(&r), d = draw(&r);
            const double now = is_free ? step_free(&c, a, b, d) : step_of(&c, a, b, d);

            EXPECT(now >= 1 / highest && now <= highest);
            EXPECT(now <= last * growth);
            EXPECT(now == ptac_rate_multiplier(&c.rate));
            EXPECT(c.rate.side >= 0 || now <= 1);
            was_below |= c.rate.side < 0;
            EXPECT(was_below || c.rate.ceiling >= 0);
            EXPECT(is_finite(&c.rate)); /* checkpoints hold it, as text too */
            last = now;
        }
    }
}

/* Below what exponents can be, a ceiling would only take steps to come back from. */
UNIT(ceilings_stay_within_the_exponents_bounds)
{
    course c = course_new();
    double loss = 1;

    c.most_exponent = LOG_8;
    go_on(&c, 100, &loss, 1, 0.01);
    loss = 30;
    go_on(&c, 100, &loss, 1, 0.01);
    EXPECT(c.rate.ceiling == -LOG_8 && is_near(c.rate.exponent, -LOG_8));
}

/* While Polyak's rate does not lie lower; and what is lower by then rises only. */
UNIT(ceilings_stay_at_the_users_rate)
{
    rng r = {17};

    for (int walk = 0; walk < 300; walk++) {
        course c = course_new();
        double last = INFINITY;
        int n_lowered = 0;

        for (int i = 0; i < 300; i++) {
            const double loss = (double)rng_between(&r, 1, 1000);
            const double ratio = ldexp(1, (int)rng_between(&r, -8, 4) + walk % 9);

            step_of(&c, loss, loss / ratio, loss / ratio * (walk % 2 ? 1 : 3));
            EXPECT(c.rate.side < 0 || c.rate.ceiling >= fmin(last, 0));
            n_lowered += c.rate.ceiling < last;
            last = c.rate.ceiling;
        }
        EXPECT(c.rate.first_loss > 500 || n_lowered);
    }
}

/* From below the user's rate too, for whatever reason Polyak's has changed. */
UNIT(no_step_grows_a_rate_by_more_than_its_limit)
{
    static const struct {
        double loss, descent;
    } changes[] = {{1e4, 1e3}, {1, 1e-6}, {0.9, 1}, {1.1, 1e-300}, {1e100, 1e3}};

    for (int i = 0; i < 5; i++) {
        course c = course_new();
        double loss = 1, last;

        c.most_growth = LOG_1_05;
        last = go_on(&c, 200, &loss, 1, 1e-3);
        EXPECT(last < 1e-2);
        for (int k = 0; k < 400; k++) {
            const double now = step(&c, changes[i].loss, changes[i].descent);

            EXPECT(now <= last * 1.05 * (1 + 1e-12));
            last = now;
        }
    }
}

/* No number, none to divide by, or one whose square leaves double. */
UNIT(inputs_that_say_nothing_change_nothing)
{
    static const double no_loss[] = {NAN, INFINITY, -INFINITY, DBL_MAX, -1e200};
    static const double no_descent[] = {NAN, INFINITY, -INFINITY, 0, -0.0, -1, 1e200};
    static const double no_distance[] = {NAN, INFINITY, DBL_MAX};
    static const double no_lr[] = {NAN, INFINITY, 0, -1};

    for (int n_before = 0; n_before <= 40; n_before += 20) {
        course c = course_new(), before;
        double loss = 1, m = 1;

        if (n_before)
            m = go_on(&c, n_before, &loss, 0.99, 50);
        EXPECT((m != 1) == (n_before != 0));
        before = c;
        for (int i = 0; i < 5; i++)
            EXPECT(step(&c, no_loss[i], 1) == m);
        for (int i = 0; i < 7; i++) {
            EXPECT(step(&c, 1, no_descent[i]) == m);
            EXPECT(step_of(&c, 1, no_descent[i], 1) == m);
            EXPECT(step_of(&c, 1, 1, no_descent[i]) == m);
            EXPECT(step_free(&c, no_descent[i], 1, 1) == m);
        }
        for (int i = 0; i < 3; i++)
            EXPECT(step_free(&c, 1, no_distance[i], 1) == m);
        for (int i = 0; i < 4; i++)
            EXPECT(step_free(&c, 1, 1, no_lr[i]) == m);
        EXPECT(memcmp(&c, &before, sizeof c) == 0);
    }
}

static double course_of_losses(course *c, const double *losses, int n, double floor)
{
    double multiplier = 1;

    for (int i = 0; i < n; i++)
        multiplier = ptac_rate_next(&c->rate, &(ptac_rate_input){
                                                  .loss = losses[i] + floor,
                                                  .descent = losses[i] / 64,
                                                  .most_descent = losses[i] / 64,
                                                  .known_floor = floor,
                                                  .most_exponent = c->most_exponent,
                                                  .most_growth = c->most_growth,
                                              });
    return multiplier;
}

/* Losses whose sums with the floors are exact. */
UNIT(losses_count_above_their_known_floor)
{
    static const double floors[] = {1, -3, 1 << 20};
    double losses[200];
    rng r = {13};
    course plain = course_new();

    for (int i = 0; i < 200; i++)
        losses[i] = (double)(1000 - 4 * i + rng_between(&r, 0, 100)) / 1024;
    EXPECT(course_of_losses(&plain, losses, 200, 0) > 2);
    for (int i = 0; i < 3; i++) {
        course c = course_new();

        course_of_losses(&c, losses, 200, floors[i]);
        EXPECT(memcmp(&c, &plain, sizeof c) == 0);
    }
}

/* As a checkpoint does: by names, and as text. */
static ptac_rate saved_and_loaded(const ptac_rate *rate)
{
    ptac_rate loaded = {0};
    char text[32];

#define X(name)                                                                        \
    snprintf(text, sizeof text, "%.17g", rate->name);                                  \
    loaded.name = strtod(text, NULL);
    PTAC_RATE_FIELDS(X)
#undef X
    return loaded;
}

/* The fields are all that there is: no number lies outside them, none is forgotten. */
UNIT(a_state_that_was_saved_goes_on_the_same)
{
    rng r = {14};

#define X(name) +1
    EXPECT(PTAC_RATE_NUMBERS == 0 PTAC_RATE_FIELDS(X));
#undef X
    for (int turn = 0; turn < 40; turn++) {
        const bool is_free = turn % 4 == 3;
        course c = course_new(), other = course_new();
        const int64_t save_at = rng_between(&r, 0, 300);
        double loss = 1;

        for (int64_t i = 0; i < 400; i++) {
            const double b = something(&r);
            double ours, its;

            if (i == save_at)
                other.rate = saved_and_loaded(&c.rate);
            loss *= 0.9 + 0.19 * (double)rng_below(&r, 1000) / 1000;
            ours = is_free ? step_free(&c, loss, b, 1) : step(&c, loss, b);
            if (i < save_at)
                continue;
            its = is_free ? step_free(&other, loss, b, 1) : step(&other, loss, b);
            EXPECT(ours == its && memcmp(&c, &other, sizeof c) == 0);
        }
    }
}

/* DoG: the farthest distance over the root of all squares, over the user's rate. */
UNIT(without_losses_rates_follow_the_distance)
{
    static const double ratios[] = {1e-9, 0.01, 0.34, 1, 2.9, 10, 1e3};
    const double lr = 0.5;

    for (int i = 0; i < 7; i++) {
        course c = course_new();
        double last = 1;
        const bool is_kept = ratios[i] > 1.0 / 3 && ratios[i] < 3;

        for (int n = 1; n <= 400; n++) {
            const double distance = ratios[i] * sqrt(4.0 * n) * lr;
            const double now = step_free(&c, 4, distance, lr);

            EXPECT(!is_kept || now == 1);
            EXPECT(now <= last * exp(0.1) * (1 + 1e-9));
            last = now;
        }
        EXPECT(c.rate.squares == 1600 && c.rate.n_free == 400);
        /* The least distance is 1e-4. */
        EXPECT(is_kept || is_near(last, fmax(ratios[i], 1e-4 / (40 * lr))));
        /* The farthest distance counts; the root of squares is now 41. */
        EXPECT(is_kept || is_near(step_free(&c, 81, 0, lr), last * 40 / 41));
    }
}

/* The first step has not moved anything yet. */
UNIT(without_losses_the_first_distance_does_not_count)
{
    course c = course_new();

    EXPECT(step_free(&c, 1, 0, 1) == 1 && c.rate.above == 0);
    EXPECT(c.rate.distance == 1e-4);
    step_free(&c, 1, 0, 1);
    EXPECT(c.rate.above < 0);
}

/* Until the smoothed ratio has crossed it, as with losses. */
UNIT(without_losses_rates_stop_at_the_users)
{
    course c = course_new();
    double last = 1;

    for (int n = 1; n <= 400; n++)
        last = step_free(&c, 1, 10 * sqrt(n), 1);
    EXPECT(is_near(last, 10));
    for (int i = 0; i < 100; i++)
        EXPECT((last = step_free(&c, i ? 1 : 159600, 200, 1)) >= 1);
    EXPECT(last == 1 && c.rate.side == 0);

    c = course_new();
    for (int n = 1; n <= 400; n++)
        last = step_free(&c, 1, 0.1 * sqrt(n), 1);
    EXPECT(is_near(last, 0.1));
    for (int i = 0; i < 100; i++)
        EXPECT((last = step_free(&c, 1, 40, 1)) <= 1);
    EXPECT(last == 1 && c.rate.side == 0);
}
