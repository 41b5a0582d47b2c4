/*
 * int8_conv2d.c - int8_conv2d as far as windows and points have it in common.
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
    const int n_tiles = (strip->n_pixels + PTAC_TILE_ROWS - 1) / PTAC_TILE_ROWS;
    const int least = strip->n_pixels / n_tiles, n_more = strip->n_pixels % n_tiles;
    const int n_vectors = (e->n_columns + PTAC_LANES - 1) / PTAC_LANES;
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
        if (!job->p->y_channels_last)
            fetch_planes(strip, plane, first + e->n_columns * t / n_tiles,
                         first + e->n_columns * (t + 1) / n_tiles);
        job->isa->sum(tile, n_rows, n_vectors, sums);
        job->isa->finish(e, sums, n_rows, rows, y, y_stride);
        y += n_rows * y_stride;
    }
}

void ptac_multiply_strip(const ptac_conv_job *job, const ptac_strip *strip,
                         int64_t panel, const int64_t *segments, int64_t n_segments,
                         int64_t n_quads)
{
    const ptac_int8_conv2d *p = job->p;
    const int64_t per_group = p->n / p->groups;
    const int64_t panels_per_group = (per_group + PTAC_PANEL - 1) / PTAC_PANEL;
    const int64_t group = panel / panels_per_group;
    const int64_t in_group = panel % panels_per_group * PTAC_PANEL;
    const int64_t first = group * per_group + in_group, left = per_group - in_group;
    const int64_t plane = p->out_height * p->out_width;
    const ptac_epilogue e = {
        .column_sums = ptac_packed_sums(&job->shape, job->packed) + first,
        .column_scales = job->scales + first,
        .bias = job->bias + first,
        .n_columns = (int)(left < PTAC_PANEL ? left : PTAC_PANEL),
        .relu = p->relu,
    };
    ptac_tile tile = {
        .segments = segments,
        .n_segments = n_segments,
        .n_quads = n_quads,
        .panel = job->packed + group * ptac_group_bytes(&job->shape) +
                 in_group * job->shape.taps * job->group_bytes,
    };
    _Alignas(64) float rows[(PTAC_STRIP + PTAC_LANES) * PTAC_PANEL];

    if (p->y_channels_last) {
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
static void fold(const ptac_call *call, int64_t n_channels, double eps, float *scales,
                 float *biases)
{
    const float *given = call->inputs[PTAC_CONV_SCALES].data;
    const float *bias = call->inputs[PTAC_CONV_BIAS].data;
    const ptac_batch_norm norm = {
        .weight = call->inputs[PTAC_CONV_WEIGHT].data,
        .bias = call->inputs[PTAC_CONV_SHIFT].data,
        .mean = call->inputs[PTAC_CONV_MEAN].data,
        .variance = call->inputs[PTAC_CONV_VARIANCE].data,
        .eps = eps,
    };

    for (int64_t n = 0; n < n_channels; n++) {
        scales[n] = given[n];
        biases[n] = bias ? bias[n] : 0.0f;
        if (norm.mean)
            ptac_batch_norm_fold(&norm, n, &scales[n], &biases[n]);
    }
}

static bool is_between(int64_t number, int64_t least, int64_t most)
{
    return number >= least && number <= most;
}

bool ptac_int8_conv2d_is_sound(const ptac_int8_conv2d *p)
{
    const int64_t most = PTAC_INT8_MOST_STEP;

    for (int i = 0; i < 2; i++)
        if (!is_between(p->kernel[i], 1, PTAC_INT8_MOST_TAPS) ||
            !is_between(p->stride[i], 1, most) || !is_between(p->padding[i], 0, most) ||
            !is_between(p->dilation[i], 1, most))
            return false;
    if (!is_between(p->c, 1, PTAC_INT8_MOST_TERMS) || !is_between(p->n, 1, most))
        return false;

    const ptac_packed_shape shape = {
        .n = p->n, .c = p->c, .taps = p->kernel[0] * p->kernel[1], .groups = p->groups};

    return ptac_packed_is_sound(&shape);
}

/* x, y, and the image of bytes with its margin. */
static bool has_countable_images(const ptac_int8_conv2d *p)
{
    const int64_t x[] = {p->batch, p->groups * p->c, p->height, p->width};
    const int64_t y[] = {p->batch, p->n, p->out_height, p->out_width};
    const int64_t height = p->height, width = p->width;

    if (!ptac_int8_is_countable(x, 4) || !ptac_int8_is_countable(y, 4))
        return false;

    const int64_t bytes[] = {height + 2 * p->padding[0], width + 2 * p->padding[1],
                             p->groups, ptac_quads(p->c) * PTAC_QUAD};

    return ptac_int8_is_countable(bytes, 4);
}

