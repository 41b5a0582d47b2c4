/*
 * test_learning_rate.c - what the policy of learning rates does in situations that it
 * knows, where losses are known.
 */
#include "random.h"
#include "rate_course.h"
#include "unit.h"

/* The average whose rise above the first loss takes rates back. */
static bool is_above_first(const ptac_rate *r)
{
    return r->fast_loss / (1 - pow(0.9, r->n_steps)) > 1.2 * r->first_loss;
}

/* Of constant values, so that what is left of those before can be told. */
UNIT(averages_look_back_as_far_as_they_say)
{
    course c = course_new();

    step(&c, 3, 16);
    for (int i = 0; i < 30; i++)
        step(&c, 1, 4);
    EXPECT(is_near(c.rate.loss, 1 + 2 * pow(0.8, 30)));
    EXPECT(is_near(c.rate.descent, 4 + 12 * pow(0.8, 30)));
    EXPECT(c.rate.most_descent == c.rate.descent);
    EXPECT(is_near(c.rate.fast_loss, 1 + (0.1 * 3 - 1) * pow(0.9, 30)));
    EXPECT(is_near(c.rate.slow_loss, 1 + (0.02 * 3 - 1) * pow(0.98, 30)));
    EXPECT(is_near(c.rate.fast_root, 2 + (0.1 * 4 - 2) * pow(0.9, 30)));
    EXPECT(is_near(c.rate.slow_root, 2 + (0.02 * 4 - 2) * pow(0.98, 30)));
    EXPECT(c.rate.n_steps == 31 && c.rate.first_loss == 3);
}

/* To the bit, for losses that fall, rise again below the first one, or swing. */
UNIT(the_users_rate_is_kept_near_polyaks)
{
    static const double ratios[] = {0.34, 0.5, 1, 1.6, 2.15};
    rng r = {12};

    for (int i = 0; i < 5; i++) {
        course c = course_new();
        double loss = 1;

        EXPECT(go_on(&c, 600, &loss, 0.995, ratios[i]) == 1 && c.rate.exponent == 0);
        EXPECT(go_on(&c, 600, &loss, 1 / 0.9951, ratios[i]) == 1);
        for (int k = 0; k < 1000; k++) {
            const double swung = (double)rng_between(&r, 50, 115) / 100;

            EXPECT(step(&c, swung, swung / ratios[i]) == 1);
        }
        EXPECT(c.rate.exponent == 0 && c.rate.side == 0 && c.rate.n_rollbacks == 0);
    }
}

/* A few steps are no reason to leave it; the first step alone has no others. */
UNIT(ratios_are_smoothed)
{
    course c = course_new();
    double loss = 1;

    EXPECT(go_on(&c, 100, &loss, 0.999, 1) == 1);
    EXPECT(go_on(&c, 20, &loss, 0.999, 5) == 1);
    EXPECT(go_on(&c, 100, &loss, 0.99, 5) > 1);

    /* Ratios of 10 and a tenth in turn are those of the mean descent, about a fifth. */
    c = course_new();
    for (int i = 0; i < 200; i++)
        go_on(&c, 1, &loss, 0.99, i % 2 ? 10 : 0.1);
    EXPECT(ptac_rate_multiplier(&c.rate) > 0.16 &&
           ptac_rate_multiplier(&c.rate) < 0.25);

    c = course_new();
    EXPECT(is_near(go_on(&c, 1, &loss, 1, 1e-4), 1e-4));
    c = course_new();
    EXPECT(go_on(&c, 1, &loss, 1, 1e4) > 1);
}

/* Between the user's rate and twice it, or a third, the last crossing decides. */
UNIT(rates_are_the_users_again_once_polyaks_has_crossed_it)
{
    static const double ratios[][3] = {{5, 1.5, 0.9}, {0.2, 0.7, 1.1}};

    for (int i = 0; i < 2; i++) {
        course c = course_new();
        double loss = 1;

        for (int k = 0; k < 2; k++)
            EXPECT(is_near(go_on(&c, 150, &loss, 0.99, ratios[i][k]), ratios[i][k]));
        EXPECT(go_on(&c, 150, &loss, 0.99, ratios[i][2]) == 1 && c.rate.side == 0);
        EXPECT(go_on(&c, 150, &loss, 0.99, ratios[i][1]) == 1 && c.rate.side == 0);
    }
}

