/*
 * sgd_ref.c - the SGD step, an element at a time.
 *
 * The row "scalar" also serves hosts whose own kernels do not fuse multiply and add.
 */
#include "ops/optim/step.h"

#include <math.h>

#define DEFINE_STEP(type, name, fused)                                                 \
    static inline type name##_multiply_add(type a, type b, type c)                     \
    {                                                                                  \
        return ptac_the_host.fma ? fused(a, b, c) : a * b + c;                         \
    }                                                                                  \
                                                                                       \
    static double name##_part(const ptac_step_item *item, int64_t first, int64_t n,    \
                              const ptac_step *step)                                   \
    {                                                                                  \
        const ptac_sgd *sgd = &step->sgd;                                              \
        const type momentum = (type)sgd->momentum, decay = (type)sgd->weight_decay;    \
        const type keep = (type)sgd->one_minus_dampening, lr_neg = (type)sgd->lr_neg;  \
        type *p = (type *)item->param + first;                                         \
        const type *grad = (const type *)item->grad + first;                           \
        type *buffer = item->state[0] ? (type *)item->state[0] + first : NULL;         \
        double sum = 0;                                                                \
                                                                                       \
        for (int64_t i = 0; i < n; i++) {                                              \
            type g = sgd->maximize ? -grad[i] : grad[i];                               \
                                                                                       \
            if (sgd->weight_decay != 0)                                                \
                g = name##_multiply_add(p[i], decay, g);                               \
            if (buffer) {                                                              \
                buffer[i] = item->is_first                                             \
                                ? g                                                    \
                                : name##_multiply_add(g, keep, buffer[i] * momentum);  \
                g = sgd->nesterov ? name##_multiply_add(buffer[i], momentum, g)        \
                                  : buffer[i];                                         \
            }                                                                          \
            p[i] = name##_multiply_add(g, lr_neg, p[i]);                               \
            sum += (double)grad[i] * (double)grad[i];                                  \
        }                                                                              \
        return sum;                                                                    \
    }                                                                                  \
                                                                                       \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_step *step = context;                                               \
                                                                                       \
        PTAC_STEP_EACH(step, begin, end, name##_part);                                 \
    }

DEFINE_STEP(float, step_f32, fmaf)
DEFINE_STEP(double, step_f64, fma)

static ptac_status run(const ptac_call *call)
{
    return ptac_step_run(call, step_f32, step_f64);
}

PTAC_ROW(SGD_STEP, "scalar", PTAC_EXACT, 0, ptac_step_accepts, run)
