/*
 * pointwise_tpl.h - gated_act, add_act, bias_act and their gradients, a vector of
 * floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 *
 * Functions that take the activation are inlined into one function for each.
 */
#include "core/host.h"
#include "ops/linear/act_tpl.h"
#include "ops/linear/bias_act.h"
#include "ops/pointwise/pointwise.h"

enum {
    POINTWISE_SHARE = 16384, /* elements that are worth another thread */
};

/* g's gradient through act at z. */
INLINE vec slope_of(vec g, vec z, ptac_act act)
{
    const bool by_y = act == PTAC_ACT_TANH || act == PTAC_ACT_SIGMOID;

    return act_gradient(g, by_y ? act_of(z, act) : z, act);
}

INLINE void gated(const ptac_call *call, int64_t begin, int64_t end, ptac_act act)
{
    const float *a = call->inputs[PTAC_POINTWISE_A].data;
    const float *b = call->inputs[PTAC_POINTWISE_B].data;
    float *y = call->outputs[0].data;

    FOR_LANES(i, n, begin, end,
              v_store_first(
                  y + i,
                  v_mul(act_of(v_load_first(a + i, n), act), v_load_first(b + i, n)),
                  n));
}

INLINE void gated_back(const ptac_call *call, int64_t begin, int64_t end, ptac_act act)
{
    const float *grad = call->inputs[PTAC_POINTWISE_GRAD].data;
    const float *a = call->inputs[PTAC_POINTWISE_GRAD_A].data;
    const float *b = call->inputs[PTAC_POINTWISE_GRAD_B].data;
    float *of_a = call->outputs[0].data, *of_b = call->outputs[1].data;

    FOR_LANES(i, n, begin, end, const vec g = v_load_first(grad + i, n);
              const vec z = v_load_first(a + i, n);
              const vec through = v_mul(g, v_load_first(b + i, n));
              v_store_first(of_a + i, slope_of(through, z, act), n);
              v_store_first(of_b + i, v_mul(g, act_of(z, act)), n));
}

INLINE void added(const ptac_call *call, int64_t begin, int64_t end, ptac_act act)
{
    const float *a = call->inputs[PTAC_POINTWISE_A].data;
    const float *b = call->inputs[PTAC_POINTWISE_B].data;
    float *y = call->outputs[0].data;

    FOR_LANES(i, n, begin, end,
              v_store_first(
                  y + i,
                  act_of(v_add(v_load_first(a + i, n), v_load_first(b + i, n)), act),
                  n));
}

/* Without a residual x is what the activation gave, which is enough for ReLU. */
INLINE void added_back(const ptac_call *call, int64_t begin, int64_t end, ptac_act act)
{
    const float *grad = call->inputs[PTAC_POINTWISE_GRAD].data;
    const float *a = call->inputs[PTAC_POINTWISE_GRAD_A].data;
    const float *b = call->inputs[PTAC_POINTWISE_GRAD_B].data;
    float *of_x = call->outputs[0].data;

    FOR_LANES(i, n, begin, end, vec z = v_load_first(a + i, n);
              if (b) z = v_add(z, v_load_first(b + i, n));
              v_store_first(of_x + i, slope_of(v_load_first(grad + i, n), z, act), n));
}

/* Rows [begin, end). */
INLINE void biased(const ptac_call *call, int64_t begin, int64_t end, ptac_act act)
{
    const float *b = call->inputs[PTAC_POINTWISE_B].data;
    const int64_t width = call->inputs[PTAC_POINTWISE_B].n_elements;

    for (int64_t row = begin; row < end; row++) {
        const float *a =
            (const float *)call->inputs[PTAC_POINTWISE_A].data + row * width;
        float *y = (float *)call->outputs[0].data + row * width;

        FOR_LANES(
            i, n, 0, width,
            v_store_first(
                y + i,
                act_of(v_add(v_load_first(a + i, n), v_load_first(b + i, n)), act), n));
    }
}

