/*
 * upsample.c - aten::upsample_nearest2d, aten::upsample_bilinear2d, their backwards,
 * aten::pixel_shuffle and aten::pixel_unshuffle.
 */
#include "bind/torch/overrides/override.h"

#include "ops/upsample/pixel_shuffle.h"
#include "ops/upsample/upsample.h"

/* A scale that is not given is 0, which ATen takes for none as well. */
static double scale_of(const ptac_argument *scale)
{
    return scale->is_given ? scale->real : 0;
}

/* The batch of images that a call begins with, and the layout of its result. */
static ptac_reason read_images(const ptac_view *images, const ptac_dims *sizes,
                               ptac_upsample *p, ptac_outputs *outputs)
{
    if (images->n_dims != 4)
        return PTAC_SHAPE;
    if (images->n_elements == 0)
        return PTAC_EMPTY;
    if (sizes->n != 2 || sizes->values[0] < 1 || sizes->values[1] < 1)
        return PTAC_ARGUMENT;
    p->n = images->sizes[0];
    p->channels = images->sizes[1];
    p->channels_last = ptac_view_suggests_channels_last(images);
    outputs->channels_last = p->channels_last;
    return PTAC_TAKE;
}

/* The result's sizes; all that rows do not do is left to stock. */
static ptac_reason fit(const ptac_upsample *p, int64_t h, int64_t w,
                       ptac_outputs *outputs)
{
    int64_t *sizes = outputs->own_sizes;

    if (!ptac_upsample_fits(&p->h) || !ptac_upsample_fits(&p->w) ||
        p->h.outputs > INT32_MAX / p->w.outputs)
        return PTAC_SHAPE;
    sizes[0] = p->n;
    sizes[1] = p->channels;
    sizes[2] = h;
    sizes[3] = w;
    ptac_outputs_are(outputs, 4, sizes);
    return PTAC_TAKE;
}

/* Which of ATen's kernels the call would reach. */
static bool is_by_pixel(const ptac_view *x, const int64_t *sizes)
{
    return (ptac_view_is_channels_last(x) && x->sizes[1] > 3) ||
           sizes[0] + sizes[1] <= 128;
}

static ptac_reason read_nearest(const ptac_arguments *args, const ptac_call *call,
                                void *params, ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[0];
    const int64_t *sizes = args->at[1].ints.values;
    ptac_upsample *p = params;
    const ptac_reason why = read_images(x, &args->at[1].ints, p, outputs);

    if (why)
        return why;
    p->by_pixel = is_by_pixel(x, sizes);
    p->h =
        ptac_nearest_axis(x->sizes[2], sizes[0], scale_of(&args->at[2]), p->by_pixel);
    p->w =
        ptac_nearest_axis(x->sizes[3], sizes[1], scale_of(&args->at[3]), p->by_pixel);
    return fit(p, sizes[0], sizes[1], outputs);
}

/* Gradients of what a call enlarged to sizes from of_x. */
static ptac_reason read_gradient(const ptac_view *grad, const ptac_dims *sizes,
                                 const ptac_dims *of_x, ptac_upsample *p,
                                 ptac_outputs *outputs)
{
    const ptac_reason why = read_images(grad, sizes, p, outputs);

    if (why)
        return why;
    if (of_x->n != 4 || of_x->values[0] != p->n || of_x->values[1] != p->channels ||
        grad->sizes[2] != sizes->values[0] || grad->sizes[3] != sizes->values[1])
        return PTAC_ARGUMENT;
    return PTAC_TAKE;
}

static ptac_reason read_nearest_backward(const ptac_arguments *args,
                                         const ptac_call *call, void *params,
                                         ptac_outputs *outputs)
{
    const ptac_view *grad = &call->inputs[0];
    const ptac_dims *sizes = &args->at[1].ints, *of_x = &args->at[2].ints;
    ptac_upsample *p = params;
    const ptac_reason why = read_gradient(grad, sizes, of_x, p, outputs);

    if (why)
        return why;
    p->h = ptac_nearest_axis(of_x->values[2], sizes->values[0], scale_of(&args->at[3]),
                             true);
    p->w = ptac_nearest_axis(of_x->values[3], sizes->values[1], scale_of(&args->at[4]),
                             true);
    return fit(p, of_x->values[2], of_x->values[3], outputs);
}

static ptac_reason read_bilinear(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[0];
    const int64_t *sizes = args->at[1].ints.values;
    ptac_upsample *p = params;
    const ptac_reason why = read_images(x, &args->at[1].ints, p, outputs);

    if (why)
        return why;
    p->by_pixel =
        is_by_pixel(x, sizes) || (p->channels == 3 && ptac_the_host.n_threads() == 1);
    p->is_fused = ptac_the_host.fma;
    p->align_corners = args->at[2].truth;
    p->h = ptac_linear_axis(x->sizes[2], sizes[0], scale_of(&args->at[3]), p);
    p->w = ptac_linear_axis(x->sizes[3], sizes[1], scale_of(&args->at[4]), p);
    return fit(p, sizes[0], sizes[1], outputs);
}

