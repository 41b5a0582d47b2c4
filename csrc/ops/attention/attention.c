/*
 * attention.c - calls of attention by kind, and as kernels want them.
 */
#include "ops/attention/attention.h"

/*
 * What is seen, how many numbers a head has, and how many queries there are: what one
 * query costs is the reading of keys and values, what many cost is their products.
 */
enum {
    FULL,
    CAUSAL,
    MASKED,
    N_SEEN,

    NARROW = 0, /* d up to */
    MIDDLE,
    WIDE,
    N_WIDTHS,
    NARROW_D = 48,
    MIDDLE_D = 96,

    ONE = 0, /* queries up to */
    FEW,
    MANY,
    N_COUNTS,
    ONE_QUERIES = 4,
    FEW_QUERIES = 47,
};

static int kind_of(const ptac_attention *is, bool is_masked)
{
    const int seen = is_masked ? MASKED : is->is_causal ? CAUSAL : FULL;
    const int width = is->d <= NARROW_D ? NARROW : is->d <= MIDDLE_D ? MIDDLE : WIDE;
    const int count = is->n_queries <= ONE_QUERIES   ? ONE
                      : is->n_queries <= FEW_QUERIES ? FEW
                                                     : MANY;

    return (seen * N_WIDTHS + width) * N_COUNTS + count;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_attention *is = call->params;

    if (is->batch == 0 || is->heads == 0 || is->n_queries == 0 || is->n_keys == 0 ||
        is->d == 0)
        return PTAC_EMPTY;
    shape->kind = kind_of(is, call->n_inputs > ptac_attention_mask_input(call->op));
    shape->work = is->batch * is->heads * is->n_queries * is->n_keys * is->d;
    return PTAC_TAKE;
}

#define COUNTS(name) name "_one", name "_few", name "_many"
#define WIDTHS(name) COUNTS(name "_d32"), COUNTS(name "_d64"), COUNTS(name "_d128")
PTAC_SHAPES(ATTENTION, classify, WIDTHS("full"), WIDTHS("causal"), WIDTHS("masked"))
PTAC_SHAPES(ATTENTION_BACKWARD, classify, WIDTHS("full"), WIDTHS("causal"),
            WIDTHS("masked"))
PTAC_SHAPES(ATTENTION_DROPOUT, classify, WIDTHS("full"), WIDTHS("causal"),
            WIDTHS("masked"))
PTAC_SHAPES(ATTENTION_DROPOUT_BACKWARD, classify, WIDTHS("full"), WIDTHS("causal"),
            WIDTHS("masked"))

static ptac_attention_heads heads_of(const ptac_view *view)
{
    return (ptac_attention_heads){
        view->data,
        view->strides[0],
        view->strides[1],
        view->strides[2],
    };
}

/* Of two or four dimensions, each of them as long as that of the scores, or 1. */
static ptac_attention_mask mask_in(const ptac_view *view)
{
    int64_t strides[4] = {0};

    for (int k = 0; k < view->n_dims; k++)
        if (view->sizes[k] > 1)
            strides[4 - view->n_dims + k] = view->strides[k];
    return (ptac_attention_mask){
        view->data, strides[0], strides[1], strides[2], strides[3],
    };
}

static ptac_attention_mask mask_of(const ptac_call *call)
{
    const int i = ptac_attention_mask_input(call->op);

    return call->n_inputs > i ? mask_in(&call->inputs[i]) : (ptac_attention_mask){NULL};
}

static ptac_attention_mask kept_of(const ptac_call *call)
{
    return ptac_attention_drops(call->op)
               ? mask_in(&call->inputs[ptac_attention_kept_input(call->op)])
               : (ptac_attention_mask){NULL};
}

ptac_attention_job ptac_attention_forward_job(const ptac_call *call)
{
    return (ptac_attention_job){
        .is = *(const ptac_attention *)call->params,
        .q = heads_of(&call->inputs[PTAC_ATTENTION_QUERY]),
        .k = heads_of(&call->inputs[PTAC_ATTENTION_KEY]),
        .v = heads_of(&call->inputs[PTAC_ATTENTION_VALUE]),
        .y = heads_of(&call->outputs[PTAC_ATTENTION_RESULT]),
        .log_sums = heads_of(&call->outputs[PTAC_ATTENTION_RESULT_LOG_SUMS]),
        .mask = mask_of(call),
        .kept = kept_of(call),
    };
}

ptac_attention_job ptac_attention_backward_job(const ptac_call *call)
{
    return (ptac_attention_job){
        .is = *(const ptac_attention *)call->params,
        .q = heads_of(&call->inputs[PTAC_ATTENTION_QUERY]),
        .k = heads_of(&call->inputs[PTAC_ATTENTION_KEY]),
        .v = heads_of(&call->inputs[PTAC_ATTENTION_VALUE]),
        .y = heads_of(&call->inputs[PTAC_ATTENTION_OUT]),
        .grad = heads_of(&call->inputs[PTAC_ATTENTION_GRAD]),
        .log_sums = heads_of(&call->inputs[PTAC_ATTENTION_LOG_SUMS]),
        .mask = mask_of(call),
        .kept = kept_of(call),
        .grad_q = heads_of(&call->outputs[PTAC_ATTENTION_QUERY]),
        .grad_k = heads_of(&call->outputs[PTAC_ATTENTION_KEY]),
        .grad_v = heads_of(&call->outputs[PTAC_ATTENTION_VALUE]),
    };
}
