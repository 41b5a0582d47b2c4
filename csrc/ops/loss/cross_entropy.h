/*
 * cross_entropy.h - F.cross_entropy on logits [n_rows, n_classes]. Level close.
 *
 * Semantics are those of ATen's LossNLL.cpp. With l = log_softmax(x) of a row, weights
 * w (1 where none are given) and label smoothing s the row's loss is
 *
 *   class index t     -(1 - s) * w[t] * l[t] - s / n_classes * sum(w[j] * l[j])
 *   probabilities t   -sum((t[j] * (1 - s) + s / n_classes) * w[j] * l[j])
 *
 * Rows whose index is ignore_index lose 0. The mean divides by the sum of w[t] over the
 * rows not ignored (indices) or by n_rows (probabilities), so it is NaN where every row
 * is ignored. Losses add up in double, in an order that n_rows and n_classes decide and
 * threads do not.
 *
 * Every tensor is dense. Forward: inputs x, target (int64, or float32 probabilities),
 * weight; outputs loss (n_rows elements where nothing is reduced, else one) and
 * p = softmax(x), which is all that backward needs of x. Backward: inputs p, target,
 * weight, grad of the loss; output grad_x, which may be p itself. weight.data is NULL
 * where there are none, p.data where no gradient is wanted.
 *
 * An index out of range gives PTAC_UNSUPPORTED before anything is written. One that
 * another thread puts there meanwhile counts as ignored.
 *
 * With saves_log_sum, which "scalar" and the rows of CUDA know, backward reads the
 * logits again and no matrix is kept between. Forward: outputs loss, saved, and on CUDA
 * work; backward: inputs x, target, weight, grad, saved; output grad_x, which may be x
 * itself. Nobody waits for CUDA to look at indices: one out of range stops the kernel,
 * as stock's assertion does, before memory is read by it.
 */
#ifndef PTAC_OPS_LOSS_CROSS_ENTROPY_H
#define PTAC_OPS_LOSS_CROSS_ENTROPY_H

#include "ops/softmax/softmax.h"

/* As torch numbers them. */
typedef enum ptac_reduction {
    PTAC_REDUCE_NONE = 0,
    PTAC_REDUCE_MEAN,
    PTAC_REDUCE_SUM,
} ptac_reduction;

typedef struct ptac_cross_entropy {
    int64_t n_rows, n_classes;
    int64_t ignore_index;
    double label_smoothing;
    ptac_reduction reduction;
    bool saves_log_sum; /* not p */
} ptac_cross_entropy;

/*
 * What saved holds, float32: the maximum of each row; the logarithm of each row's sum
 * of exp(x - maximum), apart from it, because large maxima would leave few bits of it,
 * both NaN where the sum is not a number; what p of each row is multiplied with in its
 * gradient, sum(u) + at_index as below; and what the losses' sum is divided by, 1 where
 * that is no mean.
 */
static inline int64_t ptac_cross_entropy_saved(const ptac_cross_entropy *p)
{
    return 3 * p->n_rows + 1;
}

/* Elements of work, float64: sums of parts; in float32, losses and weights of rows. */
enum {
    PTAC_CROSS_ENTROPY_PARTS = 128,
};

static inline int64_t ptac_cross_entropy_work(const ptac_cross_entropy *p)
{
    return p->reduction == PTAC_REDUCE_NONE ? 0
                                            : 2 * PTAC_CROSS_ENTROPY_PARTS + p->n_rows;
}

/* Where a call keeps its tensors. */
enum {
    PTAC_CROSS_ENTROPY_X = 0, /* backward: p, unless saves_log_sum */
    PTAC_CROSS_ENTROPY_TARGET,
    PTAC_CROSS_ENTROPY_WEIGHT,
    PTAC_CROSS_ENTROPY_GRAD,
    PTAC_CROSS_ENTROPY_SAVED_BEFORE, /* forward's PTAC_CROSS_ENTROPY_SAVED */

