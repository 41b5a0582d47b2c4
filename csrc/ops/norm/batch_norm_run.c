/*
 * batch_norm_run.c - pieces of work over threads, and what their sums say of channels.
 *
 * Where there are blocks of channels enough for all threads, a thread does all of a
 * block: it sums the block's parts, and forms the results while the block is in its
 * cache. Else threads share all pieces, twice.
 */
#include "ops/norm/batch_norm_run.h"

#include "core/scratch.h"

#include <math.h>

enum {
    PART = 16384,          /* elements of a channel, or of a matrix's block */
    FEWEST_ROWS = 64,      /* of a part, so that sums are few beside the elements */
    BLOCK = 1024,          /* columns */
    BLOCKS_A_THREAD = 4,   /* so many are shared out evenly enough */
    WORTH_A_THREAD = 8192, /* elements */
};

/* The numbers of ptac_batch_norm_job that say how a channel's results are formed. */
typedef struct numbers {
    double center, scale, slope, shift;
} numbers;

typedef struct work {
    ptac_batch_norm_job job;
    ptac_batch_norm_sum *sum; /* NULL: nobody asks for sums */
    ptac_batch_norm_apply *apply;

    /* Of a channel: what sums are taken from, and what follows from both. */
    float (*center)(const ptac_batch_norm_job *job, int64_t channel);
    numbers (*finish)(const ptac_batch_norm_job *job, int64_t channel, double first,
                      double second);
} work;

static double *sums_of(const ptac_batch_norm_job *job, int64_t block, int64_t part)
{
    return job->sums + 2 * job->per_block * (block * job->n_parts + part);
}

/* All columns of a channel are alike. */
static void put_numbers(const ptac_batch_norm_job *job, int64_t channel, numbers of)
{
    const int64_t begin = channel * job->n_alike;

    for (int64_t k = begin; k < begin + job->n_alike; k++) {
        job->center[k] = (float)of.center;
        job->scale[k] = (float)of.scale;
        job->slope[k] = (float)of.slope;
        job->shift[k] = (float)of.shift;
    }
}

/* What z was formed with, which a gradient's call is given. */
static void put_z(const ptac_batch_norm_job *job, int64_t channel)
{
    const int64_t begin = channel * job->n_alike;
    const double scale =
        ptac_channel_input(job->call, PTAC_BATCH_NORM_GRAD_SCALE, channel, 1);
    const double shift =
        ptac_channel_input(job->call, PTAC_BATCH_NORM_GRAD_SHIFT, channel, 0);

    for (int64_t k = begin; k < begin + job->n_alike; k++) {
        job->z_scale[k] = (float)scale;
        job->z_shift[k] = (float)shift;
    }
}

static void finish_block(const work *w, int64_t block)
{
    const ptac_batch_norm_job *job = &w->job;
    const int64_t n = ptac_block_columns(job, block), n_alike = job->n_alike;

    for (int64_t c = 0; c < n; c += n_alike) {
        const int64_t channel = (block * job->per_block + c) / n_alike;
        double first = 0, second = 0;

        for (int64_t part = 0; w->sum && part < job->n_parts; part++) {
            const double *sums = sums_of(job, block, part) + c;

            for (int64_t k = 0; k < n_alike; k++) {
                first += sums[k];
                second += sums[n + k];
            }
        }
        put_numbers(job, channel, w->finish(job, channel, first, second));
    }
}

static void do_blocks(int64_t begin, int64_t end, void *context)
{
    const work *w = context;
    const ptac_batch_norm_job *job = &w->job;

    for (int64_t block = begin; block < end; block++) {
        for (int64_t part = 0; w->sum && part < job->n_parts; part++)
            w->sum(job, block, part, sums_of(job, block, part));
        finish_block(w, block);
        /* The last part is the one that is still near. */
        for (int64_t part = job->n_parts; job->result && part-- > 0;)
            w->apply(job, block, part);
    }
}

/* A part's blocks lie beside each other. */
static void sum_pieces(int64_t begin, int64_t end, void *context)
{
    const work *w = context;
    const ptac_batch_norm_job *job = &w->job;

    for (int64_t i = begin; i < end; i++) {
        const int64_t block = i % job->n_blocks, part = i / job->n_blocks;

        w->sum(job, block, part, sums_of(job, block, part));
    }
}

