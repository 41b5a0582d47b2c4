/*
 * attention.c - the operator behind F.scaled_dot_product_attention on CPUs, where
 * it is one (no dropout, no gradient of a mask), and its rows, which round to bfloat16.
 *
 *   _scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value,
 *       float dropout_p, bool is_causal, *, Tensor? attn_mask, float? scale)
 *       -> (Tensor output, Tensor logsumexp)
 *   _scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out,
 *       Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp,
 *       float dropout_p, bool is_causal, *, Tensor? attn_mask, float? scale)
 *       -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)
 */
#include "bind/torch/rows/attention.h"
#include "bind/torch/rows/bf16.h"
#include "bind/torch/overrides/override.h"
#include "bind/torch/stock.h"

#include <string.h>

#define FORWARD  T.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu
#define BACKWARD T.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward

static at_error run_forward(const ptac_attention_tensors *a, const at_tensor *in,
                            at_tensor *out)
{
    at_tensor mask = a->mask;
    double scale = a->scale;

    return FORWARD(in[PTAC_ATTENTION_QUERY], in[PTAC_ATTENTION_KEY],
                   in[PTAC_ATTENTION_VALUE], a->dropout, a->is_causal,
                   mask ? &mask : NULL, a->has_scale ? &scale : NULL, &out[0], &out[1]);
}

