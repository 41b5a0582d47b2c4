/*
 * self_attention.c - the row of multi_head_attention: two products, and heads that
 * attend where the first of them has left queries, keys and values.
 */
#include "bind/torch/rows/encoder/encoder.h"

#include "bind/torch/dispatch.h"
#include "bind/torch/rows/linear_act.h"
#include "core/scratch.h"
#include "ops/attention/attention.h"
#include "ops/norm/layer/sum_norm.h"

#include <math.h>

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_self_attention *p = call->params;

    if (call->inputs[0].n_elements == 0 || p->heads == 0)
        return PTAC_EMPTY;
    shape->kind = 0;
    shape->sizes[0] = p->batch * p->length;
    shape->sizes[1] = p->length;
    shape->sizes[2] = p->width;
    shape->work = shape->sizes[0] * shape->sizes[1] * shape->sizes[2];
    return PTAC_TAKE;
}

PTAC_SHAPES(MULTI_HEAD_ATTENTION, classify, "self")

/* A call of linear_act, or why it can be none. */
static ptac_reason describe_product(ptac_linear_tensors *t, ptac_act act,
                                    ptac_linear_act *params, ptac_call *call)
{
    const ptac_reason why = ptac_linear_size(t, act, false, params, call);

    return why ? why : ptac_linear_read(t, call);
}

ptac_status ptac_encoder_product(at_tensor x, at_tensor w, at_tensor bias, ptac_act act,
                                 at_tensor *y)
{
    ptac_linear_tensors t = {.x = x, .w = w, .bias = bias};
    ptac_linear_act params;
    const ptac_kernel *row;
    ptac_reason why;
    ptac_call call;
    ptac_status status;

    if (describe_product(&t, act, &params, &call))
        return PTAC_UNSUPPORTED;
    row = ptac_probe(&call, &why);
    if (!row || row->in_bf16)
        row = ptac_registry_find(PTAC_OP_LINEAR_ACT, "blas");
    status = row->run(&call);
    *y = at_give(&t.y);
    /* Products fail for want of memory, or stock's will fail as well. */
    return status == PTAC_FAILED ? PTAC_NO_MEMORY : status;
}

/* At level fast the in-projection may round: torch's operator then is in parts. */
static bool rounds(const ptac_self_attention *p)
{
    ptac_linear_tensors t = {.x = p->x, .w = p->w_in, .bias = p->b_in};
    ptac_linear_act params;
    const ptac_kernel *row;
    ptac_reason why;
    ptac_call call;

    if (ptac_linear_size(&t, PTAC_ACT_NONE, false, &params, &call))
        return false;
    row = ptac_probe(&call, &why);
    return row && row->in_bf16;
}

static const ptac_kernel *attention_row(void)
{
    return ptac_registry_preferred(PTAC_OP_ATTENTION, PTAC_CLOSE);
}

/* What attention's rows take: heads of what the in-projection gave. */
typedef struct heads_call {
    ptac_call call;
    ptac_attention params;
    int64_t sizes[4], in[4], out[4], log_sums[3], mask_sizes[4], mask_strides[4];
} heads_call;

static void describe_heads(const ptac_self_attention *p, heads_call *h)
{
    const int64_t d = p->width / p->heads, row = 3 * p->width;

    h->params = (ptac_attention){
        .batch = p->batch,
        .heads = p->heads,
        .key_heads = p->heads,
        .n_queries = p->length,
        .n_keys = p->length,
        .d = d,
        .scale = (float)(1 / sqrt((double)d)),
    };
    h->call = (ptac_call){.op = PTAC_OP_ATTENTION,
                          .n_inputs = PTAC_ATTENTION_N_FORWARD,
                          .n_outputs = 2,
                          .params = &h->params};
    for (int i = 0; i < 4; i++)
        h->sizes[i] = (const int64_t[]){p->batch, p->heads, p->length, d}[i];
    for (int i = 0; i < 4; i++) {
        h->in[i] = (const int64_t[]){p->length * row, d, row, 1}[i];
        h->out[i] = (const int64_t[]){p->length * p->width, d, p->width, 1}[i];
    }
    for (int i = 0; i < 3; i++)
        h->log_sums[i] = (const int64_t[]){p->heads * p->length, p->length, 1}[i];
}

