/*
 * act_bounds.h - activations by other formulas than bias_act's, and what rows may err.
 */
#ifndef PTAC_TESTS_ACT_BOUNDS_H
#define PTAC_TESTS_ACT_BOUNDS_H

#include "ops/linear/bias_act.h"
#include "random.h"

enum {
    N_ACT_TABLES = 3,
};

/* The tables that this CPU can run, "scalar" first; NULL for the others. */
const ptac_bias_act *act_table(int i);

const char *act_name(ptac_act act);

/* A value and how far a row's may be from it. */
typedef struct act_bound {
    double value, allowed;
} act_bound;

/* act(z) for a finite z, and g * act'(saved) for finite ones. */
act_bound act_value(ptac_act act, double z);
act_bound act_gradient(ptac_act act, double g, double saved);

/* Whether got is as near as that; when not, says so with these words before it. */
bool act_is_near(float got, act_bound bound, const char *table, ptac_act act,
                 double argument);

/* Run check() on random jobs with each table; some must have been shared out. */
void check_act_tables(uint64_t seed, void *job, void (*make)(rng *r, void *job),
                      void (*check)(rng *r, void *job, const ptac_bias_act *table));

/* A result that is expected at one element; NaN is one value. */
void expect_act(float got, float expected, int table, double argument, ptac_act act);

/* Arguments where activations bend, saturate and underflow. */
void fill_arguments(rng *r, float *z, int64_t n);

#endif