/* y has as many lines and columns as the window has places. */
static bool fits_its_places(const ptac_int8_conv2d *p)
{
    const int64_t sizes[] = {p->height, p->width};
    const int64_t places[] = {p->out_height, p->out_width};

    for (int i = 0; i < 2; i++) {
        const int64_t window = p->dilation[i] * (p->kernel[i] - 1) + 1;
        const int64_t room = sizes[i] + 2 * p->padding[i] - window;

        if (room < 0 || places[i] != room / p->stride[i] + 1)
            return false;
    }
    return true;
}

static ptac_reason why_not(const ptac_int8_conv2d *p)
{
    int64_t taps;

    if (p->batch <= 0 || p->n <= 0 || p->c <= 0 || p->height <= 0 || p->width <= 0 ||
        p->out_height <= 0 || p->out_width <= 0)
        return PTAC_EMPTY;
    if (!ptac_int8_conv2d_is_sound(p) || !has_countable_images(p) ||
        !fits_its_places(p))
        return PTAC_SHAPE;
    taps = p->kernel[0] * p->kernel[1];
    return taps > PTAC_INT8_MOST_TAPS || p->c * taps > PTAC_INT8_MOST_TERMS ? PTAC_SHAPE
                                                                            : PTAC_TAKE;
}

ptac_reason ptac_int8_conv2d_accepts(const ptac_call *call)
{
    return ptac_int8_is_aligned(call) ? why_not(call->params) : PTAC_LAYOUT;
}

static bool is_points(const ptac_int8_conv2d *p)
{
    return p->kernel[0] == 1 && p->kernel[1] == 1 && p->padding[0] == 0 &&
           p->padding[1] == 0;
}

ptac_status ptac_int8_conv2d_run(const ptac_call *call, const ptac_int8_isa *isa)
{
    const ptac_int8_conv2d *p = call->params;
    float *folded = ptac_scratch_take(2 * (size_t)p->n * sizeof *folded);
    const ptac_conv_job job = {
        .isa = isa,
        .p = p,
        .shape = {.n = p->n,
                  .c = p->c,
                  .taps = p->kernel[0] * p->kernel[1],
                  .groups = p->groups},
        .x = call->inputs[PTAC_CONV_X].data,
        .y = call->outputs[0].data,
        .packed = call->inputs[PTAC_CONV_PACKED].data,
        .scales = folded,
        .bias = folded + p->n,
        .n_threads = call->n_threads,
        .group_bytes = ptac_quads(p->c) * PTAC_QUAD,
        .n_panels = p->groups * ((p->n / p->groups + PTAC_PANEL - 1) / PTAC_PANEL),
        .n_strips = (p->out_height * p->out_width + PTAC_STRIP - 1) / PTAC_STRIP,
    };
    ptac_status status = PTAC_NO_MEMORY;

    if (folded) {
        fold(call, p->n, p->eps, folded, folded + p->n);
        status =
            is_points(p) ? ptac_convolve_points(&job) : ptac_convolve_windows(&job);
    }
    ptac_scratch_give(folded);
    return status;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_int8_conv2d *p = call->params;
    const bool is_square = p->kernel[0] == p->kernel[1];
    const ptac_reason why = why_not(p);
    int64_t taps;

    if (why)
        return why;
    taps = p->kernel[0] * p->kernel[1];
    shape->kind = p->groups > 1            ? PTAC_INT8_CONV_GROUPED
                  : p->c < 16              ? PTAC_INT8_CONV_FEW
                  : taps == 1              ? PTAC_INT8_CONV_1X1
                  : taps == 9 && is_square ? PTAC_INT8_CONV_3X3
                                           : PTAC_INT8_CONV_OTHER;
    shape->work = p->n / p->groups * p->c * taps;
    return PTAC_TAKE;
}

static const ptac_op_shapes shapes = {
    .op = PTAC_OP_INT8_CONV2D,
    .kinds = {"1x1", "3x3", "other", "few", "grouped"},
    .classify = classify,
    .is_decided = true,
};
PTAC_REGISTER_SHAPES(shapes)