INLINE void biased_back(const ptac_call *call, int64_t begin, int64_t end, ptac_act act)
{
    const float *b = call->inputs[PTAC_POINTWISE_GRAD_B].data;
    const int64_t width = call->inputs[PTAC_POINTWISE_GRAD_B].n_elements;

    for (int64_t row = begin; row < end; row++) {
        const int64_t at = row * width;
        const float *grad = (const float *)call->inputs[PTAC_POINTWISE_GRAD].data + at;
        const float *a = (const float *)call->inputs[PTAC_POINTWISE_GRAD_A].data + at;
        float *of_x = (float *)call->outputs[0].data + at;

        FOR_LANES(
            i, n, 0, width,
            const vec z = v_add(v_load_first(a + i, n), v_load_first(b + i, n));
            v_store_first(of_x + i, slope_of(v_load_first(grad + i, n), z, act), n));
    }
}

/* name(call), in threads, of so many rows or elements as a piece tells. */
#define OF_ACT(what, name, act)                                                        \
    TARGET static void what##_##name(int64_t begin, int64_t end, void *context)        \
    {                                                                                  \
        what(context, begin, end, act);                                                \
    }
#define OF_ALL_ACTS(what)                                                              \
    OF_ACT(what, relu, PTAC_ACT_RELU)                                                  \
    OF_ACT(what, gelu, PTAC_ACT_GELU)                                                  \
    OF_ACT(what, gelu_tanh, PTAC_ACT_GELU_TANH)                                        \
    OF_ACT(what, silu, PTAC_ACT_SILU)                                                  \
    OF_ACT(what, tanh, PTAC_ACT_TANH)                                                  \
    OF_ACT(what, sigmoid, PTAC_ACT_SIGMOID)                                            \
    static void share_##what(const ptac_call *call, int64_t n, int64_t grain)          \
    {                                                                                  \
        static const ptac_range_fn by_act[PTAC_N_ACTS] = {                             \
            NULL,        what##_relu, what##_gelu,   what##_gelu_tanh,                 \
            what##_silu, what##_tanh, what##_sigmoid};                                 \
        const ptac_pointwise *p = call->params;                                        \
                                                                                       \
        ptac_parallel_for(0, n, grain, by_act[p->activation], (void *)call);           \
    }

OF_ALL_ACTS(gated)
OF_ALL_ACTS(gated_back)
OF_ALL_ACTS(added)
OF_ALL_ACTS(added_back)
OF_ALL_ACTS(biased)
OF_ALL_ACTS(biased_back)

#define BY_ELEMENTS(id, what)                                                          \
    static ptac_status run_##what(const ptac_call *call)                               \
    {                                                                                  \
        share_##what(call, call->inputs[0].n_elements, POINTWISE_SHARE);               \
        return PTAC_OK;                                                                \
    }                                                                                  \
    PTAC_ROW(id, ISA, PTAC_CLOSE, NEEDS, ptac_pointwise_accepts, run_##what)

BY_ELEMENTS(GATED_ACT, gated)
BY_ELEMENTS(GATED_ACT_BACKWARD, gated_back)
BY_ELEMENTS(ADD_ACT, added)
BY_ELEMENTS(ADD_ACT_BACKWARD, added_back)

static ptac_status run_bias(const ptac_call *call)
{
    const int64_t width = call->inputs[PTAC_POINTWISE_B].n_elements;

    share_biased(call, call->inputs[0].n_elements / width, POINTWISE_SHARE / width + 1);
    return PTAC_OK;
}

static ptac_status run_bias_back(const ptac_call *call)
{
    const int64_t width = call->inputs[PTAC_POINTWISE_GRAD_B].n_elements;
    const int64_t n_rows = call->inputs[0].n_elements / width;
    const ptac_act_backward sums = {.g = call->outputs[0].data,
                                    .gb = call->outputs[1].data,
                                    .n_rows = n_rows,
                                    .n_cols = width,
                                    .act = PTAC_ACT_NONE};

    share_biased_back(call, n_rows, POINTWISE_SHARE / width + 1);
    if (sums.gb)
        ptac_bias_act_backward(ptac_bias_act_best(), &sums);
    return PTAC_OK;
}

PTAC_ROW(BIAS_ACT, ISA, PTAC_CLOSE, NEEDS, ptac_pointwise_accepts, run_bias)
PTAC_ROW(BIAS_ACT_BACKWARD, ISA, PTAC_CLOSE, NEEDS, ptac_pointwise_accepts,
         run_bias_back)
