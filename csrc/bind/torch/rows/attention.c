/*
 * attention.c - torch's kernels of attention, and the rows that have them compute on
 * operands rounded to bfloat16.
 */
#include "bind/torch/rows/attention.h"

#include "bind/torch/rows/bf16.h"

enum { FULL, CAUSAL, MASKED };

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_attention *p = call->params;

    if (p->n_heads == 0 || p->n_queries == 0 || p->n_keys == 0 || p->d == 0)
        return PTAC_EMPTY;
    shape->kind = p->host.mask ? MASKED : p->host.is_causal ? CAUSAL : FULL;
    shape->work = p->n_heads * p->n_queries * p->n_keys * p->d;
    return PTAC_TAKE;
}

PTAC_SHAPES(ATTENTION, classify, "full", "causal", "masked")
PTAC_SHAPES(ATTENTION_BACKWARD, classify, "full", "causal", "masked")

/* Torch's kernels, for other tensors in place of a's. */
static at_result library_forward(const ptac_attention_tensors *a, const at_tensor *in)
{
    const at_optional_tensor mask = ptac_optional(a->mask);

    return T.cpu_attention(in[PTAC_ATTENTION_QUERY], in[PTAC_ATTENTION_KEY],
                           in[PTAC_ATTENTION_VALUE], a->dropout, a->is_causal, &mask,
                           a->scale);
}

static at_result library_backward(const ptac_attention_tensors *a, const at_tensor *in)
{
    const at_optional_tensor mask = ptac_optional(a->mask);

    return T.cpu_attention_backward(in[PTAC_ATTENTION_GRAD], in[PTAC_ATTENTION_QUERY],
                                    in[PTAC_ATTENTION_KEY], in[PTAC_ATTENTION_VALUE],
                                    in[PTAC_ATTENTION_OUT], a->sums, a->dropout,
                                    a->is_causal, &mask, a->scale);
}

/* What a forward call in bfloat16 has left is of no use to a gradient in float32. */
at_result ptac_attention_stock_backward(ptac_attention_tensors *a)
{
    AT_OWNED_ALL at_tensors again = {{NULL}};

    if (ptac_bf16_is_signed(a->sums)) {
        at_adopt_all(library_forward(a, a->tensors), 2, again.at);
        a->tensors[PTAC_ATTENTION_OUT] = again.at[0];
        a->sums = again.at[1];
    }
    return library_backward(a, a->tensors);
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

    if (!ptac_view_has_sizes(&in[PTAC_ATTENTION_VALUE], 4, k) || q[0] != k[0] ||
        q[1] != k[1] || q[3] != k[3])
        return PTAC_SHAPE;
    for (int i = PTAC_ATTENTION_OUT; i < call->n_inputs; i++)
        if (!ptac_view_has_sizes(&in[i], 4, q))
            return PTAC_SHAPE;
    return a->mask && !fits_mask(a->mask, q, k) ? PTAC_ARGUMENT : PTAC_TAKE;
}

ptac_reason ptac_attention_read(const ptac_call *call, ptac_attention *params,
                                uint32_t *dense)
{
    *dense = 0;
    for (int i = 0; i < call->n_inputs; i++) {
        const ptac_reason why = view_reason(&call->inputs[i]);

        /* The gradient of a sum is one number seen many times. */
        if (i == PTAC_ATTENTION_GRAD && why == PTAC_LAYOUT)
            *dense = 1u << i;
        else if (why)
            return why;
    }

    const int64_t *q = call->inputs[PTAC_ATTENTION_QUERY].sizes,
                  *k = call->inputs[PTAC_ATTENTION_KEY].sizes;

    params->n_heads = q[0] * q[1];
    params->n_queries = q[2];
    params->n_keys = k[2];
    params->d = q[3];
    return sizes_reason(&params->host, call);
}

const ptac_kernel *ptac_attention_admit_backward(ptac_call *call)
{
    const ptac_attention *p = call->params;

    if (ptac_bf16_is_signed(p->host.sums))
        return ptac_admit_row(call, "bf16");
    if (ptac_admit(call))
        ptac_refuse(call->op, PTAC_FORWARD);
    return NULL;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_attention *p = call->params;

    return p->host.dropout != 0 ? PTAC_ARGUMENT : PTAC_TAKE;
}

static ptac_status compute(const ptac_call *call, int n_narrow,
                           at_result (*library)(const ptac_attention_tensors *,
                                                const at_tensor *))
{
    const ptac_attention *p = call->params;
    const ptac_attention_tensors *a = &p->host;
    AT_OWNED_ALL at_tensors in = {{NULL}}, out = {{NULL}};

    for (int i = 0; i < call->n_inputs; i++)
        if (ptac_bf16_in_order(&call->inputs[i], &in.at[i]))
            return PTAC_NO_MEMORY;
    at_adopt_all(library(a, in.at), call->n_outputs, out.at);
    for (int i = 0; i < call->n_outputs; i++) {
        const ptac_status status =
            i < n_narrow ? ptac_bf16_widened(out.at[i], &a->results[i]) : PTAC_OK;

        if (status)
            return status;
        if (i >= n_narrow)
            a->results[i] = at_give(&out.at[i]);
    }
    return call->op == PTAC_OP_ATTENTION && !ptac_bf16_sign(a->results[1]) &&
                   ptac_bf16_wants_grad(a->tensors, 3)
               ? PTAC_UNSUITED
               : PTAC_OK;
}

/* The sums of exponentials are float32 in any case. */
static ptac_status forward(const ptac_call *call)
{
    return compute(call, 1, library_forward);
}

static ptac_status backward(const ptac_call *call)
{
    return compute(call, 3, library_backward);
}

PTAC_BF16_ROW(ATTENTION, "bf16", accepts, forward)
PTAC_BF16_ROW(ATTENTION_BACKWARD, "bf16", accepts, backward)
