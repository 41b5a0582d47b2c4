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

    for (int i = 0; i < args->of->n_inputs; i++)
        a.tensors[i] = TENSOR(args->of->inputs[i]);
    return a;
}

/* Rows make their results themselves. */
static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    ptac_attention *p = params;

    _Static_assert(sizeof *p <= PTAC_PARAMS_BYTES, "there is too little room");
    p->host = named(args);
    p->host.results = outputs->made;
    outputs->makes_none = true;
    return ptac_attention_read(call, p, &outputs->dense);
}

static ptac_override attention = {
    .schema = "_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, "
              "Tensor value, float dropout_p=0.0, bool is_causal=False, *, "
              "Tensor? attn_mask=None, float? scale=None) "
              "-> (Tensor output, Tensor logsumexp)",
    .op = PTAC_OP_ATTENTION,
    .self = 2,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read,
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
    .n_inputs = 5,
    .inputs = {1, 2, 3, 4, 0},
    .read = read,
    .admit = ptac_attention_admit_backward,
    .needs = &T.cpu_attention,
};
PTAC_OVERRIDE_BY(attention_backward, stock_backward, cpu_attention_backward)
