/*
 * dropout_ref.c - dropout and its gradient by their definitions, and their shape kinds.
 *
 * Of CUDA, for each element the thread, the call and the word of it are worked out that
 * torch's kernel takes for it; kernels go the other way. The rows "scalar" run on any
 * CPU; every other row is tested against them.
 */
#include "ops/random/dropout.h"
#include "ops/random/philox.h"

/* A mask is kept for the gradient, which is worth it from another size on. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind = call->n_outputs > PTAC_DROPOUT_MASK;
    return why;
}

PTAC_SHAPES(DROPOUT, classify, "alone", "gradient")
PTAC_SHAPES(DROPOUT_ADD, classify, "alone", "gradient")

/* What forward has kept is no use to stock: its row has decided. */
PTAC_SHAPES_OF(DROPOUT_BACKWARD, ptac_classify_elements, 0, true, "any")

ptac_reason ptac_dropout_accepts_gradient(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

ptac_reason ptac_dropout_accepts(const ptac_call *call)
{
    const ptac_dropout *params = call->params;

    if (params->n_processors || !(params->keep > 0) || params->keep > 1)
        return PTAC_ARGUMENT;
    return ptac_dropout_accepts_gradient(call);
}

/* The random word of element i, with so many threads in the grid. */
static unsigned int word_of(const ptac_dropout *params, int64_t i, int64_t n_threads)
{
    const ptac_philox_state *state = &params->random;
    const unsigned long long seed =
        state->is_captured ? *state->seed.address : state->seed.value;
    const unsigned long long offset =
        state->is_captured ? *state->offset.address + state->offset_in_graph
                           : state->offset.value;
    const int64_t vector = params->vector;
    int64_t thread, call, at;

    if (vector == 1) { /* a thread's four lie a grid apart */
        thread = i % n_threads;
        call = i / n_threads / 4;
        at = i / n_threads % 4;
    } else {
        thread = i / vector % n_threads;
        call = i / (vector * n_threads) * ptac_parts(vector, 4) + i % vector / 4;
        at = i % vector % 4;
    }
    return ptac_curand4(seed, offset, (unsigned long long)thread,
                        (unsigned long long)call)
        .at[at];
}

static ptac_status dropout(const ptac_call *call)
{
    const ptac_dropout *params = call->params;
    const ptac_view *view = &call->inputs[PTAC_DROPOUT_X];
    const float *x = view->data, *residual = call->inputs[PTAC_DROPOUT_RESIDUAL].data;
    float *y = call->outputs[PTAC_DROPOUT_Y].data;
    unsigned char *mask = call->outputs[PTAC_DROPOUT_MASK].data;
    const int64_t n_threads =
        params->n_processors == 0
            ? 0
            : ptac_dropout_blocks(params, view->n_elements) * PTAC_DROPOUT_THREADS;
    const float keep = (float)params->keep, scale = 1.0f / keep;

    for (int64_t i = 0; i < view->n_elements; i++) {
        const bool is_kept =
            n_threads ? ptac_curand_uniform(word_of(params, i, n_threads)) < keep
                      : ptac_engine_keeps(params->engine, params->keep);

        if (mask)
            mask[i] = is_kept;
        y[i] = x[i] * (float)is_kept * scale;
        if (residual)
            y[i] += residual[i];
    }
    return PTAC_OK;
}

static ptac_status dropout_backward(const ptac_call *call)
{
    const float *grad = call->inputs[0].data;
    const unsigned char *mask = call->inputs[1].data;
    const float scale = (float)((const ptac_dropout_backward *)call->params)->scale;
    float *out = call->outputs[0].data;

    for (int64_t i = 0; i < call->inputs[0].n_elements; i++)
        out[i] = grad[i] * (float)mask[i] * scale;
    return PTAC_OK;
}

/* It takes the calls of both kinds of generators. */
PTAC_ROW(DROPOUT, "scalar", PTAC_EXACT, 0, ptac_dropout_accepts_gradient, dropout)
PTAC_ROW(DROPOUT_ADD, "scalar", PTAC_EXACT, 0, ptac_dropout_accepts_gradient, dropout)
PTAC_ROW(DROPOUT_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_dropout_accepts_gradient,
         dropout_backward)
