/*
 * upsample_plan.h - where a row's outputs come from, worked out once a call.
 */
#ifndef PTAC_OPS_UPSAMPLE_UPSAMPLE_PLAN_H
#define PTAC_OPS_UPSAMPLE_UPSAMPLE_PLAN_H

#include "ops/upsample/upsample.h"

/*
 * A row of outputs as vectors of n_lanes: vector i is that of n_loaded elements from
 * from[i] on, in the order lanes[i * n_lanes ...]. Rows shorter than n_lanes are one
 * vector, whose other lanes hold anything; else the last vector ends with the row.
 */
typedef struct ptac_picks {
    int n_vectors, n_lanes, n_loaded;
    int64_t outputs;
    int32_t *from, *lanes;
} ptac_picks;

/* Where vector i begins among the outputs. */
static inline int64_t ptac_picks_at(const ptac_picks *picks, int i)
{
    const int64_t at = (int64_t)i * picks->n_lanes;

    if (at == 0)
        return 0;
    return ptac_least(at, picks->outputs - picks->n_lanes);
}

/* Outputs of a nearest axis by element: element i has [first[i], first[i + 1]). */
typedef struct ptac_nearest_plan {
    const ptac_call *call;
    int32_t *columns; /* the element of each output along a row */
    int32_t *first_row, *first_column;
    ptac_picks picks;
} ptac_nearest_plan;

typedef struct ptac_bilinear_plan {
    const ptac_call *call;
    ptac_linear_place *rows, *columns;
    float *of_first, *of_second; /* weights along a row, with n_lanes behind it */
    ptac_picks first, second;
} ptac_bilinear_plan;

/*
 * Where gradients go: element i of an axis is the first of outputs [first[i],
 * first[i + 1]), and the second of those of i - 1.
 */
typedef struct ptac_bilinear_gradient_plan {
    const ptac_call *call;
    ptac_linear_place *rows, *columns;
    int32_t *first_row, *first_column;
    int lacked_memory; /* atomic: a thread found no scratch */
} ptac_bilinear_gradient_plan;

/*
 * Plans for vectors of n_lanes, or none where it is 0. The memory that comes back is
 * scratch, to be given back behind the call; NULL: there is none. has_picks says
 * whether the elements of each vector lie near enough to each other.
 */
void *ptac_nearest_plan_make(const ptac_call *call, int n_lanes,
                             ptac_nearest_plan *plan, bool *has_picks);
void *ptac_bilinear_plan_make(const ptac_call *call, int n_lanes,
                              ptac_bilinear_plan *plan, bool *has_picks);
void *ptac_bilinear_gradient_plan_make(const ptac_call *call,
                                       ptac_bilinear_gradient_plan *plan);

#endif
