/*
 * attention.c - the operator behind F.scaled_dot_product_attention on CPUs, where it is
 * one: no dropout, no gradient of a mask.
 */
#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/attention.h"
#include "bind/torch/rows/bf16.h"

#include <string.h>

/*
 * The arguments by name. Torch's backward takes grad_out, query, key, value, out and
 * logsumexp, forward query, key and value; the options follow them.
 */
static ptac_attention_tensors named(const ptac_arguments *args)
{
    const bool is_backward = args->of->op == PTAC_OP_ATTENTION_BACKWARD;
    const ptac_argument *at = args->at, *options = at + (is_backward ? 6 : 3);
    ptac_attention_tensors a = {
        .dropout = options[0].real,
        .is_causal = options[1].truth,
        .mask = options[2].is_given ? options[2].tensor : NULL,
        .scale = options[3].real,
        .has_scale = options[3].is_given,
    };

    for (int i = 0; i < 3; i++)
        a.tensors[PTAC_ATTENTION_QUERY + i] = at[is_backward + i].tensor;
    if (is_backward) {
        a.tensors[PTAC_ATTENTION_GRAD] = at[0].tensor;
        a.tensors[PTAC_ATTENTION_OUT] = at[4].tensor;
        a.sums = at[5].tensor;
        a.is_in_bf16 = ptac_bf16_is_signed(a.sums);
    }
    return a;
}

static void stock_forward(const ptac_arguments *args, at_tensor *out)
{
    const ptac_attention_tensors a = named(args);

    at_must(ptac_attention_forward(&a, a.tensors, out), "attention failed");
}

static at_error run_again(const ptac_attention_tensors *a, at_tensor *output,
                          at_tensor *sums)
{
    at_tensor made[2] = {NULL};
    const at_error error = ptac_attention_forward(a, a->tensors, made);

    *output = made[0];
    *sums = made[1];
    return error;
}

/* What a forward call in bfloat16 has left is of no use to a gradient in float32. */
static void stock_backward(const ptac_arguments *args, at_tensor *out)
{
    ptac_attention_tensors a = named(args);
    AT_OWNED at_tensor output = NULL, sums = NULL;

    if (a.is_in_bf16) {
        at_must(run_again(&a, &output, &sums), "attention failed");
        a.tensors[PTAC_ATTENTION_OUT] = output;
        a.sums = sums;
    }
    at_must(ptac_attention_backward(&a, a.tensors, out),
            "the gradient of attention failed");
}

/* Rows of d numbers one behind the other, at any distance from each other. */
static ptac_reason view_reason(const ptac_view *view)
{
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims != 4)
        return PTAC_SHAPE;
    for (int i = 0; i < 3; i++)
        if (view->strides[i] == 0 && view->sizes[i] > 1)
            return PTAC_LAYOUT;
    return view->sizes[3] > 1 && view->strides[3] != 1 ? PTAC_LAYOUT : PTAC_TAKE;
}

/* The gradient of a sum is one number seen many times. */
static ptac_reason read_grad(ptac_attention_tensors *a, ptac_view *view)
{
    const ptac_reason why = view_reason(view);

    if (why != PTAC_LAYOUT)
        return why;
    a->dense = at_dense(a->tensors[PTAC_ATTENTION_GRAD], view, false);
    ptac_view_of(a->dense, view);
    return view_reason(view);
}

static bool are_alike(const int64_t *sizes, const int64_t *others)
{
    return memcmp(sizes, others, 4 * sizeof *sizes) == 0;
}

/* One for each score, or for all along a dimension. */
static bool fits_mask(at_tensor tensor, const int64_t *q, const int64_t *k)
{
    const int64_t scores[4] = {q[0], q[1], q[2], k[2]};
    ptac_view mask;

    ptac_view_of(tensor, &mask);
    if (mask.dtype != PTAC_F32 || (mask.n_dims != 2 && mask.n_dims != 4))
        return false;
    for (int i = 0; i < mask.n_dims; i++)
        if (mask.sizes[i] != 1 && mask.sizes[i] != scores[4 - mask.n_dims + i])
            return false;
    return true;
}