UNIT(rates_go_back_to_the_users_by_steps)
{
    static const double from[] = {0.25, -0.25};

    for (int i = 0; i < 2; i++) {
        course c = course_new();
        double loss = 1;

        go_on(&c, 100, &loss, 0.99, 1);
        c.rate.exponent = from[i];
        EXPECT(is_near(go_on(&c, 1, &loss, 0.99, 1), exp(0.6 * from[i])));
        EXPECT(is_near(go_on(&c, 1, &loss, 0.99, 1), exp(0.2 * from[i])));
        EXPECT(go_on(&c, 1, &loss, 0.99, 1) == 1);
    }
}

UNIT(rates_below_polyaks_rise_to_it_while_losses_fall)
{
    static const double ratios[] = {2.25, 20, 1e3};

    for (int i = 0; i < 3; i++) {
        course free = course_new(), adam = course_new();
        double loss = 1, last = 1;

        adam.most_exponent = LOG_8;
        for (int k = 0; k < 400; k++) {
            double now;

            loss *= 0.99;
            now = step(&free, loss, loss / ratios[i]);
            EXPECT(now >= last * (1 - 1e-12) && now <= ratios[i] * (1 + 1e-9));
            EXPECT(step(&adam, loss, loss / ratios[i]) <= 8 * (1 + 1e-12));
            last = now;
        }
        EXPECT(is_near(last, ratios[i]));
        EXPECT(is_near(ptac_rate_multiplier(&adam.rate), fmin(ratios[i], 8)));
    }
}

/* A tenth up where evidence is plain, twice that down. */
UNIT(rates_move_by_their_stride)
{
    course c = course_new();
    double loss = 1, last = 0, most = 0, least = 0;

    for (int i = 0; i < 60; i++, last = c.rate.exponent) {
        go_on(&c, 1, &loss, 0.99, 3.1);
        most = fmax(most, c.rate.exponent - last);
    }
    EXPECT(most > 0.0999 && most < 0.11);
    EXPECT(is_near(last, log(3.1)));
    for (int i = 0; i < 60; i++, last = c.rate.exponent) {
        go_on(&c, 1, &loss, 1.01, 3.1);
        least = fmin(least, c.rate.exponent - last);
    }
    EXPECT(is_near(least, -0.2) && last == 0);
}

/* The faster the farther it is: by a tenth each, a million would take 138 steps. */
UNIT(rates_far_below_polyaks_rise_faster)
{
    course c = course_new();
    double loss = 1;

    EXPECT(is_near(go_on(&c, 60, &loss, 0.99, 1e6), 1e6));
}

/* Within a factor of 10; farther off up to where half a standing still is enough. */
UNIT(rates_return_to_the_users_while_losses_stand_still)
{
    static const double ratios[] = {50, 1e5};
    course c = course_new();
    double loss = 1, last = go_on(&c, 200, &loss, 0.99, 9);

    EXPECT(is_near(last, 9));
    for (int i = 0; i < 800; i++) {
        const double now = go_on(&c, 1, &loss, 1, 9);

        EXPECT(now <= last * (1 + 1e-12));
        last = now;
    }
    EXPECT(last == 1);
    for (int i = 0; i < 2; i++) {
        c = course_new();
        last = go_on(&c, 500, &loss, 1, ratios[i]);
        EXPECT(fabs(last / ratios[i] * pow(10, 1.5) - 1) < 1e-3);
    }
}

/*
 * Of losses that say nothing, a sixth lie a standard deviation below: so often, and
 * no oftener, the rate goes up. Four standard errors, of 10 steps that hang together.
 */
UNIT(noise_is_taken_for_progress_as_often_as_chance_says)
{
    enum {
        STEPS = 100000,
    };
    rng r = {15};
    course c = course_new();
    int n_up = 0;

    step(&c, 1, 1.0 / 9);
    for (int i = 0; i < STEPS; i++) {
        const double before = c.rate.exponent;
        double loss = 1;

        for (int k = 0; k < 4; k++) /* a sum, which is nearly normal */
            loss += (double)rng_between(&r, -100, 100) / 1000;
        step(&c, loss, loss / 9);
        n_up += c.rate.exponent > before;
    }
    EXPECT(fabs((double)n_up / STEPS - 0.159) < 0.015);
}

