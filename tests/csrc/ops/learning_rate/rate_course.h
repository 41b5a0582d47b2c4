/*
 * rate_course.h - a learning rate on its way, for its units.
 *
 * Throughout, "ratio" is that of Polyak's rate to the user's: loss over descent.
 */
#ifndef PTAC_TESTS_RATE_COURSE_H
#define PTAC_TESTS_RATE_COURSE_H

#include "ops/learning_rate/learning_rate.h"

#include <math.h>
#include <stdbool.h>

#define LOG_8    2.0794415416798357
#define LOG_1E9  20.72326583694641
#define LOG_1_05 0.04879016416943205
#define LOG_1_5  0.4054651081081644

/* A rate on its way. */
typedef struct course {
    ptac_rate rate;
    double most_exponent, most_growth;
    bool falls_by_evidence;
} course;

static inline course course_new(void)
{
    return (course){.most_exponent = LOG_1E9, .most_growth = LOG_1_5};
}

/* A step with both descents; descent alone decides how far the rate goes down. */
static inline double step_of(course *c, double loss, double descent,
                             double most_descent)
{
    return ptac_rate_next(&c->rate, &(ptac_rate_input){
                                        .loss = loss,
                                        .descent = descent,
                                        .most_descent = most_descent,
                                        .falls_by_evidence = c->falls_by_evidence,
                                        .most_exponent = c->most_exponent,
                                        .most_growth = c->most_growth,
                                    });
}

/* One that nothing has clipped, at the highest rate so far. */
static inline double step(course *c, double loss, double descent)
{
    return step_of(c, loss, descent, descent);
}

/* Steps at this ratio, each loss times the one before; the last multiplier. */
static inline double go_on(course *c, int n_steps, double *loss, double times,
                           double ratio)
{
    double multiplier = NAN;

    for (int i = 0; i < n_steps; i++) {
        *loss *= times;
        multiplier = step(c, *loss, *loss / ratio);
    }
    return multiplier;
}

/* But for roundings on the way. */
static inline bool is_near(double x, double expected)
{
    return fabs(x - expected) <= 1e-9 * fabs(expected);
}

#endif