    PTAC_CROSS_ENTROPY_LOSS = 0, /* outputs of forward */
    PTAC_CROSS_ENTROPY_P,
    PTAC_CROSS_ENTROPY_SAVED = PTAC_CROSS_ENTROPY_P,
    PTAC_CROSS_ENTROPY_WORK,

    PTAC_CROSS_ENTROPY_GRAD_X = 0, /* output of backward */
};

/*
 * One row's target. Its loss is -at_index * l[index] - sum(u[j] * l[j]), where
 *
 *   u[j] = (t ? t[j] * scale + shift : shift) * (w ? w[j] : 1)
 *
 * The first part is left out where index is -1, the sum where is_soft is false. An
 * ignored row's loss is 0, and so is its gradient, even where that does not make the
 * gradient of the logits 0: like stock's it multiplies weights that may be infinite.
 */
typedef struct ptac_row_target {
    const float *t, *w;
    float scale, shift;
    bool is_soft, is_ignored;
    int64_t index;
    double at_index;
} ptac_row_target;

/*
 * The class of a row, -1 where it is ignored. Other threads may write the targets since
 * they were checked, so every use checks what it reads, and reads it once.
 */
static inline int64_t ptac_cross_entropy_index(const ptac_call *call, int64_t row)
{
    const ptac_cross_entropy *p = call->params;
    const int64_t *target = call->inputs[PTAC_CROSS_ENTROPY_TARGET].data;
    const int64_t index = __atomic_load_n(&target[row], __ATOMIC_RELAXED);

    if (index == p->ignore_index || (uint64_t)index >= (uint64_t)p->n_classes)
        return -1;
    return index;
}

void ptac_cross_entropy_target(const ptac_call *call, int64_t row,
                               ptac_row_target *target);

/* What rows accept that save p. */
static inline ptac_reason ptac_cross_entropy_saves_p(const ptac_call *call)
{
    const ptac_cross_entropy *p = call->params;

    return p->saves_log_sum ? PTAC_ARGUMENT : PTAC_TAKE;
}

/* Class indices without smoothing, the usual case, which rows treat on a short way. */
static inline bool ptac_cross_entropy_is_plain(const ptac_call *call)
{
    const ptac_cross_entropy *p = call->params;

    return call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype == PTAC_I64 &&
           p->label_smoothing == 0;
}

/*
 * The forward run, whose rows() works on rows [begin, end): it stores their softmax
 * and, where nothing is reduced, their losses, and returns the sum of their losses.
 */
typedef double (*ptac_cross_entropy_rows)(const ptac_call *call, int64_t begin,
                                          int64_t end);
ptac_status ptac_cross_entropy_forward(const ptac_call *call,
                                       ptac_cross_entropy_rows rows);

/* The backward run: body gets this job as its context and works on rows. */
typedef struct ptac_cross_entropy_job {
    const ptac_call *call;
    double grad; /* gradient of each row's loss where losses are reduced */
} ptac_cross_entropy_job;

ptac_status ptac_cross_entropy_backward(const ptac_call *call, ptac_range_fn body);

/* Gradient of the loss of one row. */
static inline double ptac_cross_entropy_grad(const ptac_cross_entropy_job *job,
                                             int64_t row)
{
    const ptac_cross_entropy *p = job->call->params;
    const float *grad = job->call->inputs[PTAC_CROSS_ENTROPY_GRAD].data;

    return p->reduction == PTAC_REDUCE_NONE ? grad[row] : job->grad;
}

/* The rows of an instruction set: functions that have the operators' names. */
#define PTAC_CROSS_ENTROPY_ROWS(name, features, accepts)                               \
    PTAC_ROW(CROSS_ENTROPY, name, PTAC_CLOSE, features, accepts, cross_entropy)        \
    PTAC_ROW(CROSS_ENTROPY_BACKWARD, name, PTAC_CLOSE, features, accepts,              \
             cross_entropy_backward)

#endif