UNIT(rates_above_polyaks_follow_it_down)
{
    static const double ratios[] = {1 / 3.1, 1e-2, 1e-5};

    for (int i = 0; i < 3; i++) {
        course c = course_new();
        double loss = 1, least = 1;

        EXPECT(is_near(go_on(&c, 200, &loss, 0.98, ratios[i]), ratios[i]));
        for (int k = 0; k < 200; k++)
            least = fmin(least, go_on(&c, 1, &loss, 1.01, ratios[i]));
        /* An eighth of Polyak's, which an estimated floor makes a little lower. */
        EXPECT(least < ratios[i] / 7 && least >= ratios[i] / 9);
        EXPECT(c.rate.n_rollbacks == 0);
        for (double last = ratios[i], k = 0; k < 200; k++) {
            const double now = go_on(&c, 1, &loss, 0.98, ratios[i]);

            EXPECT(k == 0 || now <= last * exp(0.0501));
            last = now;
        }
        EXPECT(is_near(ptac_rate_multiplier(&c.rate), ratios[i]));
        c = course_new();
        EXPECT(is_near(go_on(&c, 200, &loss, 1, ratios[i]), ratios[i]));
    }
}

/* By a fifth a step, to the user's or, where Polyak's lies lower, an eighth of it. */
UNIT(losses_above_the_first_take_a_rate_back)
{
    static const double ratios[] = {1e-2, 9, 50};

    for (int i = 0; i < 2 * 3; i++) {
        const double ratio = ratios[i / 2];
        const double lowest = ratio < 1 ? ratio / 8 : 1;
        course c = course_new();
        double loss = 1, last = go_on(&c, 200, &loss, 0.99, ratio);

        EXPECT(is_near(last, ratio));
        c.falls_by_evidence = i % 2;
        for (int k = 0; k < 30; k++) {
            const double high = 30 * (1 + 0.2 * k);
            const double now = step(&c, high, high / ratio);

            EXPECT(is_above_first(&c.rate) && c.rate.n_rollbacks == 1);
            EXPECT(now <= fmax(last * exp(-0.2), lowest) * (1 + 1e-9));
            last = now;
        }
        EXPECT(ratio < 1 ? is_near(last, lowest) : last == 1);
    }
}

/* Losses that only the user's own rate has led to are the user's. */
UNIT(losses_above_the_first_leave_the_users_rate_alone)
{
    static const double ratios[] = {0.4, 1, 2.1};

    for (int i = 0; i < 3; i++) {
        course c = course_new();
        double loss = 1;

        for (int times = 0; times < 3; times++) {
            EXPECT(go_on(&c, 100, &loss, 1.1, ratios[i]) == 1);
            EXPECT(c.rate.ceiling == 0 && c.rate.first_loss > loss / 10);
            loss /= 1e3;
            EXPECT(go_on(&c, 100, &loss, 1, ratios[i]) == 1 && c.rate.ceiling > 0);
        }
        EXPECT(c.rate.n_rollbacks == 0);
    }
}

/* A fifth is noise. */
UNIT(losses_a_little_above_the_first_are_let_go)
{
    course c = course_new();
    double loss = 1;

    go_on(&c, 50, &loss, 1, 0.1);
    loss = 1.19;
    go_on(&c, 200, &loss, 1, 0.1);
    EXPECT(c.rate.n_rollbacks == 0 && c.rate.ceiling > 1e299);
    loss = 1.21;
    go_on(&c, 30, &loss, 1, 0.1);
    EXPECT(c.rate.n_rollbacks == 1 && c.rate.ceiling < log(0.1));
}