static ptac_view heads_view(const heads_call *h, int n_dims, const int64_t *strides,
                            float *data)
{
    return (ptac_view){
        .data = data,
        .sizes = h->sizes,
        .strides = strides,
        .n_elements =
            h->sizes[0] * h->sizes[1] * h->sizes[2] * (n_dims == 4 ? h->sizes[3] : 1),
        .n_dims = n_dims,
        .dtype = PTAC_F32,
    };
}

/* Sizes and strides of a mask by batch, head, query and key; a stride may be 0. */
static void place_mask(const ptac_self_attention *p, heads_call *h)
{
    const int64_t whole[4] = {p->batch, p->heads, p->length, p->length};

    for (int i = 0; i < 4; i++) {
        const bool is_there = p->mask_kind == PTAC_MASK_ALL || i == 3 ||
                              i == (p->mask_kind == PTAC_MASK_KEYS ? 0 : 2);

        h->mask_sizes[i] = is_there ? whole[i] : 1;
    }
    h->mask_strides[3] = 1;
    for (int i = 3; i > 0; i--)
        h->mask_strides[i - 1] = h->mask_strides[i] * h->mask_sizes[i];
}

/* The strides by which the mask's own elements lie under those sizes. */
static void mask_lies(const ptac_self_attention *p, int64_t lies[4])
{
    const int64_t *strides = p->mask->strides;

    for (int i = 0; i < 4; i++)
        lies[i] = p->mask_kind == PTAC_MASK_ALL ? strides[i] : 0;
    if (p->mask_kind == PTAC_MASK_ALL)
        return;
    lies[p->mask_kind == PTAC_MASK_KEYS ? 0 : 2] = strides[0];
    lies[3] = strides[1];
}

/* -inf where a key is hidden, else 0, if there is a to; false where a row sees none. */
static bool write_mask_row(const ptac_self_attention *p, int64_t from, int64_t stride,
                           float *to)
{
    int64_t n_seen = 0;

    for (int64_t j = 0; j < p->length; j++) {
        const int64_t at = from + j * stride;
        const bool hides = p->mask_is_float ? ((const float *)p->mask->data)[at] != 0
                                            : ((const bool *)p->mask->data)[at];

        if (to)
            to[j] = hides ? -INFINITY : 0;
        n_seen += !hides;
    }
    return n_seen > 0;
}

/* The same of all rows, [n[0], n[1], n[2], n[3]]. */
static bool write_mask_rows(const ptac_self_attention *p, const int64_t n[4], float *to)
{
    int64_t lies[4];
    bool all_see = true;

    mask_lies(p, lies);
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t head = 0; head < n[1]; head++)
            for (int64_t i = 0; i < n[2]; i++) {
                const int64_t from = b * lies[0] + head * lies[1] + i * lies[2];

                all_see &= write_mask_row(p, from, lies[3], to);
                if (to)
                    to += n[3];
                else if (!all_see)
                    return false;
            }
    return all_see;
}

ptac_reason ptac_self_attention_reason(const ptac_self_attention *p)
{
    const ptac_kernel *row = attention_row();
    ptac_reason why;
    heads_call h;

    if (T.is_autocast_enabled(AT_DEVICE_CPU)) /* stock's products are called under it */
        return PTAC_AUTOCAST;
    if (ptac_products_are_lowered() || rounds(p))
        return PTAC_PRECISION;
    if (ptac_chooser_is_quarantined(row))
        return PTAC_QUARANTINED;
    describe_heads(p, &h);
    why = row->accepts(&h.call);
    if (why || p->mask_kind == PTAC_NO_MASK)
        return why;
    place_mask(p, &h); /* before any product is spent on such a call */
    return write_mask_rows(p, h.mask_sizes, NULL) ? PTAC_TAKE : PTAC_VALUES;
}

