/*
 * avg_pool2d_backward.h - how average pooling's gradient is laid out for vectors.
 */
#ifndef PTAC_OPS_POOL_AVG_AVG_POOL2D_BACKWARD_H
#define PTAC_OPS_POOL_AVG_AVG_POOL2D_BACKWARD_H

#include "ops/pool/avg/avg_pool2d.h"

enum {
    PTAC_RING_REALS = 16384,
    PTAC_MOST_OUTPUTS = 1024, /* along a row */
    PTAC_MOST_LAYERS = 8,
};

/*
 * How a row of outputs is laid out for the columns of the image. The sum over a column
 * iw takes [layers[0] + iw], [layers[1] + iw] ... of each row, in that order.
 */
typedef struct ptac_spread_plan {
    enum {
        PTAC_SHIFTED, /* stride 1: once; column by column, windows begin one later */
        PTAC_DOUBLED, /* stride 2: each share twice, if is_partial also with gaps */
        PTAC_SPREAD,  /* others: over its window, of which no more than two overlap */
    } way;
    bool is_partial;   /* the farthest column of a stride is not in the window */
    int n_rows;        /* in the ring, a power of two */
    int64_t size, row; /* of one copy, of all copies of a row of outputs */
    int64_t lead;      /* places before the first output that hold no window */
    int n_layers;
    int64_t layers[PTAC_MOST_LAYERS];
} ptac_spread_plan;

typedef struct ptac_spread_job {
    const ptac_call *call;
    ptac_spread_plan plan;
} ptac_spread_job;

/* Plan an NCHW call; false where that is not possible. */
bool ptac_plan_spread(const ptac_avg_pool2d *p, ptac_spread_plan *plan);

/* Each plane has one window, the whole plane. */
bool ptac_is_whole(const ptac_avg_pool2d *p);

ptac_reason ptac_avg_pool2d_backward_accepts(const ptac_call *call);

/*
 * Rows [begin, end) of the image, from begin on, lie in the windows of the same rows of
 * outputs. cover is that of an earlier row, or {0, 0}; returns end.
 */
static inline int64_t ptac_cover_rows(const ptac_avg_pool2d *p, int64_t begin,
                                      ptac_cover *cover)
{
    int64_t end = p->image.h;

    for (; cover->last < p->image.out_h; cover->last++) {
        const ptac_extent h = ptac_avg_extent_h(p, cover->last);

        if (h.begin > begin) {
            end = h.begin;
            break;
        }
    }
    for (; cover->first < cover->last; cover->first++) {
        const ptac_extent h = ptac_avg_extent_h(p, cover->first);

        if (h.end > begin)
            return h.end < end ? h.end : end;
    }
    return end;
}

#endif