static ptac_reason read_bilinear_backward(const ptac_arguments *args,
                                          const ptac_call *call, void *params,
                                          ptac_outputs *outputs)
{
    const ptac_view *grad = &call->inputs[0];
    const ptac_dims *sizes = &args->at[1].ints, *of_x = &args->at[2].ints;
    ptac_upsample *p = params;
    const ptac_reason why = read_gradient(grad, sizes, of_x, p, outputs);

    if (why)
        return why;
    p->is_fused = ptac_the_host.fma;
    p->align_corners = args->at[3].truth;
    p->h =
        ptac_linear_axis(of_x->values[2], sizes->values[0], scale_of(&args->at[4]), p);
    p->w =
        ptac_linear_axis(of_x->values[3], sizes->values[1], scale_of(&args->at[5]), p);
    return fit(p, of_x->values[2], of_x->values[3], outputs);
}

/* Sizes but for the last three are batches. Results in NHWC are stock's. */
static ptac_reason read_shuffle(const ptac_arguments *args, const ptac_call *call,
                                void *params, ptac_outputs *outputs)
{
    const bool is_back = args->of->op == PTAC_OP_PIXEL_UNSHUFFLE;
    const ptac_view *x = &call->inputs[0];
    const int64_t factor = args->at[1].number;
    ptac_pixel_shuffle *p = params;
    int64_t *sizes = outputs->own_sizes, *image;

    if (x->n_dims < 3 || x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (factor < 1 || factor > 1 << 15)
        return PTAC_ARGUMENT;
    if (ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    memcpy(sizes, x->sizes, (size_t)x->n_dims * sizeof *sizes);
    image = sizes + x->n_dims - 3;
    if (is_back ? image[1] % factor || image[2] % factor
                : image[0] % (factor * factor) != 0)
        return PTAC_ARGUMENT;
    p->factor = factor;
    p->h = is_back ? image[1] / factor : image[1];
    p->w = is_back ? image[2] / factor : image[2];
    p->planes = x->n_elements / (p->h * p->w * factor * factor);
    image[0] = is_back ? image[0] * factor * factor : image[0] / (factor * factor);
    image[1] = is_back ? p->h : p->h * factor;
    image[2] = is_back ? p->w : p->w * factor;
    ptac_outputs_are(outputs, x->n_dims, sizes);
    return PTAC_TAKE;
}

static ptac_override upsample_nearest2d = {
    .schema = "upsample_nearest2d(Tensor self, SymInt[2] output_size, "
              "float? scales_h=None, float? scales_w=None) -> Tensor",
    .op = PTAC_OP_UPSAMPLE_NEAREST2D,
    .out = "aten::upsample_nearest2d.out",
    .n_inputs = 1,
    .read = read_nearest,
};
PTAC_OVERRIDE(upsample_nearest2d, cpu_upsample_nearest2d, TENSOR(0), INTS(1),
              OPTIONAL_REAL(2), OPTIONAL_REAL(3))

static ptac_override upsample_nearest2d_backward = {
    .schema = "upsample_nearest2d_backward(Tensor grad_output, SymInt[2] output_size, "
              "SymInt[4] input_size, float? scales_h=None, float? scales_w=None) "
              "-> Tensor",
    .op = PTAC_OP_UPSAMPLE_NEAREST2D_BACKWARD,
    .out = "aten::upsample_nearest2d_backward.grad_input",
    .n_inputs = 1,
    .read = read_nearest_backward,
};
PTAC_OVERRIDE(upsample_nearest2d_backward, cpu_upsample_nearest2d_backward, TENSOR(0),
              INTS(1), INTS(2), OPTIONAL_REAL(3), OPTIONAL_REAL(4))

static ptac_override upsample_bilinear2d = {
    .schema = "upsample_bilinear2d(Tensor self, SymInt[2] output_size, "
              "bool align_corners, float? scales_h=None, float? scales_w=None) "
              "-> Tensor",
    .op = PTAC_OP_UPSAMPLE_BILINEAR2D,
    .out = "aten::upsample_bilinear2d.out",
    .n_inputs = 1,
    .read = read_bilinear,
};
PTAC_OVERRIDE(upsample_bilinear2d, cpu_upsample_bilinear2d, TENSOR(0), INTS(1), BOOL(2),
              OPTIONAL_REAL(3), OPTIONAL_REAL(4))

static ptac_override upsample_bilinear2d_backward = {
    .schema = "upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, "
              "SymInt[4] input_size, bool align_corners, float? scales_h=None, "
              "float? scales_w=None) -> Tensor",
    .op = PTAC_OP_UPSAMPLE_BILINEAR2D_BACKWARD,
    .out = "aten::upsample_bilinear2d_backward.grad_input",
    .n_inputs = 1,
    .read = read_bilinear_backward,
};
PTAC_OVERRIDE(upsample_bilinear2d_backward, cpu_upsample_bilinear2d_backward, TENSOR(0),
              INTS(1), INTS(2), BOOL(3), OPTIONAL_REAL(4), OPTIONAL_REAL(5))

/* The overloads "out" of these two call the operators themselves. */
static ptac_override pixel_shuffle = {
    .schema = "pixel_shuffle(Tensor self, int upscale_factor) -> Tensor",
    .op = PTAC_OP_PIXEL_SHUFFLE,
    .n_inputs = 1,
    .read = read_shuffle,
};
PTAC_OVERRIDE(pixel_shuffle, cpu_pixel_shuffle, TENSOR(0), INT(1))

static ptac_override pixel_unshuffle = {
    .schema = "pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor",
    .op = PTAC_OP_PIXEL_UNSHUFFLE,
    .n_inputs = 1,
    .read = read_shuffle,
};
PTAC_OVERRIDE(pixel_unshuffle, cpu_pixel_unshuffle, TENSOR(0), INT(1))
