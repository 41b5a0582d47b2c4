/*
 * stack_tpl.h - stacking, a vector of each tensor at a time.
 *
 * Included behind typed_<isa>.h. The includer also defines ISA, string: the row's name,
 * and NEEDS, PTAC_CPU_*: what the CPU must have.
 */
#include "ops/copy/stack.h"

#define OF(name) name##_f32

/* v[i] and v[i + n / 2] in turn, n a power of two: all in turn after log2(n) times. */
INLINE void join_halves(vec *v, int n)
{
    const int half = n / 2;
    vec joined[PTAC_MAX_INPUTS];

#pragma GCC unroll 4
    for (int i = 0; i < half; i++) {
        joined[2 * i] = zip_low_f32(v[i], v[i + half]);
        joined[2 * i + 1] = zip_high_f32(v[i], v[i + half]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        v[i] = joined[i];
}

/* Vectors of n tensors from begin on, while whole ones fit; returns where it ends. */
INLINE int64_t stack_vectors(const ptac_call *call, int n, int64_t begin, int64_t end)
{
    float *to = call->outputs[0].data;
    int64_t at = begin;

    for (; at + LANES <= end; at += LANES) {
        vec v[PTAC_MAX_INPUTS];

#pragma GCC unroll 8
        for (int k = 0; k < n; k++)
            v[k] = v_load((const float *)call->inputs[k].data + at);
#pragma GCC unroll 3
        for (int step = 1; step < n; step *= 2)
            join_halves(v, n);
#pragma GCC unroll 8
        for (int k = 0; k < n; k++)
            v_store(to + at * n + k * LANES, v[k]);
    }
    return at;
}

/* One by one. */
INLINE void stack_elements(const ptac_call *call, int n, int64_t begin, int64_t end)
{
    const float *from[PTAC_MAX_INPUTS] = {NULL};
    float *to = (float *)call->outputs[0].data + begin * n;

#pragma GCC unroll 8
    for (int k = 0; k < n; k++)
        from[k] = call->inputs[k].data;
    for (int64_t i = begin; i < end; i++, to += n)
#pragma GCC unroll 8
        for (int k = 0; k < n; k++)
            to[k] = from[k][i];
}

TARGET static void stack_some(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;

    switch (call->n_inputs) {
    case 2:
        stack_elements(call, 2, stack_vectors(call, 2, begin, end), end);
        break;
    case 3:
        stack_elements(call, 3, begin, end);
        break;
    case 4:
        stack_elements(call, 4, stack_vectors(call, 4, begin, end), end);
        break;
    case 8:
        stack_elements(call, 8, stack_vectors(call, 8, begin, end), end);
        break;
    default:
        stack_elements(call, call->n_inputs, begin, end);
    }
}

static ptac_status run_stack(const ptac_call *call)
{
    ptac_share_stack(call, stack_some);
    return PTAC_OK;
}

#undef OF

PTAC_ROW(STACK, ISA, PTAC_EXACT, NEEDS, ptac_stack_accepts, run_stack)
