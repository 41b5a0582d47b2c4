/*
 * calibration.h - calibrated points, found by (operator, kind, dtype) without a search.
 *
 * What the chooser decides by, on each kind of device. chooser.h says which point
 * speaks for a call.
 */
#ifndef PTAC_CORE_CALIBRATION_H
#define PTAC_CORE_CALIBRATION_H

#include "core/counters.h"
#include "core/kernel.h"

enum {
    PTAC_POINT_OTHERS = 3,
};

typedef struct ptac_point {
    ptac_op op;
    int kind;
    ptac_dtype dtype; /* of the call's first input */
    int n_threads;    /* on CUDA 1 */
    int64_t work;
    int64_t sizes[3];       /* of a product: rows, terms, columns; else zeros */
    const ptac_kernel *row; /* NULL: stock was faster */
    double stock_ns;        /* stock's time there when it was measured; 0: not known */
    double ratio;           /* stock's time divided by the row's */
    /* The rows that came next, perhaps behind stock, with their ratios; then NULL. */
    const ptac_kernel *others[PTAC_POINT_OTHERS];
    double other_ratios[PTAC_POINT_OTHERS];
} ptac_point;

typedef struct ptac_curve {
    const ptac_point *points; /* by threads, then by work, both ascending */
    int n_points;
} ptac_curve;

enum {
    PTAC_DEVICE_NAME_BYTES = 256,
};

typedef struct ptac_calibration {
    struct ptac_calibration *next; /* in the list of retired tables */
    ptac_curve curves[PTAC_N_OPS][PTAC_MAX_KINDS][PTAC_N_DTYPES];
    int64_t least_work[PTAC_N_OPS]; /* of the points that have a row */
    bool knows[PTAC_N_OPS];         /* has points of the operator */
    /* Of CUDA: which devices it is for, and of those asked, a bit each, which are. */
    char device[PTAC_DEVICE_NAME_BYTES];
    uint64_t asked, meant;
    ptac_point points[];
} ptac_calibration;

/*
 * Sequentially consistent, as ptac_call_enter() is: whoever installs a table or shuts a
 * gate looks afterwards whether anyone is inside, and must not look before the store.
 */
#define PTAC_LOAD(field)         __atomic_load_n(&(field), __ATOMIC_SEQ_CST)
#define PTAC_STORE(field, value) __atomic_store_n(&(field), value, __ATOMIC_SEQ_CST)

/*
 * Have *in_use be a table of a copy of the points, for devices of that name, "" on the
 * CPU. The one before is freed by ptac_calibration_collect(). PTAC_FAILED: no memory,
 * the old table stays.
 */
ptac_status ptac_calibration_replace(ptac_calibration **in_use,
                                     const ptac_point *points, int n_points,
                                     const char *device);

/* Have *in_use be none. */
void ptac_calibration_drop(ptac_calibration **in_use);

/* Free tables that are not in use, unless a call is in flight. */
void ptac_calibration_collect(void);

enum {
    PTAC_MOST_NEIGHBOURS = 16, /* more are as good as these */
};

/* The points that speak for a place, the one with the most work first. */
typedef struct ptac_neighbours {
    const ptac_point *at[PTAC_MOST_NEIGHBOURS];
    int n; /* of anything but a product one at most */
} ptac_neighbours;

/* Those of a table; and the row that all of them have, NULL where they have none. */
const ptac_kernel *ptac_calibration_find(const ptac_calibration *table, ptac_op op,
                                         const ptac_shape *shape, ptac_dtype dtype,
                                         int n_threads, ptac_neighbours *found);

/* Count what a point says of a call's time, which grows with the work. */
static inline void ptac_point_estimate(const ptac_point *point, const ptac_shape *shape)
{
    const double times =
        point->work > 0 ? (double)shape->work / (double)point->work : 1;
    const double stock_ns = point->stock_ns * times;

    if (point->stock_ns > 0)
        ptac_count_estimate(point->op, stock_ns,
                            point->row ? stock_ns * (1 - 1 / point->ratio) : 0);
}

#endif
