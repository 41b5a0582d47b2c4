/*
 * norm.c - aten's LayerNorm, and on CUDA RMSNorm, and their gradients.
 *
 * Source: ATen/native/layer_norm.cpp and cuda/layer_norm_kernel.cu, for sizes, dtypes
 * and the default eps.
 */
#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/norm_rows.h"

#include <float.h>

/* Rows of x by the dimensions that are normalized, or why they are none. */
static ptac_reason read_rows(const ptac_call *call, const ptac_view *x,
                             const ptac_argument *normalized, ptac_norm *p)
{
    const int n = normalized->ints.n, first = x->n_dims - n;
    ptac_reason why;

    *p = (ptac_norm){.width = 0};
    why = ptac_norm_read_rows(call, x, n, p);
    for (int i = 0; !why && i < n; i++)
        if (normalized->all[i] != x->sizes[first + i])
            why = PTAC_ARGUMENT;
    return why;
}

/* Numbers of rows keep the dimensions of x, where those that are normalized are 1. */
static const int64_t *row_sizes(const ptac_view *x, int n_normalized, int64_t *sizes)
{
    for (int i = 0; i < x->n_dims; i++)
        sizes[i] = i < x->n_dims - n_normalized ? x->sizes[i] : 1;
    return sizes;
}

static ptac_reason read_forward(const ptac_arguments *args, const ptac_call *call,
                                ptac_norm *p, ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[PTAC_NORM_X];
    const ptac_argument *normalized = &args->at[1];
    ptac_reason why = read_rows(call, x, normalized, p);

    for (int i = PTAC_NORM_WEIGHT; !why && i <= PTAC_NORM_BIAS; i++)
        why = ptac_norm_weight_reason(&call->inputs[i], x, normalized->ints.n);
    if (why)
        return why;
    ptac_outputs_are(outputs, x->n_dims,
                     row_sizes(x, normalized->ints.n, outputs->own_sizes));
    outputs->at[0].sizes = x->sizes;
    for (int i = 1; i < outputs->n; i++)
        outputs->at[i].dtype = AT_DTYPE_F32;
    return PTAC_TAKE;
}

static ptac_reason read_layer_norm(const ptac_arguments *args, const ptac_call *call,
                                   void *params, ptac_outputs *outputs)
{
    ptac_norm *p = params;
    const ptac_reason why = read_forward(args, call, p, outputs);

    p->eps = args->at[4].real;
    outputs->at[1].place = PTAC_NORM_MEAN;
    outputs->at[2].place = PTAC_NORM_RSTD;
    return why;
}

static ptac_reason read_rms_norm(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_outputs *outputs)
{
    const ptac_argument *eps = &args->at[3];
    ptac_norm *p = params;
    const ptac_reason why = read_forward(args, call, p, outputs);

    p->is_rms = true;
    p->eps = eps->is_given ? eps->real : FLT_EPSILON;
    outputs->at[1].place = PTAC_NORM_RSTD;
    return why;
}

/* The gradients that are asked for, as x and the weights are, and room for parts. */
static ptac_reason expect_gradients(const ptac_call *call, const ptac_norm *p,
                                    const ptac_argument *const *belong_to,
                                    const ptac_argument *mask, ptac_outputs *outputs)
{
    ptac_output *at = outputs->at;
    bool has_weights = false;

    for (int i = PTAC_NORM_GRAD_X; i < PTAC_NORM_GRAD_PARTS; i++) {
        const bool is_wanted = i < mask->ints.n && mask->ints.values[i];

        at[i] = (ptac_output){
            .dtype = ptac_torch_dtype(call->inputs[0].dtype), .n_dims = -1, .place = i};
        if (!is_wanted)
            continue;
        if (!belong_to[i]->is_given)
            return PTAC_ARGUMENT;
        at[i].n_dims = belong_to[i]->view.n_dims;
        at[i].sizes = belong_to[i]->view.sizes;
        has_weights = has_weights || i > PTAC_NORM_GRAD_X;
    }
    if (call->on == PTAC_ON_CPU) {
        outputs->n = PTAC_NORM_GRAD_PARTS;
        return at[0].n_dims < 0 && !has_weights ? PTAC_ARGUMENT : PTAC_TAKE;
    }
    outputs->n = PTAC_NORM_GRAD_N_OUTPUTS;
    outputs->own_sizes[0] = ptac_norm_parts(p, has_weights);
    at[PTAC_NORM_GRAD_PARTS] = (ptac_output){
        .dtype = AT_DTYPE_F32,
        .n_dims = 1,
        .sizes = outputs->own_sizes,
        .place = PTAC_NORM_GRAD_PARTS,
    };
    return at[0].n_dims < 0 && !has_weights ? PTAC_ARGUMENT : PTAC_TAKE;
}

