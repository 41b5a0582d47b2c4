/*
 * elu_tpl.h - ELU and its gradient, a vector of floats at a time.
 *
 * Included behind curves_tpl.h, for the same ISA and NEEDS.
 */

/* (exp(x) - 1) / x in x, by Taylor: 2^-25 for -0.35 < x < 0. */
static const float expm1_terms[] = {1,          1 / 2.0f,   1 / 6.0f,   1 / 24.0f,
                                    1 / 120.0f, 1 / 720.0f, 1 / 5040.0f};

/* exp(x) - 1 for x <= 0 or NaN, 2 ulp. */
INLINE vec v_expm1_below(vec x)
{
    const vec far = v_sub(v_exp_bounded(x), v_set(1));
    const vec near = v_mul(x, POLYNOMIAL(x, expm1_terms));

    return v_pick(v_less(v_set(-0.35f), x), near, far);
}

TARGET static void elu(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_elu *p = call->params;
    const float *at = call->inputs[0].data;
    float *y = call->outputs[0].data;
    const vec above = v_set(p->scale), below = v_set(p->scale_below);
    const vec inside = v_set(p->input_scale);

    FOR_LANES(i, n, begin, end, const vec x = v_load_first(at + i, n);
              const vec inner = v_mul(v_min(v_zero(), x), inside);
              const vec curve = v_mul(v_expm1_below(inner), below); v_store_first(
                  y + i, v_pick(v_at_most(v_zero(), x), v_mul(x, above), curve), n));
}

/* The slope below 0, of x or of what the curve has made of it. */
INLINE vec elu_slope_below(const ptac_elu *p, vec x)
{
    const vec inside = v_set(p->input_scale), below = v_set(p->scale_below);

    if (p->is_result)
        return v_mul(inside, v_add(x, below));
    return v_mul(v_mul(inside, below),
                 v_exp_bounded(v_mul(v_min(v_zero(), x), inside)));
}

TARGET static void elu_gradient(int64_t begin, int64_t end, void *context)
{
    nan_work *work = context;
    const ptac_elu *p = work->call->params;
    const float *grads = work->call->inputs[PTAC_MISH_GRAD].data;
    const float *at = work->call->inputs[PTAC_MISH_GRAD_X].data;
    float *of_x = work->call->outputs[0].data;
    const vec above = v_set(p->scale);
    vec seen = v_zero();

    FOR_LANES(i, n, begin, end, const vec x = v_load_first(at + i, n);
              const vec grad = v_load_first(grads + i, n); seen = note_nan(seen, x);
              const vec slope =
                  v_pick(v_at_most(x, v_zero()), elu_slope_below(p, x), above);
              v_store_first(of_x + i, v_mul(grad, slope), n));
    if (isnan(v_sum(seen)))
        __atomic_store_n(&work->has_nan, true, __ATOMIC_RELAXED);
}

static ptac_status run_elu(const ptac_call *call)
{
    ptac_share_elements(call, elu);
    return PTAC_OK;
}

static ptac_status run_elu_gradient(const ptac_call *call)
{
    nan_work work = {call, false};

    ptac_parallel_for(0, call->inputs[0].n_elements, 16384, elu_gradient, &work);
    return work.has_nan ? PTAC_UNSUITED : PTAC_OK;
}

PTAC_ROW(ELU, ISA, PTAC_CLOSE, NEEDS, ptac_activation_accepts, run_elu)
PTAC_ROW(ELU_BACKWARD, ISA, PTAC_CLOSE, NEEDS, ptac_activation_accepts,
         run_elu_gradient)
