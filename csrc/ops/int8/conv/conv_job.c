/*
 * conv_job.c - what windows and points have in common: strips by panels, and scratch.
 */
#include "ops/int8/conv/conv_job.h"

#include "core/scratch.h"
#include "ops/norm/batch_norm_fold.h"

int64_t ptac_conv_work(const ptac_int8_conv2d *p)
{
    return p->n * p->c * p->kernel[0] * p->kernel[1] * p->out_height * p->out_width;
}

/*
 * Whole strips, whose ends are ends of cache lines in planes, and what is left; images
 * of less than two strips in even parts.
 */
int64_t ptac_strip_begin(const ptac_conv_job *job, int64_t i)
{
    const int64_t plane = job->p->out_height * job->p->out_width;

    if (i >= job->n_strips)
        return plane;
    return plane <= 2 * PTAC_STRIP ? plane * i / job->n_strips : i * PTAC_STRIP;
}

/*
 * Some of the planes' lines that a strip goes to travel while a tile is made: all of
 * them, asked for when the strip is stored, would be waited for.
 */
static void fetch_planes(const ptac_strip *strip, int64_t plane, int64_t begin,
                         int64_t end)
{
    for (int64_t c = begin; c < end; c++)
        for (int i = 0; i < strip->n_pixels; i += PTAC_LANES)
            __builtin_prefetch(strip->y + c * plane + strip->first + i, 1);
}

/* Rows of 64 floats, y_stride apart, by tiles as even as can be. */
static void multiply_tiles(const ptac_conv_job *job, const ptac_strip *strip,
                           const ptac_epilogue *e, ptac_tile *tile,
                           int64_t group_offset, int64_t first, float *y,
                           int64_t y_stride)
{
    const int64_t plane = job->p->out_height * job->p->out_width;
    const int n_tiles = (int)ptac_parts(strip->n_pixels, PTAC_TILE_ROWS);
    const int least = strip->n_pixels / n_tiles, n_more = strip->n_pixels % n_tiles;
    const int n_vectors = (int)ptac_parts(e->n_columns, PTAC_LANES);
    const ptac_row_scale by = strip->by;
    const ptac_row_scale rows[PTAC_TILE_ROWS] = {by, by, by, by, by, by};
    const uint8_t *line =
        strip->origin + group_offset + strip->from / strip->width * strip->step_y;
    int64_t x = strip->from % strip->width;
    _Alignas(64) int32_t sums[PTAC_TILE_ROWS * PTAC_PANEL];

    for (int t = 0; t < n_tiles; t++) {
        const int n_rows = least + (t < n_more);

        for (int r = 0; r < n_rows; r++) {
            tile->rows[r] = line + x * strip->step_x;
            if (++x == strip->width) {
                x = 0;
                line += strip->step_y;
            }
        }
        if (!job->p->channels_last)
            fetch_planes(strip, plane, first + e->n_columns * t / n_tiles,
                         first + e->n_columns * (t + 1) / n_tiles);
        job->isa->sum(tile, n_rows, n_vectors, sums);
        job->isa->finish(e, sums, n_rows, rows, y, y_stride);
        y += n_rows * y_stride;
    }
}

void ptac_multiply_strip(const ptac_conv_job *job, const ptac_strip *strip,
                         int64_t panel)
{
    const ptac_int8_conv2d *p = job->p;
    const int64_t per_group = p->n / p->groups;
    const int64_t panels_per_group = ptac_parts(per_group, PTAC_PANEL);
    const int64_t group = panel / panels_per_group;
    const int64_t in_group = panel % panels_per_group * PTAC_PANEL;
    const int64_t first = group * per_group + in_group;
    const int64_t plane = p->out_height * p->out_width;
    const ptac_epilogue e = {
        .column_sums = ptac_packed_sums(&job->shape, job->packed) + first,
        .column_scales = job->scales + first,
        .bias = job->bias + first,
        .n_columns = (int)ptac_least(per_group - in_group, PTAC_PANEL),
        .relu = p->relu,
    };
    ptac_tile tile; /* its rows come later */
    _Alignas(64) float rows[(PTAC_STRIP + PTAC_LANES) * PTAC_PANEL];

    tile.segments = job->segments;
    tile.n_segments = job->n_segments;
    tile.n_quads = job->n_quads;
    tile.panel = job->packed + group * ptac_group_bytes(&job->shape) +
                 in_group * job->shape.taps * job->group_bytes;
    if (p->channels_last) {
        multiply_tiles(job, strip, &e, &tile, group * job->group_bytes, first,
                       strip->y + strip->first * p->n + first, p->n);
        return;
    }
    multiply_tiles(job, strip, &e, &tile, group * job->group_bytes, first, rows,
                   PTAC_PANEL);
    job->isa->store_planes(rows, strip->n_pixels, e.n_columns,
                           strip->y + first * plane + strip->first, plane);
}

/* Scale and bias of each output channel, with the normalization folded in. */
static void fold(const ptac_conv_job *job, float *scales, float *biases)
{
    const ptac_call *call = job->call;
    const float *given = call->inputs[PTAC_INT8_CONV_SCALES].data;
    const float *bias = call->inputs[PTAC_INT8_CONV_BIAS].data;
    const ptac_batch_norm norm = {
        .weight = call->inputs[PTAC_INT8_CONV_WEIGHT].data,
        .bias = call->inputs[PTAC_INT8_CONV_SHIFT].data,
        .mean = call->inputs[PTAC_INT8_CONV_MEAN].data,
        .variance = call->inputs[PTAC_INT8_CONV_VARIANCE].data,
        .eps = job->p->eps,
    };

    for (int64_t n = 0; n < job->p->n; n++) {
        scales[n] = given[n];
        biases[n] = bias ? bias[n] : 0.0f;
        if (norm.mean)
            ptac_batch_norm_fold(&norm, n, &scales[n], &biases[n]);
    }
}

void *ptac_conv_scratch(ptac_conv_job *job, int64_t n_bytes)
{
    const int64_t n = ptac_packed_columns(job->p->n);
    float *folded =
        ptac_scratch_take((size_t)(2 * n) * sizeof *folded + (size_t)n_bytes);

    if (!folded)
        return NULL;
    fold(job, folded, folded + n);
    job->scales = folded;
    job->bias = folded + n;
    return folded + 2 * n;
}

void ptac_conv_give_scratch(const ptac_conv_job *job)
{
    ptac_scratch_give((void *)job->scales);
}
