/*
 * attention.c - torch's kernels of attention, and the rows that have them compute on
 * operands rounded to bfloat16.
 */
#include "bind/torch/rows/attention.h"

#include "bind/torch/rows/bf16.h"

#include <math.h>

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
    return view->sizes[3] > 1 && view->strides[3] != 1 ? PTAC_LAYOUT : PTAC_TAKE;
}

/* Numbers that are seen more than once: a view of an expanded tensor. */
static bool sees_again(const ptac_view *view)
{
    for (int i = 0; i < 3; i++)
        if (view->strides[i] == 0 && view->sizes[i] > 1)
            return true;
    return false;
}

/* One for each score, or for all along a dimension. */
static bool fits_mask(const ptac_view *mask, const int64_t *q, const int64_t *k)
{
    const int64_t scores[4] = {q[0], q[1], q[2], k[2]};

    if (mask->dtype != PTAC_F32 || (mask->n_dims != 2 && mask->n_dims != 4))
        return false;
    for (int i = 0; i < mask->n_dims; i++)
        if (mask->sizes[i] != 1 && mask->sizes[i] != scores[4 - mask->n_dims + i])
            return false;
    return true;
}

/* Calls that torch would refuse are torch's to refuse, and no row's to break at. */
static ptac_reason sizes_reason(const ptac_call *call)
{
    const ptac_view *in = call->inputs, *log_sums = &in[PTAC_ATTENTION_LOG_SUMS];
    const bool is_forward = ptac_attention_is_forward(call->op);
    const int mask = ptac_attention_mask_input(call->op);
    const int64_t *q = in[PTAC_ATTENTION_QUERY].sizes,
                  *k = in[PTAC_ATTENTION_KEY].sizes;

    if (!ptac_view_has_sizes(&in[PTAC_ATTENTION_VALUE], 4, k) || q[0] != k[0] ||
        k[1] == 0 || q[1] % k[1] != 0 || q[3] != k[3])
        return PTAC_SHAPE;
    for (int i = PTAC_ATTENTION_OUT; i < ptac_attention_n_tensors(call); i++)
        if (!ptac_view_has_sizes(&in[i], 4, q))
            return PTAC_SHAPE;
    if (!is_forward && !ptac_view_has_sizes(log_sums, 3, q))
        return PTAC_SHAPE;
    if (!is_forward && log_sums->dtype != PTAC_F32)
        return PTAC_DTYPE;
    return call->n_inputs > mask && !fits_mask(&in[mask], q, k) ? PTAC_ARGUMENT
                                                                : PTAC_TAKE;
}

static void read_sizes(const ptac_call *call, ptac_attention_call *params)
{
    const int64_t *q = call->inputs[PTAC_ATTENTION_QUERY].sizes,
                  *k = call->inputs[PTAC_ATTENTION_KEY].sizes;
    const at_optional_real *scale = &params->host.scale;

    params->is = (ptac_attention){
        .batch = q[0],
        .heads = q[1],
        .key_heads = k[1],
        .n_queries = q[2],
        .n_keys = k[2],
        .d = q[3],
        .scale = (float)(scale->has_value ? scale->value : 1 / sqrt((double)q[3])),
        .is_causal = params->host.is_causal,
    };
}

ptac_reason ptac_attention_read(const ptac_call *call, ptac_attention_call *params,
                                uint32_t *dense)
{
    const ptac_view *grad = &call->inputs[PTAC_ATTENTION_GRAD];
    ptac_reason why;

    *dense = 0;
    for (int i = 0; i < ptac_attention_n_tensors(call); i++) {
        why = view_reason(&call->inputs[i]);
        /* The gradient of a sum is one number seen many times. */
        if (i == PTAC_ATTENTION_GRAD && why == PTAC_LAYOUT)
            *dense = 1u << i;
        else if (why)
            return why;
    }
    why = sizes_reason(call);
    if (why)
        return why;
    if (params->host.dropout != 0)
        return PTAC_ARGUMENT;
    if (!ptac_attention_is_forward(call->op) && sees_again(grad))
        *dense = 1u << PTAC_ATTENTION_GRAD;
    read_sizes(call, params);
    return PTAC_TAKE;
}

/* Of two dimensions by their numbers: > 0 where b is the closer one, 0 of both. */
static int compare(const ptac_view *view, int a, int b)
{
    const int64_t of_a = view->strides[a], of_b = view->strides[b];

    if (of_a == 0 || of_b == 0)
        return 0;
    if (of_a != of_b)
        return of_a > of_b ? 1 : -1;
    return view->sizes[a] > view->sizes[b];
}

/* As torch's infer_dense_strides(), by which empty_like() lays out what has gaps. */
static void infer_strides(const ptac_view *view, int64_t strides[4])
{
    int order[4] = {3, 2, 1, 0}; /* the closest first */
    int64_t stride = 1;

    for (int i = 1; i < 4; i++) {
        for (int at = i, before = i - 1; before >= 0; before--) {
            const int how = compare(view, order[before], order[at]);
            const int moved = order[before];

            if (how < 0)
                break;
            if (how > 0) {
                order[before] = order[at];
                order[at] = moved;
                at = before;
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        strides[order[i]] = stride;
        if (view->sizes[order[i]] > 1)
            stride *= view->sizes[order[i]];
    }
}

void ptac_attention_result_strides(const ptac_view *query, int64_t result[4],
                                   int64_t log_sums[4])
{
    const int64_t *q = query->sizes;

    if (ptac_view_is_dense(query))
        ptac_strides_in_order(query, result);
    else
        infer_strides(query, result);
    log_sums[0] = q[1] * q[2];
    log_sums[1] = 1;
    log_sums[2] = q[1];
}

const ptac_kernel *ptac_attention_admit_backward(ptac_call *call)
{
    const ptac_attention_call *p = call->params;
    const ptac_kernel *row;

    if (ptac_bf16_is_signed(p->host.sums))
        return ptac_admit_row(call, "bf16");
    row = ptac_admit(call);
    if (!row || !row->in_bf16)
        return row;
    ptac_refuse(call->op, PTAC_FORWARD);
    return NULL;
}

ptac_reason ptac_attention_copies_reason(const ptac_call *call)
{
    const ptac_attention_call *p = call->params;

    if (p->is.heads != p->is.key_heads)
        return PTAC_SHAPE;
    for (int i = 0; i <= PTAC_ATTENTION_VALUE; i++)
        if (sees_again(&call->inputs[i]))
            return PTAC_LAYOUT;
    return PTAC_TAKE;
}

static ptac_status compute(const ptac_call *call, int n_narrow,
                           at_result (*library)(const ptac_attention_tensors *,
                                                const at_tensor *))
{
    const ptac_attention_call *p = call->params;
    const ptac_attention_tensors *a = &p->host;
    AT_OWNED_ALL at_tensors in = {{NULL}}, out = {{NULL}};

    for (int i = 0; i < ptac_attention_n_tensors(call); i++)
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

PTAC_BF16_ROW(ATTENTION, "bf16", ptac_attention_copies_reason, forward)
PTAC_BF16_ROW(ATTENTION_BACKWARD, "bf16", ptac_attention_copies_reason, backward)