static void apply_pieces(int64_t begin, int64_t end, void *context)
{
    const work *w = context;
    const ptac_batch_norm_job *job = &w->job;

    for (int64_t i = end; i-- > begin;)
        w->apply(job, i % job->n_blocks, i / job->n_blocks);
}

static void cut(ptac_batch_norm_job *job)
{
    const ptac_channel_norm *p = job->p;

    job->is_matrix = ptac_channel_norm_is_matrix(p);
    job->n_alike = job->is_matrix ? p->n_pixels : 1;
    job->n_columns = p->n_channels * job->n_alike;
    job->n_lines = job->is_matrix ? p->n_images : p->n_images * p->n_pixels;
    job->per_block =
        job->is_matrix ? ptac_least(BLOCK / job->n_alike * job->n_alike, job->n_columns)
                       : 1;
    job->n_blocks = ptac_parts(job->n_columns, job->per_block);
    job->per_part = PART / job->per_block;
    if (job->is_matrix && job->per_part < FEWEST_ROWS)
        job->per_part = FEWEST_ROWS;
    job->n_parts = ptac_parts(job->n_lines, job->per_part);
}

static void share_out(work *w)
{
    const ptac_batch_norm_job *job = &w->job;
    const int64_t n_pieces = job->n_blocks * job->n_parts;
    const int64_t of_block = job->n_lines * job->per_block;
    const int64_t of_piece = job->per_part * job->per_block;

    if (job->n_parts == 1 ||
        job->n_blocks >= BLOCKS_A_THREAD * (int64_t)job->call->n_threads) {
        ptac_parallel_for(0, job->n_blocks, ptac_parts(WORTH_A_THREAD, of_block),
                          do_blocks, w);
        return;
    }
    if (w->sum)
        ptac_parallel_for(0, n_pieces, ptac_parts(WORTH_A_THREAD, of_piece), sum_pieces,
                          w);
    for (int64_t block = 0; block < job->n_blocks; block++)
        finish_block(w, block);
    if (job->result)
        ptac_parallel_for(0, n_pieces, ptac_parts(WORTH_A_THREAD, of_piece),
                          apply_pieces, w);
}

/* Cut the work, and take memory for sums and for six numbers of each column. */
static ptac_status run(work *w)
{
    ptac_batch_norm_job *job = &w->job;
    size_t n_columns, n_sums;

    cut(job);
    n_columns = (size_t)job->n_columns;
    n_sums = 2 * (size_t)(job->per_block * job->n_blocks * job->n_parts);
    job->sums =
        ptac_scratch_take(n_sums * sizeof(double) + 6 * n_columns * sizeof(float));
    if (!job->sums)
        return PTAC_NO_MEMORY;
    job->center = (float *)(job->sums + n_sums);
    job->scale = job->center + n_columns;
    job->slope = job->scale + n_columns;
    job->shift = job->slope + n_columns;
    job->z_scale = job->shift + n_columns;
    job->z_shift = job->z_scale + n_columns;
    for (int64_t c = 0; c < job->p->n_channels; c++) {
        put_numbers(job, c, (numbers){.center = w->center(job, c)});
        if (job->call->op == PTAC_OP_BATCH_NORM_ACT_BACKWARD)
            put_z(job, c);
    }
    share_out(w);
    ptac_scratch_give(job->sums);
    return PTAC_OK;
}

/*
 * Sums are taken of distances from a channel's first element, so that squares lose
 * nothing where a channel is far from zero.
 */
static float first_element(const ptac_batch_norm_job *job, int64_t c)
{
    const float first = job->x[c * job->p->n_pixels];

    return isfinite(first) ? first : 0;
}

static double elements_of_channel(const ptac_batch_norm_job *job)
{
    return (double)(job->p->n_images * job->p->n_pixels);
}

/* What the center leaves as a float goes into the shift. */
static numbers normalize_by(const ptac_batch_norm_job *job, int64_t c, double mean,
                            double rstd)
{
    const ptac_normalization by = ptac_batch_norm_by(job->call, c, mean, rstd);
    const double left = (double)(float)by.center - by.center;

    return (numbers){
        .center = by.center,
        .scale = by.scale,
        .shift = left == 0 ? by.shift : by.shift + left * by.scale,
    };
}

