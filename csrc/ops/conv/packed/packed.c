/*
 * packed.c - which convolutions by kernels of 1x1 are packed, as products of matrices.
 */
#include "ops/conv/packed/packed.h"

enum {
    LEAST_PLACES = 16, /* of an image, or panels are pieced together of too many */
    PACKED_FLOATS = 1 << 22, /* of weights, at most */
};

/* y = w x, or grad_x = transposed w grad_y, of an image. */
static ptac_product product_of_places(const ptac_conv2d *p, int64_t n_places)
{
    const bool is_data = p->result == PTAC_CONV_DATA;

    return (ptac_product){
        .m = is_data ? p->in_channels : p->out_channels,
        .n = n_places,
        .k = is_data ? p->out_channels : p->in_channels,
        .a_row = is_data ? 1 : p->in_channels,
        .a_term = is_data ? p->in_channels : 1,
        .b_term = n_places,
        .b_column = 1,
        .alpha = 1,
        .y_row = n_places,
    };
}

/* grad_w = grad_y transposed x, to which images add theirs. */
static ptac_product product_of_weight(const ptac_conv2d *p, int64_t n_places)
{
    return (ptac_product){
        .m = p->out_channels,
        .n = p->in_channels,
        .k = n_places,
        .a_row = n_places,
        .a_term = 1,
        .b_term = 1,
        .b_column = n_places,
        .alpha = 1,
        .y_row = p->in_channels,
    };
}

ptac_packed_conv ptac_packed_conv_of(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_places = (int64_t)p->d * p->h * p->w;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    ptac_packed_conv conv = {
        .image =
            is_weight ? product_of_weight(p, n_places) : product_of_places(p, n_places),
        .n_images = p->n,
        .least = ptac_act_least(p->act),
        .most = ptac_act_most(p->act),
    };

    conv.a_image = is_weight ? p->out_channels * n_places : 0;
    conv.b_image = is_weight ? p->in_channels * n_places : conv.image.k * n_places;
    conv.y_image = is_weight ? 0 : conv.image.m * n_places;
    conv.image.a = call->inputs[1].data;
    conv.image.b = call->inputs[0].data;
    if (call->n_outputs > 0)
        conv.image.y = call->outputs[0].data;
    if (!is_weight) {
        conv.shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
        conv.scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    }
    return conv;
}

static bool is_1x1(const ptac_conv2d *p)
{
    return p->kernel_d == 1 && p->kernel_h == 1 && p->kernel_w == 1 &&
           p->stride_d == 1 && p->stride_h == 1 && p->stride_w == 1 && p->pad_d == 0 &&
           p->pad_h == 0 && p->pad_w == 0;
}

ptac_reason ptac_packed_conv_accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->channels_last || !ptac_view_is_contiguous(&call->inputs[0]) ||
        !ptac_view_is_contiguous(&call->inputs[1]))
        return PTAC_LAYOUT;
    if (!is_1x1(p) || p->groups != 1 || p->with_pool ||
        (int64_t)p->d * p->h * p->w < LEAST_PLACES ||
        p->in_channels > PACKED_FLOATS / p->out_channels)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

bool ptac_packed_conv_pays(const ptac_call *call)
{
    enum { LEAST_CHANNELS = 16, LEAST_COLUMNS = 192 };
    const ptac_conv2d *p = call->params;

    return p->in_channels >= LEAST_CHANNELS && p->out_channels >= LEAST_CHANNELS &&
           ptac_conv2d_pixels(p) >= LEAST_COLUMNS;
}

size_t ptac_packed_conv_kept_bytes(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return sizeof(float) * (size_t)p->in_channels * (size_t)p->out_channels;
}
