/*
 * adam_ref.c - the Adam and AdamW steps, an element at a time.
 *
 * The row "scalar" also serves hosts whose own kernels do not fuse multiply and add.
 */
#include "ops/optim/step.h"

#include <math.h>

enum {
    BLOCK = 256,
};

#define DEFINE_STEP(type, name, fused, host_root)                                      \
    static inline type name##_multiply_add(type a, type b, type c)                     \
    {                                                                                  \
        return ptac_the_host.fma ? fused(a, b, c) : a * b + c;                         \
    }                                                                                  \
                                                                                       \
    /* torch.lerp: from the start for weights below one half, else from the end. */    \
    static inline type name##_lerp(type start, type end, type weight)                  \
    {                                                                                  \
        if (weight < (type)0.5 && weight > (type)-0.5)                                 \
            return name##_multiply_add(weight, end - start, start);                    \
        return name##_multiply_add(weight - 1, end - start, end);                      \
    }                                                                                  \
                                                                                       \
    /* Everything up to the root, of one element; returns what it is taken of. */      \
    static inline type name##_moments(const ptac_step_item *item, int64_t at,          \
                                      const ptac_adam *adam)                           \
    {                                                                                  \
        type *p = (type *)item->param + at;                                            \
        type *average = (type *)item->state[0] + at;                                   \
        type *square = (type *)item->state[1] + at;                                    \
        type g = ((const type *)item->grad)[at];                                       \
                                                                                       \
        if (adam->maximize)                                                            \
            g = -g;                                                                    \
        if (adam->decay_factor != 1)                                                   \
            *p *= (type)adam->decay_factor;                                            \
        if (adam->weight_decay != 0)                                                   \
            g = name##_multiply_add(*p, (type)adam->weight_decay, g);                  \
        *average = name##_lerp(*average, g, (type)adam->one_minus_beta1);              \
        *square *= (type)adam->beta2;                                                  \
        *square = name##_multiply_add((type)adam->one_minus_beta2 * g, g, *square);    \
        if (!adam->amsgrad)                                                            \
            return *square;                                                            \
                                                                                       \
        type *maximum = (type *)item->state[2] + at;                                   \
                                                                                       \
        if (*square > *maximum || *square != *square)                                  \
            *maximum = *square;                                                        \
        return *maximum;                                                               \
    }                                                                                  \
                                                                                       \
    static double name##_part(const ptac_step_item *item, int64_t first, int64_t n,    \
                              const ptac_step *step)                                   \
    {                                                                                  \
        const type step_size_neg = (type)item->step_size_neg;                          \
        const type correction = (type)item->bias_correction2_sqrt;                     \
        const type eps = (type)step->adam.eps;                                         \
        type second[BLOCK], roots[BLOCK];                                              \
        double sum = 0;                                                                \
                                                                                       \
        for (int64_t i = 0; i < n; i += BLOCK) {                                       \
            const int64_t size = n - i < BLOCK ? n - i : BLOCK;                        \
            type *p = (type *)item->param + first + i;                                 \
            const type *average = (const type *)item->state[0] + first + i;            \
            const type *grad = (const type *)item->grad + first + i;                   \
                                                                                       \
            for (int64_t j = 0; j < size; j++)                                         \
                second[j] = name##_moments(item, first + i + j, &step->adam);          \
            host_root(second, roots, size);                                            \
            for (int64_t j = 0; j < size; j++) {                                       \
                const type change =                                                    \
                    step_size_neg * average[j] / (roots[j] / correction + eps);        \
                                                                                       \
                p[j] += change;                                                        \
                sum += (double)grad[j] * (double)change;                               \
            }                                                                          \
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

DEFINE_STEP(float, step_f32, fmaf, ptac_the_host.sqrt_f32)
DEFINE_STEP(double, step_f64, fma, ptac_the_host.sqrt_f64)

static ptac_status run(const ptac_call *call)
{
    return ptac_step_run(call, step_f32, step_f64);
}

PTAC_ROW(ADAM_STEP, "scalar", PTAC_EXACT, 0, ptac_step_accepts, run)

PTAC_ROW(ADAMW_STEP, "scalar", PTAC_EXACT, 0, ptac_step_accepts, run)
