/*
 * cross_entropy.c - what is the same for every row of the cross-entropy kernels: shape
 * kinds, checking targets, spreading the rows over threads, and putting the losses
 * together.
 */
#include "ops/loss/cross_entropy.h"

enum {
    MAX_CHUNKS = 256,
    ROW_BLOCK = 16, /* short rows are worked on in blocks of 8 or 16 */
    MIN_TARGETS = 1 << 16,
};

/*
 * Rows are cut into chunks by their number alone. A chunk's sums are one thread's work
 * and the chunks add up in order, so that threads do not change a bit.
 */
typedef struct task {
    const ptac_call *call;
    ptac_cross_entropy_rows rows;
    int64_t rows_per_chunk, n_chunks;
    bool out_of_range;
    double sums[MAX_CHUNKS]; /* of weights, then of losses */
} task;

/* Indices on short rows, on long ones, and probabilities. */
enum { SHORT, LONG, PROBABILITIES };

#define KINDS "short", "long", "probabilities"

/* Rows of the CPU take nothing else. */
static bool is_of_float32(const ptac_call *call)
{
    const ptac_dtype target = call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype;
    const ptac_view *weight = &call->inputs[PTAC_CROSS_ENTROPY_WEIGHT];

    return call->inputs[PTAC_CROSS_ENTROPY_X].dtype == PTAC_F32 &&
           (target == PTAC_I64 || target == PTAC_F32) &&
           (!weight->data || weight->dtype == PTAC_F32);
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_cross_entropy *p = call->params;
    const ptac_dtype target = call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype;

    if (call->on == PTAC_ON_CPU && !is_of_float32(call))
        return PTAC_DTYPE;
    if (p->n_rows == 0 || p->n_classes == 0)
        return PTAC_EMPTY;
    if (!(p->label_smoothing >= 0 && p->label_smoothing <= 1))
        return PTAC_ARGUMENT;
    shape->kind = target != PTAC_I64               ? PROBABILITIES
                  : p->n_classes <= PTAC_SHORT_ROW ? SHORT
                                                   : LONG;
    shape->work = p->n_rows * p->n_classes;
    return PTAC_TAKE;
}

PTAC_SHAPES(CROSS_ENTROPY, classify, KINDS)
PTAC_SHAPES(CROSS_ENTROPY_BACKWARD, classify, KINDS)

void ptac_cross_entropy_target(const ptac_call *call, int64_t row,
                               ptac_row_target *target)
{
    const ptac_cross_entropy *p = call->params;
    const ptac_view *given = &call->inputs[PTAC_CROSS_ENTROPY_TARGET];
    const double smoothing = p->label_smoothing;
    const float *w = call->inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;

    *target = (ptac_row_target){
        .w = w,
        .scale = (float)(1 - smoothing),
        .shift = (float)(smoothing / (double)p->n_classes),
        .is_soft = true,
        .index = -1,
    };
    if (given->dtype == PTAC_F32) {
        target->t = (const float *)given->data + row * p->n_classes;
        return;
    }

    const int64_t index = ptac_cross_entropy_index(call, row);

    target->is_soft = smoothing != 0;
    target->is_ignored = index < 0;
    if (!target->is_ignored) {
        target->index = index;
        target->at_index = (1 - smoothing) * (w ? w[index] : 1);
    }
}

static void for_chunks(task *job, int64_t work_per_row, int64_t min_work,
                       ptac_range_fn body)
{
    ptac_parallel_for(0, job->n_chunks,
                      min_work / (job->rows_per_chunk * work_per_row) + 1, body, job);
}

static int64_t chunk_end(const task *job, int64_t chunk)
{
    const ptac_cross_entropy *p = job->call->params;

    return ptac_least((chunk + 1) * job->rows_per_chunk, p->n_rows);
}

