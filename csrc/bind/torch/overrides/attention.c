/*
 * attention.c - the operator behind F.scaled_dot_product_attention on CPUs, and its
 * backward.
 */
#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/attention.h"

/* The arguments by name. Behind the options' self is, in backward, the logsumexp. */
static ptac_attention_tensors named(const ptac_arguments *args)
{
    const ptac_argument *options = ptac_options(args);
    ptac_attention_tensors a = {
        .sums = options[-1].tensor,
        .dropout = options[0].real,
        .is_causal = options[1].truth,
        .mask = options[2].tensor,
        .scale = {options[3].real, options[3].is_given},
    };

    for (int i = 0; i < PTAC_ATTENTION_N_TENSORS && i < args->of->n_inputs; i++)
        a.tensors[i] = TENSOR(args->of->inputs[i]);
    return a;
}

/* What both directions have in common. */
static ptac_reason read_call(const ptac_arguments *args, const ptac_call *call,
                             ptac_attention_call *p, ptac_outputs *outputs)
{
    ptac_reason why;

    _Static_assert(sizeof *p <= PTAC_PARAMS_BYTES, "there is too little room");
    p->host = named(args);
    p->host.results = outputs->made;
    outputs->bf16_makes = true;
    for (int i = 0; i < outputs->n; i++) {
        outputs->at[i].dtype = outputs->at[0].dtype;
        outputs->at[i].strides = outputs->own_strides[i];
    }
    why = ptac_attention_read(call, p, &outputs->dense);
    /* Torch multiplies by it what it has masked, -inf. */
    return !why && p->is.is_causal && !(p->is.scale > 0) ? PTAC_ARGUMENT : why;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_view *query = &call->inputs[PTAC_ATTENTION_QUERY];
    const ptac_reason why = read_call(args, call, params, outputs);

    if (why)
        return why;
    ptac_outputs_are(outputs, 4, query->sizes);
    outputs->at[PTAC_ATTENTION_RESULT_LOG_SUMS].n_dims = 3;
    ptac_attention_result_strides(query, outputs->own_strides[0],
                                  outputs->own_strides[1]);
    return PTAC_TAKE;
}

/* Torch's are of [batch, n, heads, d] in memory. */
static ptac_reason read_backward(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_outputs *outputs)
{
    const ptac_reason why = read_call(args, call, params, outputs);

    if (why)
        return why;
    for (int i = 0; i < outputs->n; i++) {
        const int64_t *sizes = call->inputs[i].sizes;
        int64_t *strides = outputs->own_strides[i];

        strides[3] = 1;
        strides[1] = sizes[3];
        strides[2] = sizes[1] * sizes[3];
        strides[0] = sizes[2] * strides[2];
        outputs->at[i].n_dims = 4;
        outputs->at[i].sizes = sizes;
    }
    return PTAC_TAKE;
}

static ptac_override attention = {
    .schema = "_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, "
              "Tensor value, float dropout_p=0.0, bool is_causal=False, *, "
              "Tensor? attn_mask=None, float? scale=None) "
              "-> (Tensor output, Tensor logsumexp)",
    .op = PTAC_OP_ATTENTION,
    .self = 2,
    .n_inputs = 4,
    .inputs = {0, 1, 2, 5},
    .read = read,
    .by_handles = true,
    .needs = &T.cpu_attention_backward,
};
PTAC_OVERRIDE(attention, cpu_attention, TENSOR(0), TENSOR(1), TENSOR(2), REAL(3),
              BOOL(4), OPTIONAL_TENSOR(5), OPTIONAL_REAL(6))

static at_result stock_backward(const ptac_arguments *args)
{
    ptac_attention_tensors a = named(args);

    return ptac_attention_stock_backward(&a);
}

static ptac_override attention_backward = {
    .schema = "_scaled_dot_product_flash_attention_for_cpu_backward("
              "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
              "Tensor logsumexp, float dropout_p, bool is_causal, *, "
              "Tensor? attn_mask=None, float? scale=None) "
              "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    .op = PTAC_OP_ATTENTION_BACKWARD,
    .self = 5,
    .n_inputs = 7,
    .inputs = {1, 2, 3, 4, 0, 5, 8},
    .read = read_backward,
    .by_handles = true,
    .admit = ptac_attention_admit_backward,
    .needs = &T.cpu_attention,
};
PTAC_OVERRIDE_BY(attention_backward, stock_backward, cpu_attention_backward)
