/*
 * step.h - an optimizer step over many parameters as one call.
 *
 * Level exact: every element goes through the operations of the way of torch's that was
 * asked for, in its order, each rounded as ATen rounds it on this machine. Scalars are
 * computed in double as Python does and converted once. Kernels write in place and
 * cannot fail.
 *
 * Source of the arithmetic: torch/optim/{sgd,adam,adadelta,rmsprop,
 * adagrad,nadam}.py, _single_tensor_*, torch
 * 2.11 to 2.15; ATen's add, lerp and addcmul fuse their multiply-add where its kernels
 * are built for AVX2 or AVX-512 (ptac_the_host.fma). What differs in its fused kernels
 * (native/cpu/Fused{SGD,Adam,Adagrad}Kernel.cpp), as results show: see ptac_step_way.
 */
#ifndef PTAC_OPS_OPTIM_STEP_H
#define PTAC_OPS_OPTIM_STEP_H

#include "core/host.h"
#include "core/kernel.h"

/* One parameter: all arrays have n elements in the same memory order. */
typedef struct ptac_step_item {
    int64_t begin; /* elements of all items before this one */
    int64_t n;
    void *param;
    const void *grad;
    /* SGD: momentum buffer. Adam: exp_avg, exp_avg_sq, its maximum. Adadelta:
       square_avg, acc_delta. RMSprop: square_avg, momentum_buffer, grad_avg. Adagrad:
       sum. NAdam: exp_avg, exp_avg_sq. What the options do not want is NULL. */
    void *state[3];
    bool is_first; /* SGD: the momentum buffer is new and takes the gradient */
    /* Adam, Adagrad (the first) and NAdam, which count steps per parameter: */
    double step_size_neg, bias_correction2_sqrt;
    /* NAdam: the gradient's share, and what its loop divides by before the root */
    double grad_size_neg, bias_correction2;
    void *
        step; /* capturable: in place of these two, the count, a number on the device */
} ptac_step_item;

typedef struct ptac_sgd {
    double lr_neg, momentum, one_minus_dampening, weight_decay;
    bool nesterov, maximize;
} ptac_sgd;

typedef struct ptac_adam {
    double one_minus_beta1, beta2, one_minus_beta2, eps;
    double weight_decay; /* added to the gradient; 0 where it is decoupled */
    double decay_factor; /* AdamW: 1 - lr * weight_decay; else 1 */
    bool amsgrad, maximize;
    /*
     * A step that a CUDA graph may capture, of rows of CUDA alone: it reads the counts
     * of steps where they lie on the device, and counts itself among them. The rate is
     * lr, or lies on the device at lr_at; AdamW's decay_factor is then the kernel's to
     * compute, from decoupled_decay.
     */
    bool is_capturable;
    ptac_dtype step_dtype, lr_dtype; /* float32 or float64 */
    double beta1, lr, decoupled_decay;
    const void *lr_at;
} ptac_adam;

typedef struct ptac_adadelta {
    double rho, one_minus_rho, eps, lr_neg, weight_decay;
    bool maximize;
} ptac_adadelta;

typedef struct ptac_rmsprop {
    double alpha, one_minus_alpha, eps, lr_neg, weight_decay, momentum;
    bool centered, maximize; /* momentum: of 0 or less there is none */
} ptac_rmsprop;

typedef struct ptac_adagrad {
    double eps, weight_decay;
    bool maximize;
} ptac_adagrad;

typedef struct ptac_nadam {
    double one_minus_beta1, beta2, one_minus_beta2, eps;
    double weight_decay, decay_factor; /* as Adam's */
    bool maximize;
} ptac_nadam;

/*
 * Which of torch's implementations is asked for. The loop over tensors and "foreach"
 * give the same bits, but for NAdam, whose loop corrects the second moment before the
 * root and whose "foreach" corrects the root. Fused, on the CPU:
 *
 *   - square roots are correctly rounded;
 *   - the last elements of a parameter, which do not fill a vector of 32 bytes,
 *     whatever vectors the CPU has, are computed one by one: there the momentum buffer
 *     is fma(buffer, momentum, (1 - dampening) * g), the second moment is
 *     fma(second, beta2, ((1 - beta2) * g) * g), and the maximum, where that is not a
 *     number, the one before.
 */
typedef enum ptac_step_way {
    PTAC_STEP_LOOP = 0,
    PTAC_STEP_FOREACH,
    PTAC_STEP_FUSED,
    PTAC_STEP_WAYS,
} ptac_step_way;

