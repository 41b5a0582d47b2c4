/*
 * activation_tpl.h - activations and their gradients, a vector of floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 */
#include "ops/activation/activation.h"
#include "ops/math/math_tpl.h"
#include "ops/math/stream.h"

/* n elements of both gradients. */
INLINE void prelu_step(const float *grad, const float *x, vec weight, float *of_x,
                       float *of_weight, int n, bool streams)
{
    const vec g = v_load_first(grad, n), v = v_load_first(x, n);
    const mask is_positive = v_less(v_zero(), v);
    const vec for_x = v_pick(is_positive, g, v_mul(weight, g));
    const vec for_weight = v_pick(is_positive, v_zero(), v_mul(v, g));

    if (streams && n == LANES) {
        v_stream(of_x, for_x);
        v_stream(of_weight, for_weight);
        return;
    }
    v_store_first(of_x, for_x, n);
    v_store_first(of_weight, for_weight, n);
}

TARGET static void prelu(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_prelu *p = call->params;
    const float *grad = call->inputs[PTAC_PRELU_GRAD].data;
    const float *x = call->inputs[PTAC_PRELU_X].data;
    const float *weight = call->inputs[PTAC_PRELU_WEIGHT].data;
    float *of_x = call->outputs[0].data, *of_weight = call->outputs[1].data;
    const bool is_pixel = p->inner == 1 && p->channels > 1;
    const int64_t step = is_pixel ? p->channels : p->channels > 1 ? p->inner : end;
    const bool streams = ptac_is_streamed(call->outputs[0].n_elements * 4);

    /* Pieces that have one weight, or as many as channels, from the first on. */
    for (int64_t at = begin, next; at < end; at = next) {
        const int64_t piece = at / step, first = piece * step;

        next = first + step < end ? first + step : end;
        if (is_pixel) {
            FOR_LANES(i, n, at, next,
                      prelu_step(grad + i, x + i, v_load_first(weight + i - first, n),
                                 of_x + i, of_weight + i, n, false));
        } else {
            const vec w = v_set(weight[p->channels > 1 ? piece % p->channels : 0]);

            if (streams && ptac_begins_line(of_x + at) &&
                ptac_begins_line(of_weight + at))
                FOR_LANES(
                    i, n, at, next,
                    prelu_step(grad + i, x + i, w, of_x + i, of_weight + i, n, true));
            else
                FOR_LANES(
                    i, n, at, next,
                    prelu_step(grad + i, x + i, w, of_x + i, of_weight + i, n, false));
        }
    }
    if (streams)
        v_stream_end();
}

/*
 * e = exp(x) and tanh(log(1 + e)) = n / (n + 2) with n = e * (e + 2), which is 1 from
 * 20 on, where e ends.
 */
INLINE vec tanh_softplus(vec x, vec *e)
{
    vec n;

    *e = v_exp_bounded(v_min(v_set(20), x));
    n = v_mul(*e, v_add(*e, v_set(2)));
    return v_div(n, v_add(n, v_set(2)));
}

INLINE void mish_step(const float *x, float *y, int n)
{
    const vec v = v_load_first(x, n);
    vec e;

    v_store_first(y, v_mul(v, tanh_softplus(v, &e)), n);
}

TARGET static void mish(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;

    FOR_LANES(i, n, begin, end, mish_step(x + i, y + i, n));
}

INLINE void mish_gradient_step(const float *grad, const float *x, float *of_x, int n)
{
    const vec v = v_load_first(x, n), one = v_set(1);
    vec e;
    const vec t = tanh_softplus(v, &e);
    const vec sigmoid = v_div(e, v_add(one, e));
    const vec slope = v_fma(v_mul(v, sigmoid), v_fnma(t, t, one), t);

    v_store_first(of_x, v_mul(v_load_first(grad, n), slope), n);
}

TARGET static void mish_gradient(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const float *grad = call->inputs[PTAC_MISH_GRAD].data;
    const float *x = call->inputs[PTAC_MISH_GRAD_X].data;
    float *of_x = call->outputs[0].data;

    FOR_LANES(i, n, begin, end, mish_gradient_step(grad + i, x + i, of_x + i, n));
}

#define ACTIVATION_ROW(id, level, function)                                            \
    static ptac_status run_##function(const ptac_call *call)                           \
    {                                                                                  \
        ptac_share_elements(call, function);                                           \
        return PTAC_OK;                                                                \
    }                                                                                  \
    PTAC_ROW(id, ISA, level, NEEDS, ptac_activation_accepts, run_##function)

ACTIVATION_ROW(PRELU_BACKWARD, PTAC_EXACT, prelu)
ACTIVATION_ROW(MISH, PTAC_CLOSE, mish)
ACTIVATION_ROW(MISH_BACKWARD, PTAC_CLOSE, mish_gradient)
