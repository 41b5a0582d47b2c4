/*
 * batch_norm_run.h - how batch normalization is cut into pieces of work, for the rows
 * of all instruction sets.
 *
 * A piece is a part of a block of channels. Either a block is a channel of NCHW, whose
 * pixels are counted through all images, and a part is so many pixels. Or the tensor is
 * a matrix, a block is some of its columns, and a part is so many rows. A row is then a
 * pixel of NHWC, or an image of NCHW, of which each channel is a few columns.
 */
#ifndef PTAC_OPS_NORM_BATCH_NORM_RUN_H
#define PTAC_OPS_NORM_BATCH_NORM_RUN_H

#include "core/host.h"
#include "ops/math/stream.h"
#include "ops/norm/batch_norm.h"

typedef struct ptac_batch_norm_job {
    const ptac_call *call;
    const ptac_channel_norm *p;
    bool is_matrix;
    int64_t n_columns;           /* in all; without a matrix, channels */
    int64_t n_alike;             /* columns of a channel */
    int64_t n_blocks, per_block; /* of columns */
    int64_t n_lines;             /* rows, or pixels of a channel */
    int64_t n_parts, per_part;   /* of lines */

    const float *x, *grad; /* of sums; grad is NULL in forward */
    const float *from;     /* what the result is formed of: x, or grad by itself */
    float *result;         /* NULL where it is not wanted */
    bool streams;          /* the result, of a channel's pixels in whole lines */
    /*
     * Where sums leave the gradients that they have taken through a costly activation,
     * the result's own memory, and these are what the result is formed of. NULL: each
     * takes them through.
     */
    float *grad_z;

    /*
     * Of each column, what its elements are taken from before sums are formed and when
     * the result is, which is
     *
     *     scale * (from - center) + shift                     forward, and backward
     *                                                         by running statistics
     *     scale * grad + slope * (from - center) + shift      else backward
     *
     * with act() around it forward. Backward, grad is that of act(z), where
     * z = z_scale * (x - center) + z_shift, and is taken through act first.
     */
    float *center, *scale, *slope, *shift, *z_scale, *z_shift;

    /*
     * Of each piece, block by block and part by part, two sums for each column: with
     * d = x - center, all d and all d * d; backward, all grad and all grad * d.
     */
    double *sums;
} ptac_batch_norm_job;

/* What an instruction set does of one piece, in each direction. */
typedef void ptac_batch_norm_sum(const ptac_batch_norm_job *job, int64_t block,
                                 int64_t part, double *sums);
typedef void ptac_batch_norm_apply(const ptac_batch_norm_job *job, int64_t block,
                                   int64_t part);

typedef struct ptac_batch_norm_kernels {
    ptac_batch_norm_sum *sum, *sum_gradients;
    ptac_batch_norm_apply *apply, *apply_gradients, *apply_gradients_of_z;
} ptac_batch_norm_kernels;

/* run() of rows, by those for the call's activation; forward, by the batch. */
ptac_status ptac_batch_norm_run(const ptac_call *call,
                                const ptac_batch_norm_kernels *kernels);
ptac_status ptac_batch_norm_backward_run(const ptac_call *call,
                                         const ptac_batch_norm_kernels *kernels);

/* The lines [begin, end) of a part. */
static inline int64_t ptac_part_begin(const ptac_batch_norm_job *job, int64_t part)
{
    return part * job->per_part;
}

static inline int64_t ptac_part_end(const ptac_batch_norm_job *job, int64_t part)
{
    return ptac_least((part + 1) * job->per_part, job->n_lines);
}

/* The columns of a block, from its first one on. */
static inline int64_t ptac_block_columns(const ptac_batch_norm_job *job, int64_t block)
{
    return ptac_least(job->per_block, job->n_columns - block * job->per_block);
}

#endif