static at_error run_backward(const ptac_attention_tensors *a, const at_tensor *in,
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

static void stock_forward(const void *context, at_tensor *out)
{
    const ptac_attention_tensors *a = context;

    at_must(run_forward(a, a->tensors, out), "attention failed");
}

static at_error run_again(const ptac_attention_tensors *a, at_tensor *output,
                          at_tensor *sums)
{
    at_tensor made[2] = {NULL};
    const at_error error = run_forward(a, a->tensors, made);

    *output = made[0];
    *sums = made[1];
    return error;
}

/* What a forward call in bfloat16 has left is of no use to a gradient in float32. */
static void stock_backward(const void *context, at_tensor *out)
{
    const ptac_attention_tensors *a = context;
    ptac_attention_tensors again = *a;
    AT_OWNED at_tensor output = NULL, sums = NULL;

    if (a->is_in_bf16) {
        at_must(run_again(a, &output, &sums), "attention failed");
        again.tensors[PTAC_ATTENTION_OUT] = output;
        again.sums = sums;
    }
    at_must(run_backward(&again, again.tensors, out),
            "the gradient of attention failed");
}

/* Rows of d numbers one behind the other, at any distance from each other. */
static ptac_reason read_view(at_tensor tensor, ptac_view *view)
{
    ptac_view_of(tensor, view);
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
    ptac_reason why = read_view(a->tensors[PTAC_ATTENTION_GRAD], view);

    if (why != PTAC_LAYOUT)
        return why;
    a->dense = at_dense(a->tensors[PTAC_ATTENTION_GRAD], view, false);
    return read_view(a->dense, view);
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
                                       : read_view(a->tensors[i], &call->inputs[i]);
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

static bool fast(ptac_attention_tensors *a, ptac_call *call, ptac_stock_fn stock)
{
    ptac_attention params;
    const ptac_kernel *row;
    ptac_reason why;

    if (ptac_is_off(call->op))
        return false;
    call->params = &params;
    why = read_call(a, &params, call);
    if (why) {
        ptac_refuse(call->op, why);
        return false;
    }
    row = admit(a, call);
    return row && ptac_run_checked(row, call, a->results, stock, a);
}

static void drop_all(ptac_attention_tensors *a)
{
    for (int i = 0; i < PTAC_ATTENTION_N_TENSORS; i++)
        at_drop_tensor(&a->tensors[i]);
    for (int i = 0; i < PTAC_ATTENTION_N_RESULTS; i++)
        at_drop_tensor(&a->results[i]);
    at_drop_tensor(&a->dense);
    at_drop_tensor(&a->sums);
    at_drop_tensor(&a->mask);
}

#define AT_OWNED_ATTENTION __attribute__((cleanup(drop_all)))

static double as_double(stable_ivalue boxed)
{
    double value;

    memcpy(&value, &boxed, sizeof value);
    return value;
}

/* What follows the tensors in both schemas. */
static void take_options(const stable_ivalue *stack, ptac_attention_tensors *a)
{
    bool has_mask, is_defined = false;
    stable_ivalue scale;

    a->dropout = as_double(stack[0]);
    a->is_causal = stack[1] & 0xff;
    a->mask = (at_tensor)(uintptr_t)at_open_optional(stack[2], &has_mask);
    if (a->mask)
        T.aoti_torch_is_defined(a->mask, &is_defined);
    if (a->mask && !is_defined) { /* as autograd hands on that there is none */
        at_drop_tensor(&a->mask);
        a->mask = NULL;
    }
    scale = at_open_optional(stack[3], &a->has_scale);
    a->scale = a->has_scale ? as_double(scale) : 0;
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED_ATTENTION ptac_attention_tensors a = {.mask = NULL};
    ptac_call call = {.op = PTAC_OP_ATTENTION, .n_inputs = 3, .n_outputs = 2};

    for (int i = 0; i < 3; i++)
        a.tensors[PTAC_ATTENTION_QUERY + i] = at_take_tensor(stack, i);
    take_options(stack + 3, &a);
    if (!fast(&a, &call, stock_forward))
        stock_forward(&a, a.results);
    for (int i = 0; i < 2; i++)
        stack[i] = (stable_ivalue)(uintptr_t)at_give(&a.results[i]);
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED_ATTENTION ptac_attention_tensors a = {.mask = NULL};
    ptac_call call = {.op = PTAC_OP_ATTENTION_BACKWARD,
                      .n_inputs = 5,
                      .n_outputs = PTAC_ATTENTION_N_RESULTS};

    a.tensors[PTAC_ATTENTION_GRAD] = at_take_tensor(stack, 0);
    for (int i = 0; i < 3; i++)
        a.tensors[PTAC_ATTENTION_QUERY + i] = at_take_tensor(stack, 1 + i);
    a.tensors[PTAC_ATTENTION_OUT] = at_take_tensor(stack, 4);
    a.sums = at_take_tensor(stack, 5);
    take_options(stack + 6, &a);
    a.is_in_bf16 = ptac_bf16_is_signed(a.sums);
    if (!fast(&a, &call, stock_backward))
        stock_backward(&a, a.results);
    for (int i = 0; i < PTAC_ATTENTION_N_RESULTS; i++)
        stack[i] = (stable_ivalue)(uintptr_t)at_give(&a.results[i]);
}

static bool has_attention(void)
{
    return FORWARD && BACKWARD;
}

static const ptac_override attention_override = {
    .name = "_scaled_dot_product_flash_attention_for_cpu",
    .op = PTAC_OP_ATTENTION,
    .boxed = boxed_forward,
    .is_possible = has_attention,
};
PTAC_OVERRIDE(attention_override)

static const ptac_override attention_backward_override = {
    .name = "_scaled_dot_product_flash_attention_for_cpu_backward",
    .op = PTAC_OP_ATTENTION_BACKWARD,
    .boxed = boxed_backward,
    .is_possible = has_attention,
};
PTAC_OVERRIDE(attention_backward_override)

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
    return compute(call, 1, run_forward);
}

static ptac_status backward(const ptac_call *call)
{
    return compute(call, PTAC_ATTENTION_N_RESULTS, run_backward);
}

PTAC_BF16_ROW(attention_bf16, PTAC_OP_ATTENTION, "bf16", accepts, forward)
PTAC_BF16_ROW(attention_backward_bf16, PTAC_OP_ATTENTION_BACKWARD, "bf16", accepts,
              backward)