/* The mask as attention adds it, in scratch. */
static ptac_status write_mask(const ptac_self_attention *p, heads_call *h, float **made)
{
    const int64_t *n = h->mask_sizes;
    bool all_see;

    place_mask(p, h);
    *made = ptac_scratch_take((size_t)(n[0] * h->mask_strides[0]) * sizeof **made);
    if (!*made)
        return PTAC_NO_MEMORY;
    all_see = write_mask_rows(p, n, *made);
    h->call.inputs[PTAC_ATTENTION_N_FORWARD] = (ptac_view){
        .data = *made,
        .sizes = h->mask_sizes,
        .strides = h->mask_strides,
        .n_elements = n[0] * h->mask_strides[0],
        .n_dims = 4,
        .dtype = PTAC_F32,
    };
    h->call.n_inputs++;
    return all_see ? PTAC_OK : PTAC_UNSUITED;
}

/* Heads attend by what the in-projection gave, and leave rows of all heads. */
static ptac_status attend(const ptac_self_attention *p, float *qkv, float *y)
{
    float *log_sums, *mask = NULL;
    ptac_status status = PTAC_OK;
    heads_call h;

    describe_heads(p, &h);
    log_sums =
        ptac_scratch_take((size_t)(p->batch * p->heads * p->length) * sizeof *log_sums);
    if (!log_sums)
        return PTAC_NO_MEMORY;
    for (int i = 0; i < PTAC_ATTENTION_N_FORWARD; i++)
        h.call.inputs[i] = heads_view(&h, 4, h.in, qkv + i * p->width);
    h.call.outputs[PTAC_ATTENTION_RESULT] = heads_view(&h, 4, h.out, y);
    h.call.outputs[PTAC_ATTENTION_RESULT_LOG_SUMS] =
        heads_view(&h, 3, h.log_sums, log_sums);
    if (p->mask_kind != PTAC_NO_MASK)
        status = write_mask(p, &h, &mask);
    if (!status)
        status = attention_row()->run(&h.call);
    ptac_scratch_give(mask);
    ptac_scratch_give(log_sums);
    return status;
}

ptac_status ptac_self_attend(const ptac_self_attention *p, at_tensor x, at_tensor *y)
{
    AT_OWNED at_tensor qkv = NULL, heads = NULL;
    ptac_status status = ptac_encoder_product(x, p->w_in, p->b_in, PTAC_ACT_NONE, &qkv);

    if (status)
        return status;
    if (ptac_new_matrix(p->batch * p->length, p->width, &heads, NULL))
        return PTAC_NO_MEMORY;
    status = attend(p, at_data(qkv), at_data(heads));
    if (status)
        return status;
    at_drop_tensor(&qkv);
    return ptac_encoder_product(heads, p->w_out, NULL, PTAC_ACT_NONE, y);
}

static ptac_reason accepts(const ptac_call *call)
{
    return ptac_self_attention_reason(call->params);
}

static ptac_status run(const ptac_call *call)
{
    const ptac_self_attention *p = call->params;
    AT_OWNED at_tensor x = at_dense(p->x, &call->inputs[0], false), y = NULL;
    const ptac_status status = ptac_self_attend(p, x, &y);
    const ptac_sum_norm biased = {
        .x = at_data(y),
        .bias = at_data(p->b_out),
        .sum = call->outputs[0].data,
        .is = {.n_rows = p->batch * p->length, .width = p->width},
    };

    if (!status)
        ptac_sum_norm_run(&biased);
    return status;
}

PTAC_ROW(MULTI_HEAD_ATTENTION, "fused", PTAC_CLOSE, 0, accepts, run)
