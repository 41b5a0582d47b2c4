/*
 * test_rate_occasions.c - the policy of learning rates in first steps, in spikes, and
 * where losses have come to nothing.
 */
#include "rate_course.h"
#include "unit.h"

/* The ratio from which on rates move shrinks from 20 to 2.2 over twelve steps. */
UNIT(ratios_of_first_steps_have_to_be_larger)
{
    static const double ratios[] = {3, 10, 18};
    static const int last[] = {10, 4, 1}; /* steps at which each is too small */

    for (int i = 0; i < 3; i++) {
        course c = course_new();
        double loss = 1;

        EXPECT(go_on(&c, last[i], &loss, 0.97, ratios[i]) == 1 && c.rate.side == 0);
        go_on(&c, 1, &loss, 0.97, ratios[i]);
        EXPECT(c.rate.side == 1);
    }
}

/* A ratio that has been high, and is still on average, is no reason to rise by. */
UNIT(ratios_that_fall_are_not_gone_by)
{
    course c = course_new();
    double loss = 1, ratio = 9;

    go_on(&c, 3, &loss, 0.97, ratio);
    for (int i = 0; i < 15; i++) {
        ratio = fmax(0.7 * ratio, 2.5);
        EXPECT(go_on(&c, 1, &loss, 0.97, ratio) == 1 && c.rate.side == 0);
    }
    EXPECT(c.rate.above > log(2.5) + 0.15);
    go_on(&c, 30, &loss, 0.97, ratio);
    EXPECT(c.rate.side == 1);
}

/* Lower rates are no risk, and wait for nothing; nor do those that are far too low. */
UNIT(first_steps_are_not_waited_for_where_rates_are_far_off)
{
    course high = course_new(), low = course_new();
    double loss = 1;

    EXPECT(is_near(go_on(&high, 1, &loss, 1, 0.3), 0.3));
    EXPECT(go_on(&low, 1, &loss, 1, 40) > 1);
}

/* Two thirds of all steps until there are 75; then the last fifty. */
UNIT(trends_look_back_over_a_part_of_the_steps)
{
    course c = course_new();
    double left = 2;

    step(&c, 3, 1);
    for (int n = 2; n < 200; n++) {
        step(&c, 1, 1);
        left *= 1 - (n < 75 ? 1.5 / (n + 0.5) : 0.02);
        EXPECT(is_near(c.rate.trend, 1 + left));
    }
}

/* The same fall counts for more as it goes on: the first losses are soon forgotten. */
UNIT(falls_of_first_steps_raise_little)
{
    course c = course_new();
    double loss = 1;

    EXPECT(go_on(&c, 20, &loss, 0.97, 20) < 1.5);
    EXPECT(go_on(&c, 30, &loss, 0.97, 20) > 10);
}

/*
 * A rate that has been raised leads to losses and gradients out of all proportion. The
 * smoothed ratios are still those of before: the step goes by its own, and while the
 * rate grows back the others come down. After an outlier it does grow back.
 */
UNIT(spikes_are_met_by_their_own_ratio)
{
    course c = course_new();
    double loss = 1;

    EXPECT(go_on(&c, 60, &loss, 0.99, 1e4) > 20);
    loss = 30;
    EXPECT(is_near(go_on(&c, 1, &loss, 1, 1e-4), 1e-4) && c.rate.side == 1);
    for (int i = 0; i < 100; i++)
        EXPECT(go_on(&c, 1, &loss, 1, 1e-4) < 0.5);
    EXPECT(c.rate.side == -1);

    c = course_new();
    loss = 1;
    go_on(&c, 60, &loss, 0.99, 1e4);
    EXPECT(is_near(step(&c, 30, 3e4), 1e-3) && c.rate.side == 1);
    EXPECT(go_on(&c, 12, &loss, 0.99, 1e4) > 0.1 && c.rate.side == 1);
}

/* What the user's own rate leads to is nothing to take back. */
UNIT(spikes_of_the_users_rate_are_its_own)
{
    course c = course_new();
    double loss = 1;

    go_on(&c, 60, &loss, 1, 1);
    loss = 1.5;
    EXPECT(go_on(&c, 12, &loss, 1, 1) == 1);
    EXPECT(step(&c, 30, 3e4) == 1 && c.rate.exponent == 0);
    loss = 1;
    EXPECT(go_on(&c, 1, &loss, 1, 1) == 1);
}

/* A third of the rate is enough while losses matter, a fifth is not at the end. */
UNIT(rates_that_have_brought_losses_near_zero_are_left_alone)
{
    static const double lowest[] = {0.5, 1e-3};
    static const double ratios[] = {0.2, 0.1};

    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            course c = course_new();
            double loss = 1;

            go_on(&c, 200, &loss, pow(lowest[i], 1.0 / 200), 1);
            go_on(&c, 200, &loss, 1, ratios[k]);
            EXPECT(c.rate.side == (i == 1 && k == 0 ? 0 : -1));
        }
}
