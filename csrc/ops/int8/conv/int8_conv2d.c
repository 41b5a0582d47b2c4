/*
 * int8_conv2d.c - which calls of int8_conv2d are sound, their shape kinds, and their
 * way: by windows or by points.
 */
#include "ops/int8/conv/conv_job.h"

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

    const ptac_packed_shape shape = ptac_int8_conv2d_weight(p);

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

int64_t ptac_int8_conv2d_places(const ptac_int8_conv2d *p, int axis)
{
    const int64_t size = axis ? p->width : p->height;
    const int64_t window = p->dilation[axis] * (p->kernel[axis] - 1) + 1;
    const int64_t room = size + 2 * p->padding[axis] - window;

    return room < 0 ? 0 : room / p->stride[axis] + 1;
}

static ptac_reason why_not(const ptac_int8_conv2d *p)
{
    if (p->batch <= 0 || p->n <= 0 || p->c <= 0 || p->height <= 0 || p->width <= 0 ||
        p->out_height <= 0 || p->out_width <= 0)
        return PTAC_EMPTY;
    if (!ptac_int8_conv2d_is_sound(p) || !has_countable_images(p) ||
        p->out_height != ptac_int8_conv2d_places(p, 0) ||
        p->out_width != ptac_int8_conv2d_places(p, 1) ||
        p->kernel[0] * p->kernel[1] > PTAC_INT8_MOST_TAPS ||
        p->c * p->kernel[0] * p->kernel[1] > PTAC_INT8_MOST_TERMS)
        return PTAC_SHAPE;
    return PTAC_TAKE;
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
    ptac_conv_job job = {
        .isa = isa,
        .call = call,
        .p = p,
        .shape = ptac_int8_conv2d_weight(p),
        .x = call->inputs[PTAC_INT8_CONV_X].data,
        .y = call->outputs[0].data,
        .packed = call->inputs[PTAC_INT8_CONV_PACKED].data,
        .group_bytes = ptac_quads(p->c) * PTAC_QUAD,
        .n_panels = p->groups * ptac_parts(p->n / p->groups, PTAC_PANEL),
        .n_strips = ptac_parts(p->out_height * p->out_width, PTAC_STRIP),
    };

    return is_points(p) ? ptac_convolve_points(&job) : ptac_convolve_windows(&job);
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

PTAC_SHAPES_OF(INT8_CONV2D, classify, 0, true, "1x1", "3x3", "other", "few", "grouped")