/* However high it was, without a trace, and no faster than slowly. */
UNIT(rates_recover_from_a_spike)
{
    static const double spikes[] = {20, 1e3, 1e9, 1e30, 1e140};

    for (int i = 0; i < 5; i++) {
        course c = course_new();
        double loss = 1;
        int n_above = 0, n_below = 0;

        EXPECT(is_near(go_on(&c, 100, &loss, 1, 0.2), 0.2));
        EXPECT(step(&c, spikes[i], spikes[i] / 0.2) < 0.2);
        for (; is_above_first(&c.rate) && n_above < 10000; n_above++)
            EXPECT(go_on(&c, 1, &loss, 1, 0.2) < 0.2);
        EXPECT(n_above < 10 * log(spikes[i]) + 10);
        /* At most an eighth has to be made up for, a hundredth in a step. */
        for (; !is_near(go_on(&c, 1, &loss, 1, 0.2), 0.2) && n_below < 10000; n_below++)
            EXPECT(!is_above_first(&c.rate));
        EXPECT(n_below <= 100 * LOG_8 + 10);
        EXPECT(is_near(go_on(&c, 500, &loss, 1, 0.2), 0.2) && c.rate.n_rollbacks == 1);
    }
}

static double noise(rng *r)
{
    return (double)rng_between(r, 800, 1200) / 1000;
}

/* A single batch's, that is. Where the rate is not the user's, it stays. */
UNIT(the_first_loss_follows_others_while_the_rate_is_the_users)
{
    rng r = {16};
    course c = course_new(), below = course_new();
    double last = 1e-3;

    step(&c, 1e-3, 1e-3);
    step(&below, 1e-3, 1e-2);
    for (int i = 0; i < 400; i++) {
        const double noisy = noise(&r);

        EXPECT(step(&c, noisy, noisy) == 1);
        EXPECT(c.rate.first_loss >= last);
        last = c.rate.first_loss;
        EXPECT(step(&below, noisy, 10 * noisy) <= 0.1 * (1 + 1e-9));
    }
    EXPECT(last > 0.75 && last < 1.1 && c.rate.n_rollbacks == 0);
    EXPECT(below.rate.first_loss == 1e-3 && below.rate.n_rollbacks == 1);
}

/* What stands still there has reached its minimum; a fall of a thousandth is none. */
UNIT(losses_that_have_fallen_do_not_raise_rates_by_standing_still)
{
    static const double fallen[] = {0.95, 0.7};

    for (int i = 0; i < 2; i++) {
        course c = course_new();
        double loss = 1, after;

        go_on(&c, 200, &loss, 1, 1e6);
        loss = fallen[i];
        go_on(&c, 400, &loss, 1, 1e6);
        c.rate.exponent = 0;
        after = go_on(&c, 50, &loss, 1, 1e6);
        EXPECT(i == 0 ? after > 1e3 : after == 1);
        EXPECT(i == 0 || go_on(&c, 100, &loss, 1 - 1e-5, 1e6) == 1);
    }
}

UNIT(each_excursion_above_the_first_loss_counts_once)
{
    static const double ratios[] = {1e-3, 1, 1e3};

    for (int i = 0; i < 3; i++) {
        course c = course_new();
        double loss = 1;

        for (int times = 1; times <= 3; times++) {
            /* As long as deviations need to forget the excursion before. */
            go_on(&c, 3000, &loss, 0.999, ratios[i]);
            loss = pow(1e3, times); /* above what the first may have come to */
            go_on(&c, 30, &loss, 1.2, ratios[i]);
            EXPECT(c.rate.n_rollbacks == (i == 1 ? 0 : times));
            loss = 1;
            go_on(&c, 3000, &loss, 0.999, ratios[i]);
            EXPECT(c.rate.n_rollbacks == (i == 1 ? 0 : times));
        }
    }
}

/* Where Polyak's rate is no reason to; but no lower than an eighth of it. */
UNIT(by_evidence_rates_go_down_only_while_losses_rise)
{
    static const double ratios[] = {1 / 3.1, 1e-2};

    for (int i = 0; i < 2; i++) {
        course c = course_new();
        double loss = 1, last = 1;

        c.falls_by_evidence = true;
        EXPECT(go_on(&c, 200, &loss, 0.98, ratios[i]) == 1 && c.rate.side == -1);
        EXPECT(go_on(&c, 400, &loss, 1, ratios[i]) == 1);
        for (int k = 0; k < 150; k++) {
            const double now = go_on(&c, 1, &loss, 1.01, ratios[i]);

            EXPECT(now <= last * 1.01 && now >= last * exp(-0.1) * (1 - 1e-9));
            last = now;
        }
        EXPECT(last < ratios[i] / 7 && last >= ratios[i] / 9);
        EXPECT(c.rate.n_rollbacks == 0);
        for (int k = 0; k < 200; k++) {
            const double now = go_on(&c, 1, &loss, 0.98, ratios[i]);

            EXPECT(k < 20 || now >= last);
            EXPECT(now <= last * exp(0.05) * (1 + 1e-9));
            last = now;
        }
        EXPECT(last == 1);
    }
}

