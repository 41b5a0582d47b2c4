/*
 * attention.c - torch's kernels of attention, and the rows that have them compute on
 * operands rounded to bfloat16.
 */
#include "bind/torch/rows/attention.h"

#include "bind/torch/rows/bf16.h"

#define FORWARD  T.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu
#define BACKWARD T.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward

at_error ptac_attention_forward(const ptac_attention_tensors *a, const at_tensor *in,
                                at_tensor *out)
{
    at_tensor mask = a->mask;
    double scale = a->scale;

    return FORWARD(in[PTAC_ATTENTION_QUERY], in[PTAC_ATTENTION_KEY],
                   in[PTAC_ATTENTION_VALUE], a->dropout, a->is_causal,
                   mask ? &mask : NULL, a->has_scale ? &scale : NULL, &out[0], &out[1]);
}

at_error ptac_attention_backward(const ptac_attention_tensors *a, const at_tensor *in,
                                 at_tensor *out)
{
    at_tensor mask = a->mask;
    double scale = a->scale;

    return BACKWARD(in[PTAC_ATTENTION_GRAD], in[PTAC_ATTENTION_QUERY],
                    in[PTAC_ATTENTION_KEY], in[PTAC_ATTENTION_VALUE],
                    in[PTAC_ATTENTION_OUT], a->sums, a->dropout, a->is_causal,
                    mask ? &mask : NULL, a->has_scale ? &scale : NULL, &out[0], &out[1],
                    &out[2]);
}

bool ptac_attention_is_there(void)
{
    return FORWARD && BACKWARD;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_attention *p = call->params;
    const ptac_attention_tensors *a = p->host;

    return a->dropout != 0 ? PTAC_ARGUMENT : PTAC_TAKE;
}

static void drop_tensors(at_tensor (*tensors)[PTAC_ATTENTION_N_TENSORS])
{
    for (int i = 0; i < PTAC_ATTENTION_N_TENSORS; i++)
        at_drop_tensor(&(*tensors)[i]);
}

#define AT_OWNED_TENSORS __attribute__((cleanup(drop_tensors)))

static ptac_status compute(const ptac_call *call, int n_narrow,
                           at_error (*library)(const ptac_attention_tensors *,
                                               const at_tensor *, at_tensor *))
{
    const ptac_attention *p = call->params;
    ptac_attention_tensors *a = p->host;
    AT_OWNED_TENSORS at_tensor in[PTAC_ATTENTION_N_TENSORS] = {NULL},
                               out[PTAC_ATTENTION_N_TENSORS] = {NULL};
    ptac_status status = PTAC_OK;
    at_error error = 0;

    for (int i = 0; i < call->n_inputs && !error; i++)
        error = ptac_bf16_in_order(&call->inputs[i], &in[i]);
    if (error)
        return PTAC_NO_MEMORY;
    if (library(a, in, out))
        return PTAC_UNSUPPORTED; /* stock says in its own words what is wrong */
    for (int i = 0; i < n_narrow && !status; i++)
        status = ptac_bf16_widened(out[i], &a->results[i]);
    if (status) {
        for (int i = 0; i < PTAC_ATTENTION_N_RESULTS; i++) {
            at_drop_tensor(&a->results[i]);
            a->results[i] = NULL;
        }
        return status;
    }
    if (call->op == PTAC_OP_ATTENTION && !ptac_bf16_sign(out[1]) &&
        ptac_bf16_wants_grad(a->tensors, 3)) {
        at_drop_tensor(&a->results[0]);
        a->results[0] = NULL;
        return PTAC_UNSUITED;
    }
    for (int i = n_narrow; i < call->n_outputs; i++)
        a->results[i] = at_give(&out[i]);
    return PTAC_OK;
}

/* The sums of exponentials are float32 in any case. */
static ptac_status forward(const ptac_call *call)
{
    return compute(call, 1, ptac_attention_forward);
}

static ptac_status backward(const ptac_call *call)
{
    return compute(call, PTAC_ATTENTION_N_RESULTS, ptac_attention_backward);
}

PTAC_BF16_ROW(attention_bf16, PTAC_OP_ATTENTION, "bf16", accepts, forward)
PTAC_BF16_ROW(attention_backward_bf16, PTAC_OP_ATTENTION_BACKWARD, "bf16", accepts,
              backward)