/* weight and bias: their arguments. The mask is the last argument. */
static ptac_reason read_backward(const ptac_arguments *args, const ptac_call *call,
                                 const ptac_argument *weight, const ptac_argument *bias,
                                 ptac_norm *p, ptac_outputs *outputs)
{
    const ptac_view *in = call->inputs, *x = &in[PTAC_NORM_GRAD_X_OF];
    const ptac_argument *belong_to[] = {&args->at[1], weight, bias};
    ptac_reason why = read_rows(call, x, &args->at[2], p);

    if (!why && in[PTAC_NORM_GRAD_Y].dtype != x->dtype)
        why = PTAC_DTYPE;
    if (!why && !ptac_view_has_sizes(&in[PTAC_NORM_GRAD_Y], x->n_dims, x->sizes))
        why = PTAC_ARGUMENT;
    if (!why)
        why = ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_RSTD], PTAC_F32, p->n_rows);
    if (!why)
        why = ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_MEAN], PTAC_F32, p->n_rows);
    for (int i = 1; !why && i < 3; i++)
        if (belong_to[i]->is_given)
            why = ptac_norm_weight_reason(&belong_to[i]->view, x, args->at[2].ints.n);
    return why ? why
               : expect_gradients(call, p, belong_to,
                                  &args->at[args->of->n_arguments - 1], outputs);
}

static ptac_reason read_layer_norm_backward(const ptac_arguments *args,
                                            const ptac_call *call, void *params,
                                            ptac_outputs *outputs)
{
    return read_backward(args, call, &args->at[5], &args->at[6], params, outputs);
}

static ptac_reason read_rms_norm_backward(const ptac_arguments *args,
                                          const ptac_call *call, void *params,
                                          ptac_outputs *outputs)
{
    static const ptac_argument none = {0};
    ptac_norm *p = params;
    const ptac_reason why = read_backward(args, call, &args->at[4], &none, p, outputs);

    p->is_rms = true;
    return why;
}

static ptac_override layer_norm = {
    .schema = "native_layer_norm(Tensor input, SymInt[] normalized_shape, "
              "Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_LAYER_NORM,
    .n_inputs = PTAC_NORM_N_INPUTS,
    .inputs = {0, 2, 3, PTAC_NO_ARGUMENT},
    .read = read_layer_norm,
};
PTAC_OVERRIDE(layer_norm, cpu_layer_norm, TENSOR(0), INTS(1), OPTIONAL_TENSOR(2),
              OPTIONAL_TENSOR(3), REAL(4))
PTAC_OVERRIDE_ON_CUDA(layer_norm, cuda_layer_norm, TENSOR(0), INTS(1),
                      OPTIONAL_TENSOR(2), OPTIONAL_TENSOR(3), REAL(4))

static ptac_override layer_norm_backward = {
    .schema = "native_layer_norm_backward(Tensor grad_out, Tensor input, "
              "SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, "
              "Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_LAYER_NORM_BACKWARD,
    .self = 1,
    .n_inputs = PTAC_NORM_GRAD_N_INPUTS,
    .inputs = {0, 1, 4, 3, 5, PTAC_NO_ARGUMENT},
    .read = read_layer_norm_backward,
};
PTAC_OVERRIDE(layer_norm_backward, cpu_layer_norm_backward, TENSOR(0), TENSOR(1),
              INTS(2), TENSOR(3), TENSOR(4), OPTIONAL_TENSOR(5), OPTIONAL_TENSOR(6),
              MASK(7))
PTAC_OVERRIDE_ON_CUDA(layer_norm_backward, cuda_layer_norm_backward, TENSOR(0),
                      TENSOR(1), INTS(2), TENSOR(3), TENSOR(4), OPTIONAL_TENSOR(5),
                      OPTIONAL_TENSOR(6), MASK(7))

static ptac_override rms_norm = {
    .schema = "_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, "
              "float? eps) -> (Tensor, Tensor)",
    .op = PTAC_OP_RMS_NORM,
    .n_inputs = PTAC_NORM_N_INPUTS,
    .inputs = {0, 2, PTAC_NO_ARGUMENT, PTAC_NO_ARGUMENT},
    .read = read_rms_norm,
};
PTAC_OVERRIDE_ON_CUDA(rms_norm, cuda_rms_norm, TENSOR(0), INTS(1), OPTIONAL_TENSOR(2),
                      OPTIONAL_REAL(3))

static ptac_override rms_norm_backward = {
    .schema = "_fused_rms_norm_backward(Tensor grad_out, Tensor input, "
              "int[] normalized_shape, Tensor rstd, Tensor? weight, "
              "bool[2] output_mask) -> (Tensor, Tensor)",
    .op = PTAC_OP_RMS_NORM_BACKWARD,
    .self = 1,
    .n_inputs = PTAC_NORM_GRAD_N_INPUTS,
    .inputs = {0, 1, 3, PTAC_NO_ARGUMENT, 4, PTAC_NO_ARGUMENT},
    .read = read_rms_norm_backward,
};
PTAC_OVERRIDE_ON_CUDA(rms_norm_backward, cuda_rms_norm_backward, TENSOR(0), TENSOR(1),
                      INTS(2), TENSOR(3), OPTIONAL_TENSOR(4), MASK2(5))