/* Chunks [begin, end): the sum of the weights that their rows' indices select. */
static void weigh_chunks(int64_t begin, int64_t end, void *context)
{
    task *job = context;
    const ptac_cross_entropy *p = job->call->params;
    const int64_t *target = job->call->inputs[PTAC_CROSS_ENTROPY_TARGET].data;
    const float *weight = job->call->inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;

    for (int64_t chunk = begin; chunk < end; chunk++) {
        double sum = 0;

        for (int64_t i = chunk * job->rows_per_chunk; i < chunk_end(job, chunk); i++) {
            const int64_t index = __atomic_load_n(&target[i], __ATOMIC_RELAXED);

            if (index == p->ignore_index)
                continue;
            if ((uint64_t)index >= (uint64_t)p->n_classes) {
                __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);
                return;
            }
            sum += weight ? weight[index] : 1;
        }
        job->sums[chunk] = sum;
    }
}

static double sum_of_chunks(const task *job)
{
    double sum = 0;

    for (int64_t i = 0; i < job->n_chunks; i++)
        sum += job->sums[i];
    return sum;
}

/* Cut the rows; what the mean divides by. False when an index is out of range. */
static bool prepare(task *job, const ptac_call *call, double *total)
{
    const ptac_cross_entropy *p = call->params;
    int64_t n = ptac_parts(p->n_rows, MAX_CHUNKS);

    if (p->n_classes <= PTAC_SHORT_ROW)
        n = ptac_parts(n, ROW_BLOCK) * ROW_BLOCK;
    job->call = call;
    job->rows_per_chunk = n;
    job->n_chunks = ptac_parts(p->n_rows, n);
    job->out_of_range = false;
    *total = (double)p->n_rows;
    if (call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype != PTAC_I64)
        return true;
    for_chunks(job, 1, MIN_TARGETS, weigh_chunks);
    if (!job->out_of_range)
        *total = sum_of_chunks(job);
    return !job->out_of_range;
}

static void forward_chunks(int64_t begin, int64_t end, void *context)
{
    task *job = context;

    for (int64_t chunk = begin; chunk < end; chunk++)
        job->sums[chunk] =
            job->rows(job->call, chunk * job->rows_per_chunk, chunk_end(job, chunk));
}

ptac_status ptac_cross_entropy_forward(const ptac_call *call,
                                       ptac_cross_entropy_rows rows)
{
    const ptac_cross_entropy *p = call->params;
    float *loss = call->outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    double total, sum;
    task job;

    if (!prepare(&job, call, &total))
        return PTAC_UNSUPPORTED;
    job.rows = rows;
    for_chunks(&job, p->n_classes, PTAC_SOFTMAX_WORK, forward_chunks);
    if (p->saves_log_sum)
        ((float *)call->outputs[PTAC_CROSS_ENTROPY_SAVED].data)[3 * p->n_rows] =
            p->reduction == PTAC_REDUCE_MEAN ? (float)total : 1;
    if (p->reduction != PTAC_REDUCE_NONE) {
        sum = sum_of_chunks(&job);
        *loss = (float)(p->reduction == PTAC_REDUCE_MEAN ? sum / total : sum);
    }
    return PTAC_OK;
}

ptac_status ptac_cross_entropy_backward(const ptac_call *call, ptac_range_fn body)
{
    const ptac_cross_entropy *p = call->params;
    const float *grad = call->inputs[PTAC_CROSS_ENTROPY_GRAD].data;
    ptac_cross_entropy_job rows_job = {.call = call};
    double total;
    task job;

    if (!prepare(&job, call, &total))
        return PTAC_UNSUPPORTED;
    if (p->reduction != PTAC_REDUCE_NONE)
        rows_job.grad = p->reduction == PTAC_REDUCE_MEAN ? *grad / total : *grad;
    ptac_parallel_for(0, p->n_rows, PTAC_SOFTMAX_WORK / p->n_classes + 1, body,
                      &rows_job);
    return PTAC_OK;
}