static numbers finish_batch(const ptac_batch_norm_job *job, int64_t c, double sum,
                            double squares)
{
    const double n = elements_of_channel(job);
    const double mean = (double)job->center[c * job->n_alike] + sum / n;
    double rstd;

    squares -= sum * (sum / n);
    if (squares < 0) /* all elements are equal but for roundings; NaN stays */
        squares = 0;
    rstd = ptac_batch_norm_rstd_of_batch(job->p, squares / n);
    ptac_batch_norm_save(job->call, c, mean, squares, rstd);

    const numbers of = normalize_by(job, c, mean, rstd);

    if (job->call->op == PTAC_OP_BATCH_NORM_ACT) {
        ptac_channel_output(job->call, PTAC_BATCH_NORM_SCALE, c, of.scale);
        ptac_channel_output(job->call, PTAC_BATCH_NORM_SHIFT, c, of.shift);
    }
    return of;
}

static float mean_of_gradient(const ptac_batch_norm_job *job, int64_t c)
{
    return (float)ptac_channel_input(job->call, PTAC_BATCH_NORM_GRAD_MEAN, c, 0);
}

static numbers finish_gradient(const ptac_batch_norm_job *job, int64_t c, double sum,
                               double products)
{
    const ptac_call *call = job->call;
    const double rstd = ptac_batch_norm_rstd(call, c), n = elements_of_channel(job);
    const double scale =
        rstd * ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_WEIGHT_OF, c, 1);

    ptac_channel_output(call, PTAC_BATCH_NORM_GRAD_WEIGHT, c, products * rstd);
    ptac_channel_output(call, PTAC_BATCH_NORM_GRAD_BIAS, c, sum);
    if (!job->p->by_batch)
        return (numbers){.scale = scale};
    return (numbers){
        .center = mean_of_gradient(job, c),
        .scale = scale,
        .slope = -scale * (products * rstd * rstd / n),
        .shift = -scale * (sum / n),
    };
}

static bool is_streamed(const ptac_channel_norm *p)
{
    return ptac_is_streamed(p->n_images * p->n_channels * p->n_pixels *
                            (int64_t)sizeof(float));
}

ptac_status ptac_batch_norm_run(const ptac_call *call,
                                const ptac_batch_norm_kernels *kernels)
{
    const ptac_channel_norm *p = call->params;
    const float *x = call->inputs[PTAC_BATCH_NORM_X].data;
    work w = {
        .job =
            {
                .call = call,
                .p = p,
                .x = x,
                .from = x,
                .result = call->outputs[PTAC_BATCH_NORM_Y].data,
                .streams = is_streamed(p),
            },
        .sum = kernels->sum,
        .apply = kernels->apply,
        .center = first_element,
        .finish = finish_batch,
    };

    return run(&w);
}

ptac_status ptac_batch_norm_backward_run(const ptac_call *call,
                                         const ptac_batch_norm_kernels *kernels)
{
    const ptac_channel_norm *p = call->params;
    const float *x = call->inputs[PTAC_BATCH_NORM_GRAD_X_OF].data;
    const float *grad = call->inputs[PTAC_BATCH_NORM_GRAD_Y].data;
    const bool needs_sums = p->by_batch ||
                            call->outputs[PTAC_BATCH_NORM_GRAD_WEIGHT].data ||
                            call->outputs[PTAC_BATCH_NORM_GRAD_BIAS].data;
    work w = {
        .job =
            {
                .call = call,
                .p = p,
                .x = x,
                .grad = grad,
                .from = p->by_batch ? x : grad,
                .result = call->outputs[PTAC_BATCH_NORM_GRAD_X].data,
                .streams = is_streamed(p),
            },
        .sum = needs_sums ? kernels->sum_gradients : NULL,
        .apply = p->by_batch ? kernels->apply_gradients : kernels->apply,
        .center = mean_of_gradient,
        .finish = finish_gradient,
    };

    if (kernels->apply_gradients_of_z && w.job.result) {
        w.job.grad_z = w.job.result;
        w.job.streams = false; /* what is read from there is near */
        w.apply = kernels->apply_gradients_of_z;
    }

    return run(&w);
}
