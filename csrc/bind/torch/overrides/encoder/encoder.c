/*
 * encoder.c - aten's self-attention with its projections, and its encoder layer, which
 * modules call in inference. Nested tensors have keys of their own, and are stock's.
 *
 * Source: ATen/native/transformers/attention.cpp and transformer.cpp, for sizes and the
 * kinds of masks, and ATen/native/SoftMax.cpp, masked_softmax_cpu().
 */
#include "bind/torch/rows/encoder/encoder.h"

#include "bind/torch/overrides/override.h"

static ptac_reason matrix_reason(const ptac_argument *argument, int64_t m, int64_t n)
{
    const ptac_view *view = &argument->view;

    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!ptac_view_has_sizes(view, 2, (const int64_t[]){m, n}))
        return PTAC_ARGUMENT;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

/* A layer's weight [n, k] and, behind it, its bias. */
static ptac_reason layer_reason(const ptac_argument *weight, int64_t n, int64_t k)
{
    const ptac_reason why = matrix_reason(weight, n, k);

    return why ? why : ptac_vector_reason(&weight[1].view, n);
}

static ptac_reason read_x(const ptac_view *x, const ptac_argument *embed,
                          const ptac_argument *heads, ptac_self_attention *p)
{
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_dims != 3)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    *p = (ptac_self_attention){
        .batch = x->sizes[0],
        .length = x->sizes[1],
        .width = x->sizes[2],
        .heads = heads->number,
        .mask_kind = PTAC_NO_MASK,
    };
    return p->width != embed->number || p->heads < 1 || p->width % p->heads != 0
               ? PTAC_ARGUMENT
               : PTAC_TAKE;
}

static ptac_reason read_weights(const ptac_argument *weights, ptac_self_attention *p)
{
    const ptac_reason why = layer_reason(weights, 3 * p->width, p->width);

    p->w_in = weights[0].tensor;
    p->b_in = weights[1].tensor;
    p->w_out = weights[2].tensor;
    p->b_out = weights[3].tensor;
    return why ? why : layer_reason(weights + 2, p->width, p->width);
}

/* One that stock refuses is refused by stock, and one without a kind warned about. */
static ptac_reason read_mask(const ptac_argument *mask, const ptac_argument *kind,
                             ptac_self_attention *p)
{
    const int64_t pairs[2] = {p->length, p->length}, keys[2] = {p->batch, p->length};
    const int64_t all[4] = {p->batch, p->heads, p->length, p->length};
    const ptac_view *view = &mask->view;
    int32_t dtype = -1;

    if (!mask->is_given)
        return PTAC_TAKE;
    T.aoti_torch_get_dtype(mask->tensor, &dtype);
    if (dtype != AT_DTYPE_BOOL && view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!kind->is_given || !view->data)
        return PTAC_ARGUMENT;
    if (kind->number == PTAC_MASK_PAIRS && ptac_view_has_sizes(view, 2, pairs))
        p->mask_kind = PTAC_MASK_PAIRS;
    else if (kind->number == PTAC_MASK_KEYS && ptac_view_has_sizes(view, 2, keys))
        p->mask_kind = PTAC_MASK_KEYS;
    else if (kind->number == PTAC_MASK_ALL && ptac_view_has_sizes(view, 4, all))
        p->mask_kind = PTAC_MASK_ALL;
    else
        return PTAC_ARGUMENT;
    p->mask_is_float = dtype != AT_DTYPE_BOOL;
    p->mask = view;
    return PTAC_TAKE;
}

static bool is_same(at_tensor a, at_tensor b)
{
    return *(void **)a == *(void **)b;
}

static ptac_reason read_attention(const ptac_arguments *args, const ptac_call *call,
                                  void *params, ptac_outputs *outputs)
{
    const ptac_argument *at = args->at;
    const ptac_view *x = &call->inputs[0];
    ptac_self_attention *p = params;
    ptac_reason why;

    if (!is_same(at[0].tensor, at[1].tensor) || !is_same(at[0].tensor, at[2].tensor) ||
        at[10].truth)
        return PTAC_ARGUMENT;
    why = read_x(x, &at[3], &at[4], p);
    if (!why)
        why = read_weights(at + 5, p);
    if (!why)
        why = read_mask(&at[9], &at[12], p);
    if (why)
        return why;
    p->x = at[0].tensor;
    outputs->dense = 0;
    ptac_outputs_are(outputs, 3, x->sizes);
    outputs->at[1].n_dims = -1; /* weights, which nobody wants */
    return PTAC_TAKE;
}

