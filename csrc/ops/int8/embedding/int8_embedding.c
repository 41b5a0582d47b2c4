/*
 * int8_embedding.c - indices and threads of int8_embedding, and its row "scalar".
 */
#include "ops/int8/embedding/int8_embedding.h"

#include "core/host.h"
#include "ops/int8/panel.h"

enum {
    GRAIN = 1 << 15, /* floats that are worth a thread */
};

typedef struct embedding_job {
    const int64_t *indices;
    const int8_t *table;
    const float *scales;
    float *y;
    int64_t n_rows, width;
    ptac_int8_row_fn widen;
    int is_ill_conditioned; /* an index that the table does not have was met */
} embedding_job;

/* Each index is read once: others may write to them while we run. */
static void embed(int64_t begin, int64_t end, void *context)
{
    embedding_job *job = context;

    for (int64_t i = begin; i < end; i++) {
        const int64_t at = __atomic_load_n(&job->indices[i], __ATOMIC_RELAXED);

        if (at < 0 || at >= job->n_rows) {
            __atomic_store_n(&job->is_ill_conditioned, 1, __ATOMIC_RELAXED);
            return;
        }
        job->widen(job->table + at * job->width, job->scales[at], job->width,
                   job->y + i * job->width);
    }
}

ptac_reason ptac_int8_embedding_accepts(const ptac_call *call)
{
    const ptac_int8_embedding *p = call->params;
    const int64_t y[] = {p->n_indices, p->width};

    if (!ptac_view_is_aligned(&call->inputs[0], sizeof(int64_t)) ||
        !ptac_view_is_aligned(&call->inputs[2], sizeof(float)))
        return PTAC_LAYOUT;
    return ptac_int8_is_countable(y, 2) ? PTAC_TAKE : PTAC_SHAPE;
}

ptac_status ptac_int8_embedding_run(const ptac_call *call, ptac_int8_row_fn widen)
{
    const ptac_int8_embedding *p = call->params;
    embedding_job job = {
        .indices = call->inputs[0].data,
        .table = call->inputs[1].data,
        .scales = call->inputs[2].data,
        .y = call->outputs[0].data,
        .n_rows = p->n_rows,
        .width = p->width,
        .widen = widen,
    };

    ptac_parallel_for(0, p->n_indices, 1 + GRAIN / p->width, embed, &job);
    return job.is_ill_conditioned ? PTAC_UNSUITED : PTAC_OK;
}

static void row_of(const int8_t *q, float scale, int64_t width, float *y)
{
    for (int64_t i = 0; i < width; i++)
        y[i] = scale * (float)q[i];
}

static ptac_status run(const ptac_call *call)
{
    return ptac_int8_embedding_run(call, row_of);
}

PTAC_ROW(INT8_EMBEDDING, "scalar", PTAC_EXACT, 0, ptac_int8_embedding_accepts, run)

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_int8_embedding *p = call->params;

    if (p->n_indices == 0 || p->width == 0)
        return PTAC_EMPTY;
    shape->kind = 0;
    shape->work = p->width;
    return PTAC_TAKE;
}

PTAC_SHAPES_OF(INT8_EMBEDDING, classify, 2, true, "rows")
