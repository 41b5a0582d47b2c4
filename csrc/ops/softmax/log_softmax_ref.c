/*
 * log_softmax_ref.c - log-softmax and its gradient by their definitions, in double, and
 * their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against it.
 */
#include "ops/softmax/log_softmax.h"

#include <math.h>

enum {
    ROW_BLOCK = 16, /* short rows are worked on in blocks of 8 or 16 */
    MIN_WORK = 32768,
};

ptac_reason ptac_log_softmax_classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_view *x = &call->inputs[0];

    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_dims == 0)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    shape->kind = ptac_log_softmax_width(call) <= PTAC_SHORT_ROW
                      ? PTAC_LOG_SOFTMAX_SHORT
                      : PTAC_LOG_SOFTMAX_LONG;
    shape->work = x->n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(LOG_SOFTMAX, ptac_log_softmax_classify, "short", "long")
PTAC_SHAPES(LOG_SOFTMAX_BACKWARD, ptac_log_softmax_classify, "short", "long")

typedef struct blocks {
    const ptac_call *call;
    ptac_range_fn body;
    int64_t n_rows;
} blocks;

static void for_blocks(int64_t begin, int64_t end, void *context)
{
    const blocks *blocks = context;
    const int64_t last = end * ROW_BLOCK;

    blocks->body(begin * ROW_BLOCK, last < blocks->n_rows ? last : blocks->n_rows,
                 (void *)blocks->call);
}

void ptac_log_softmax_for_rows(const ptac_call *call, ptac_range_fn of_short,
                               ptac_range_fn of_long)
{
    const int64_t width = ptac_log_softmax_width(call);
    blocks blocks = {call, of_short, call->inputs[0].n_elements / width};

    if (width > PTAC_SHORT_ROW)
        ptac_parallel_for(0, blocks.n_rows, MIN_WORK / width + 1, of_long,
                          (void *)call);
    else
        ptac_parallel_for(0, (blocks.n_rows + ROW_BLOCK - 1) / ROW_BLOCK,
                          MIN_WORK / (width * ROW_BLOCK) + 1, for_blocks, &blocks);
}

static void forward_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)call->inputs[0].data + row * n;
        float *y = (float *)call->outputs[0].data + row * n;
        double max = x[0], sum = 0;

        for (int64_t i = 1; i < n; i++)
            max = x[i] > max ? x[i] : max;
        for (int64_t i = 0; i < n; i++)
            sum += exp(x[i] - max);
        for (int64_t i = 0; i < n; i++)
            y[i] = (float)(x[i] - max - log(sum));
    }
}

static void backward_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *grad = (const float *)call->inputs[0].data + row * n;
        const float *y = (const float *)call->inputs[1].data + row * n;
        float *out = (float *)call->outputs[0].data + row * n;
        double sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum += grad[i];
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(grad[i] - exp(y[i]) * sum);
    }
}

static ptac_status forward(const ptac_call *call)
{
    ptac_log_softmax_for_rows(call, forward_rows, forward_rows);
    return PTAC_OK;
}

static ptac_status backward(const ptac_call *call)
{
    ptac_log_softmax_for_rows(call, backward_rows, backward_rows);
    return PTAC_OK;
}

PTAC_ROW(LOG_SOFTMAX, "scalar", PTAC_CLOSE, 0, ptac_accept_all, forward)
PTAC_ROW(LOG_SOFTMAX_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, backward)