/* Steps at these ratios of both descents; the last multiplier. */
static double go_on_by(course *c, int n_steps, double times, double ratio,
                       double least_ratio)
{
    double loss = 1, multiplier = NAN;

    for (int i = 0; i < n_steps; i++) {
        loss *= times;
        multiplier = step_of(c, loss, loss / ratio, loss / least_ratio);
    }
    return multiplier;
}

/* As where a schedule has lowered the rate, or clipping has made steps shorter. */
UNIT(rates_rise_by_the_most_descent_and_fall_by_the_other)
{
    course c = course_new();

    EXPECT(is_near(go_on_by(&c, 300, 0.99, 200, 5), 5));
    c = course_new();
    EXPECT(go_on_by(&c, 300, 0.99, 50, 1) == 1 && c.rate.side == 0);
    c = course_new();
    EXPECT(go_on_by(&c, 300, 0.99, 50, 1e-2) == 1 && c.rate.side == 0);
    c = course_new();
    EXPECT(go_on_by(&c, 300, 0.99, 1, 1e-2) == 1 && c.rate.side == 0);
    c = course_new();
    EXPECT(is_near(go_on_by(&c, 300, 0.99, 0.1, 1e-3), 0.1) && c.rate.side == -1);

    /* A rate that has risen comes back by it too. */
    c = course_new();
    EXPECT(is_near(go_on_by(&c, 300, 0.99, 20, 20), 20));
    EXPECT(is_near(go_on_by(&c, 300, 0.99, 20, 4), 4));
    EXPECT(go_on_by(&c, 300, 0.99, 20, 0.5) == 1 && c.rate.side == 0);
}

/*
 * A loss that comes down towards a half, of which the gradient knows: roots of descents
 * are linear in what lies above. In the end the user's rate is a fifth of Polyak's, as
 * if losses could fall to zero; but above the floor it is within a factor of two.
 */
UNIT(floors_are_found_and_losses_counted_above_them)
{
    course c = course_new();

    for (double above = 2; above > 0.2; above *= 0.999) {
        const double multiplier = step(&c, 0.5 + above, 3.5 * above * above);

        EXPECT(c.rate.floor >= 0 && c.rate.floor <= 0.8 * c.rate.first_loss);
        EXPECT(c.rate.below < log(3) || multiplier == 1);
    }
    EXPECT(fabs(c.rate.floor - 0.5) < 1e-3);
    EXPECT(c.rate.below > log(4) && c.rate.above > 0 && c.rate.above < log(2));
}

/*
 * Ten times the loss here, but a twentieth of this is always left. What is estimated
 * does not take a rate below the user's.
 */
UNIT(an_estimated_floor_leaves_something)
{
    course c = course_new();
    double loss = 1, before;

    go_on(&c, 300, &loss, 1, 1);
    c.rate.floor = 10;
    before = c.rate.above;
    go_on(&c, 1, &loss, 1, 1);
    EXPECT(is_near(c.rate.above, before + 0.05 * (log(0.05) - before)));
    EXPECT(go_on(&c, 60, &loss, 1, 1) == 1 && c.rate.above < -log(4));
}

/* No more than 0.8 of the lowest loss, however fast descents fall. */
UNIT(floors_stay_below_all_losses)
{
    course c = course_new();

    for (int i = 0; i < 1000; i++) {
        const double lowest = c.rate.lowest;

        step(&c, 1 + pow(0.99, i), pow(0.9, i));
        EXPECT(i == 0 || c.rate.lowest <= lowest);
    }
    EXPECT(c.rate.floor > 0.79 * c.rate.lowest && c.rate.floor < 0.82 * c.rate.lowest);
    for (int i = 0; i < 100; i++)
        step(&c, 1.5, 1);
    EXPECT(c.rate.lowest < 1.01);
}