/* The layers behind attention, and the norms. */
static ptac_reason read_rest(const ptac_argument *at, ptac_encoder_layer *p)
{
    const int64_t width = p->attention.width;
    ptac_reason why = PTAC_TAKE;

    for (int i = 0; !why && i < 4; i++)
        why = ptac_vector_reason(&at[i].view, width);
    for (int i = 0; i < 2; i++) {
        p->norm1[i] = at[i].tensor;
        p->norm2[i] = at[2 + i].tensor;
    }
    if (!why && at[4].view.n_dims != 2)
        why = PTAC_ARGUMENT;
    if (why)
        return why;
    p->hidden = at[4].view.sizes[0];
    p->w1 = at[4].tensor;
    p->b1 = at[5].tensor;
    p->w2 = at[6].tensor;
    p->b2 = at[7].tensor;
    why = layer_reason(at + 4, p->hidden, width);
    return why ? why : layer_reason(at + 6, width, p->hidden);
}

static ptac_reason read_layer(const ptac_arguments *args, const ptac_call *call,
                              void *params, ptac_outputs *outputs)
{
    const ptac_argument *at = args->at;
    const ptac_view *x = &call->inputs[0];
    ptac_encoder_layer *p = params;
    ptac_reason why = read_x(x, &at[1], &at[2], &p->attention);

    _Static_assert(sizeof *p <= PTAC_PARAMS_BYTES, "there is too little room");
    if (!why)
        why = read_weights(at + 3, &p->attention);
    if (!why)
        why = read_mask(&at[18], &at[19], &p->attention);
    if (!why)
        why = read_rest(at + 10, p);
    if (why)
        return why;
    p->attention.x = at[0].tensor;
    p->activation = at[7].truth ? PTAC_ACT_GELU : PTAC_ACT_RELU;
    p->norm_first = at[8].truth;
    p->eps = at[9].real;
    outputs->dense = 0;
    ptac_outputs_are(outputs, 3, x->sizes);
    return PTAC_TAKE;
}

static ptac_override multi_head_attention = {
    .schema = "_native_multi_head_attention(Tensor query, Tensor key, Tensor value, "
              "int embed_dim, int num_head, Tensor qkv_weight, Tensor qkv_bias, "
              "Tensor proj_weight, Tensor proj_bias, Tensor? mask=None, "
              "bool need_weights=True, bool average_attn_weights=True, "
              "int? mask_type=None) -> (Tensor, Tensor)",
    .op = PTAC_OP_MULTI_HEAD_ATTENTION,
    .n_inputs = 1,
    .inputs = {0},
    .read = read_attention,
    .by_handles = true,
    .needs = &T.is_autocast_enabled,
};
PTAC_OVERRIDE(multi_head_attention, cpu_multi_head_attention, TENSOR(0), TENSOR(1),
              TENSOR(2), INT(3), INT(4), TENSOR(5), TENSOR(6), TENSOR(7), TENSOR(8),
              OPTIONAL_TENSOR(9), BOOL(10), BOOL(11), OPTIONAL_INT(12))

static ptac_override encoder_layer = {
    .schema = "_transformer_encoder_layer_fwd(Tensor src, int embed_dim, "
              "int num_heads, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, "
              "Tensor proj_bias, bool use_gelu, bool norm_first, float eps, "
              "Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, "
              "Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, "
              "Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? mask=None, "
              "int? mask_type=None) -> Tensor",
    .op = PTAC_OP_ENCODER_LAYER,
    .n_inputs = 1,
    .inputs = {0},
    .read = read_layer,
    .by_handles = true,
    .needs = &T.is_autocast_enabled,
};
PTAC_OVERRIDE(encoder_layer, cpu_encoder_layer, TENSOR(0), INT(1), INT(2), TENSOR(3),
              TENSOR(4), TENSOR(5), TENSOR(6), BOOL(7), BOOL(8), REAL(9), TENSOR(10),
              TENSOR(11), TENSOR(12), TENSOR(13), TENSOR(14), TENSOR(15), TENSOR(16),
              TENSOR(17), OPTIONAL_TENSOR(18), OPTIONAL_INT(19))
