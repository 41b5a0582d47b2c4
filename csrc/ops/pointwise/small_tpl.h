/*
 * small_tpl.h - small_pointwise, a vector of floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the row's name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 */
#include "ops/pointwise/small.h"

/* A NaN is not less, and stays, as does -0. */
INLINE vec relu(vec x)
{
    return v_pick(v_less(x, v_zero()), v_zero(), x);
}

#define OF_BOTH(name, of)                                                              \
    TARGET static void name(const float *x, const float *y, float *to, int64_t end)    \
    {                                                                                  \
        FOR_LANES(i, n, 0, end,                                                        \
                  v_store_first(                                                       \
                      to + i, of(v_load_first(x + i, n), v_load_first(y + i, n)), n)); \
    }                                                                                  \
    TARGET static void name##_number(const float *x, float number, float *to,          \
                                     int64_t end)                                      \
    {                                                                                  \
        const vec y = v_set(number);                                                   \
                                                                                       \
        FOR_LANES(i, n, 0, end,                                                        \
                  v_store_first(to + i, of(v_load_first(x + i, n), y), n));            \
    }
OF_BOTH(add, v_add)
OF_BOTH(sub, v_sub)
OF_BOTH(mul, v_mul)
OF_BOTH(divide, v_div)

TARGET static void relu_all(const float *x, float *to, int64_t end)
{
    FOR_LANES(i, n, 0, end, v_store_first(to + i, relu(v_load_first(x + i, n)), n));
}

static ptac_status run(const ptac_call *call)
{
    typedef void (*of_both)(const float *, const float *, float *, int64_t);
    typedef void (*of_number)(const float *, float, float *, int64_t);
    static const of_both both[] = {add, sub, mul, divide};
    static const of_number numbers[] = {add_number, sub_number, mul_number,
                                        divide_number};
    const ptac_small *p = call->params;
    const int64_t n = call->inputs[0].n_elements;
    const float *x = call->inputs[0].data;
    float *to = call->outputs[0].data;

    if (p->kind == PTAC_SMALL_RELU)
        relu_all(x, to, n);
    else if (p->kind < PTAC_SMALL_ADD_NUMBER)
        both[p->kind - PTAC_SMALL_ADD](x, call->inputs[1].data, to, n);
    else
        numbers[p->kind - PTAC_SMALL_ADD_NUMBER](x, p->number, to, n);
    return PTAC_OK;
}

PTAC_ROW(SMALL_POINTWISE, ISA, PTAC_EXACT, NEEDS, ptac_small_accepts, run)