/* params. inputs[0] stands for all parameters: their dtype, and n_elements together. */
typedef struct ptac_step {
    union {
        ptac_sgd sgd;
        ptac_adam adam;
        ptac_adadelta adadelta;
        ptac_rmsprop rmsprop;
        ptac_adagrad adagrad;
        ptac_nadam nadam;
    };
    ptac_step_way way;           /* rows of CUDA know the loop alone */
    const ptac_step_item *items; /* ascending begin, no gaps */
    int64_t n_items;
    /*
     * Room for ptac_step_sums() numbers, or NULL: by block of elements, the sum of
     * gradient times gradient (SGD), or of gradient times what is added to the
     * parameter (Adam), in double, whatever the number of threads. Others have none.
     */
    double *sums;
    /*
     * Of CUDA, or NULL: set once something may have been written. A launch that the
     * driver refuses may stand behind others that it has taken.
     */
    bool *has_begun;
} ptac_step;

/* The item that element at belongs to. */
static inline const ptac_step_item *ptac_step_find(const ptac_step *step, int64_t at)
{
    int64_t low = 0, high = step->n_items;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;

        if (step->items[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return &step->items[low];
}

enum {
    PTAC_STEP_BLOCK = 16384, /* elements that are summed up together */
    PTAC_STEP_GRAIN = 32768, /* that one thread takes at least */
};

/* The first element of an item that a fused step of torch's computes alone; else n. */
static inline int64_t ptac_step_tail(const ptac_step *step, const ptac_step_item *item,
                                     size_t element_bytes)
{
    const int64_t n_lanes = 32 / (int64_t)element_bytes;

    return step->way == PTAC_STEP_FUSED ? item->n - item->n % n_lanes : item->n;
}

/*
 * A ptac_range_fn of that name over elements of a step, its context, which calls
 * part(item, first, n, step, is_tail) for each part of an item in them, of one side of
 * ptac_step_tail(), and adds up what it returns. A macro, so that part is inlined with
 * its vector types.
 */
#define PTAC_STEP_RANGE(name, part)                                                    \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_step *step = context;                                               \
        const ptac_step_item *item = ptac_step_find(step, begin);                      \
        double sum = 0;                                                                \
                                                                                       \
        for (int64_t at = begin; at < end;) {                                          \
            const int64_t tail = ptac_step_tail(step, item, sizeof(REAL));             \
            const int64_t first = at - item->begin;                                    \
            const int64_t left = (first < tail ? tail : item->n) - first;              \
            const int64_t n = left < end - at ? left : end - at;                       \
                                                                                       \
            sum += part(item, first, n, step, first >= tail);                          \
            at += n;                                                                   \
            if (first + n == item->n)                                                  \
                item++;                                                                \
        }                                                                              \
        if (step->sums)                                                                \
            step->sums[begin / PTAC_STEP_BLOCK] = sum;                                 \
    }

/* accepts() of rows that fuse multiply and add: both floating types, if ATen does. */
ptac_reason ptac_step_accepts_fused(const ptac_call *call);

/* How many sums there are of so many elements. */
static inline int64_t ptac_step_sums(int64_t n_elements)
{
    return ptac_parts(n_elements, PTAC_STEP_BLOCK);
}

/* Run the range function of the dtype in torch's threads; block by block for sums. */
ptac_status ptac_step_run(const ptac_call *call, ptac_range_fn f32, ptac_range_fn f64);

/* The rows of an instruction set, from sgd_range_f32 and its like. */
#define PTAC_STEP_RUN(kind)                                                            \
    static ptac_status kind(const ptac_call *call)                                     \
    {                                                                                  \
        return ptac_step_run(call, kind##_range_f32, kind##_range_f64);                \
    }
#define PTAC_STEP_ROWS(name, features, takes)                                          \
    PTAC_STEP_RUN(sgd)                                                                 \
    PTAC_STEP_RUN(adam)                                                                \
    PTAC_STEP_RUN(adadelta)                                                            \
    PTAC_STEP_RUN(rmsprop)                                                             \
    PTAC_STEP_RUN(adagrad)                                                             \
    PTAC_STEP_RUN(nadam)                                                               \
    PTAC_ROW(SGD_STEP, name, PTAC_EXACT, features, takes, sgd)                         \
    PTAC_ROW(ADAM_STEP, name, PTAC_EXACT, features, takes, adam)                       \
    PTAC_ROW(ADAMW_STEP, name, PTAC_EXACT, features, takes, adam)                      \
    PTAC_ROW(ADADELTA_STEP, name, PTAC_EXACT, features, takes, adadelta)               \
    PTAC_ROW(RMSPROP_STEP, name, PTAC_EXACT, features, takes, rmsprop)                 \
    PTAC_ROW(ADAGRAD_STEP, name, PTAC_EXACT, features, takes, adagrad)                 \
    PTAC_ROW(NADAM_STEP, name, PTAC_EXACT, features, takes, nadam)

#endif