/* Calls that torch would refuse are torch's to refuse, and no row's to break at. */
static ptac_reason sizes_reason(const ptac_attention_tensors *a, const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    const int64_t *q = in[PTAC_ATTENTION_QUERY].sizes,
                  *k = in[PTAC_ATTENTION_KEY].sizes;

    if (!are_alike(k, in[PTAC_ATTENTION_VALUE].sizes) || q[0] != k[0] || q[1] != k[1] ||
        q[3] != k[3])
        return PTAC_SHAPE;
    for (int i = PTAC_ATTENTION_OUT; i < call->n_inputs; i++)
        if (!are_alike(in[i].sizes, q))
            return PTAC_SHAPE;
    return a->mask && !fits_mask(a->mask, q, k) ? PTAC_ARGUMENT : PTAC_TAKE;
}

static ptac_reason read_call(ptac_attention_tensors *a, ptac_attention *params,
                             ptac_call *call)
{
    ptac_reason why = PTAC_TAKE;

    for (int i = 0; i < call->n_inputs && !why; i++)
        why = i == PTAC_ATTENTION_GRAD ? read_grad(a, &call->inputs[i])
                                       : view_reason(&call->inputs[i]);
    if (why)
        return why;

    const int64_t *q = call->inputs[PTAC_ATTENTION_QUERY].sizes,
                  *k = call->inputs[PTAC_ATTENTION_KEY].sizes;

    *params = (ptac_attention){
        .n_heads = q[0] * q[1],
        .n_queries = q[2],
        .n_keys = k[2],
        .d = q[3],
        .is_causal = a->is_causal,
        .has_mask = a->mask != NULL,
        .host = a,
    };
    return sizes_reason(a, call);
}

/* A gradient runs in the precision of its forward call. */
static const ptac_kernel *admit(const ptac_attention_tensors *a, ptac_call *call)
{
    const ptac_kernel *row;

    if (a->is_in_bf16)
        return ptac_admit_row(call, "bf16");
    row = ptac_admit(call);
    if (row && call->op == PTAC_OP_ATTENTION_BACKWARD) {
        ptac_refuse(call->op, PTAC_FORWARD);
        return NULL;
    }
    return row;
}

static void drop_made(ptac_attention_tensors *a)
{
    for (int i = 0; i < PTAC_ATTENTION_N_RESULTS; i++)
        at_drop_tensor(&a->results[i]);
    at_drop_tensor(&a->dense);
}

/* Rows make their results themselves. */
static bool serve(const ptac_arguments *args, at_tensor *out)
{
    const ptac_override *override = args->of;
    __attribute__((cleanup(drop_made))) ptac_attention_tensors a = named(args);
    ptac_attention params;
    ptac_call call = {
        .op = override->op,
        .n_inputs = override->n_inputs,
        .n_outputs = override->n_outputs,
        .params = &params,
    };
    const ptac_kernel *row;
    ptac_reason why;

    for (int i = 0; i < call.n_inputs; i++)
        call.inputs[i] = args->at[override->inputs[i]].view;
    why = read_call(&a, &params, &call);
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    row = admit(&a, &call);
    if (!row || !ptac_run_checked(row, &call, a.results, ptac_override_stock, args))
        return false;
    for (int i = 0; i < call.n_outputs; i++)
        out[i] = at_give(&a.results[i]);
    return true;
}

static ptac_override attention = {
    .schema = "_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, "
              "Tensor value, float dropout_p=0.0, bool is_causal=False, *, "
              "Tensor? attn_mask=None, float? scale=None) "
              "-> (Tensor output, Tensor logsumexp)",
    .op = PTAC_OP_ATTENTION,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .serve = serve,
    .stock = stock_forward,
    .is_possible = ptac_attention_is_there,
};
PTAC_OVERRIDE(attention)

static ptac_override attention_backward = {
    .schema = "_scaled_dot_product_flash_attention_for_cpu_backward("
              "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
              "Tensor logsumexp, float dropout_p, bool is_causal, *, "
              "Tensor? attn_mask=None, float? scale=None) "
              "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    .op = PTAC_OP_ATTENTION_BACKWARD,
    .n_inputs = 5,
    .inputs = {1, 2, 3, 4, 0},
    .serve = serve,
    .stock = stock_backward,
    .is_possible = ptac_attention_is_there,
};
PTAC_OVERRIDE(attention_backward)
