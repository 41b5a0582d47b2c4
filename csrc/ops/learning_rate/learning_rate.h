/*
 * learning_rate.h - by how much to multiply the user's learning rate, from the losses
 * and gradients that it has led to.
 *
 * Numbers in, one number out, without branches that wait for anything: a device can
 * keep the state in its own memory.
 *
 * Sources: the step of Polyak (1987), loss - f* over the squared gradient, in its
 * stochastic form (Loizou et al., 2021: SPS; Rolinek and Martius, 2018: L4, which also
 * estimates f*). DoG: Ivgi, Hinder and Carmon, 2023. That momentum asks for the square
 * root of (1 - momentum), that the user's rate holds within a factor of two or three of
 * Polyak's, and that evidence moves the rate between the two, is ours, measured by
 * `bench lr`.
 */
#ifndef PTAC_OPS_LEARNING_RATE_LEARNING_RATE_H
#define PTAC_OPS_LEARNING_RATE_LEARNING_RATE_H

#include <stdbool.h>

/* All of them double, so that a checkpoint holds them as a list; zero at the start. */
#define PTAC_RATE_FIELDS(X)                                                            \
    X(n_steps)      /* whose loss was known */                                         \
    X(loss)         /* above the known floor, over about five steps */                 \
    X(descent)      /* the same of the input of this name, */                          \
    X(most_descent) /* and of this one */                                              \
    X(fast_loss)    /* sum of weighted losses, over about 10 steps, */                 \
    X(slow_loss)    /* and over 50 */                                                  \
    X(trend)        /* of losses, over 50 steps or two thirds of all so far */         \
    X(fast_root)    /* as fast_loss, of the square roots of most_descent, */           \
    X(slow_root)    /* and as slow_loss */                                             \
    X(variance)     /* of the loss about its fast average */                           \
    X(lowest)       /* slow loss so far */                                             \
    X(first_loss)   /* of all; follows the losses while the rate is the user's */      \
    X(floor)        /* estimate of the loss that cannot be gone below */               \
    /* The logarithm of Polyak's rate over the user's, smoothed: */                    \
    X(above)       /* by the estimated floor and most_descent, */                      \
    X(below)       /* and by the known floor and descent */                            \
    X(side)        /* 1: moves above the user's rate, -1: below, 0: to it */           \
    X(exponent)    /* logarithm of the multiplier */                                   \
    X(ceiling)     /* of the exponent; lowered where losses exceed the first */        \
    X(n_rollbacks) /* times that losses have begun to take the rate back */            \
    X(n_free)      /* steps without a loss; then */                                    \
    X(squares)     /* the sum of squared gradients, */                                 \
    X(distance)    /* and the farthest that parameters were from their start */

typedef struct ptac_rate {
#define X(name) double name;
    PTAC_RATE_FIELDS(X)
#undef X
} ptac_rate;

enum {
    PTAC_RATE_NUMBERS = sizeof(ptac_rate) / sizeof(double),
};

/* What is known before a step. */
typedef struct ptac_rate_input {
    double loss;
    /*
     * What one step of the user's rate lowers the loss by, to first order: the sum over
     * the parameters of rate * gradient * direction, times the optimizer's factor.
     */
    double descent;
    /*
     * The same as if nothing were clipped, and with the highest rate that the user has
     * had or announced: by it the rate moves up, so as not to make up for clipping, nor
     * for schedules. Where high momentum calls for caution it is larger.
     */
    double most_descent;
    bool falls_by_evidence; /* the rate moves down only while losses rise */
    double known_floor;
    double most_exponent; /* the multiplier's logarithm lies within +- this */
    double most_growth;   /* logarithm of the most that it grows by in a step */
} ptac_rate_input;

/*
 * The multiplier for this step. Inputs that are not above 0, or so large that their
 * squares might not be finite (1e150), change nothing: what has reached the lowest loss
 * has no rate that is wrong. The state stays finite.
 */
double ptac_rate_next(ptac_rate *rate, const ptac_rate_input *input);

/*
 * The same without losses, by DoG. squares is the sum of squared gradients of this
 * step, distance how far the parameters are from where they began, lr the user's rate.
 */
double ptac_rate_next_free(ptac_rate *rate, double squares, double distance, double lr,
                           const ptac_rate_input *input);

double ptac_rate_multiplier(const ptac_rate *rate);

#endif
