/*
 * adam_cuda_tpl.h - the Adam and AdamW steps on CUDA.
 *
 * Included by step_cuda_tpl.h. Operations and roundings are those of
 * torch/optim/adam.py, _multi_tensor_adam, whose kernels fuse a + alpha * b, lerp's
 * product and sum (Lerp.h), and the last product of addcmul and addcdiv with their sum
 * (ForeachPointwiseOp.cu).
 */

template <class T> struct adam_step {
    typedef real_of<T> real;

    ptac_output<T> param, average, square, maximum;
    ptac_input<T> grad;
    real weight, beta2, one_minus_beta2, eps, weight_decay, decay_factor;
    real step_size_neg, correction;
    bool has_decay, has_factor, has_maximum, maximize;

    PTAC_METHOD real lerp(real start, real end) const
    {
        const real difference = end - start;

        return weight < real(0.5) && weight > real(-0.5)
                   ? multiply_add(weight, difference, start)
                   : multiply_add(weight - 1, difference, end);
    }

    template <int n> PTAC_METHOD void take(ptac_i64 i) const
    {
        ptac_pack<T, n> p = param.template pack<n>(i), a = average.template pack<n>(i),
                        s = square.template pack<n>(i), most = {};
        const ptac_pack<T, n> g = grad.template pack<n>(i);

        if (has_maximum)
            most = maximum.template pack<n>(i);
        for (int k = 0; k < n; k++) {
            real x = ptac_real(p.at[k]), d = ptac_real(g.at[k]);

            if (maximize)
                d = -d;
            if (has_factor)
                x *= decay_factor;
            if (has_decay)
                d = multiply_add(x, weight_decay, d);

            const real m = lerp(ptac_real(a.at[k]), d);
            real v = multiply_add(one_minus_beta2, d * d, ptac_real(s.at[k]) * beta2);

            a.at[k] = ptac_from<T>(m);
            s.at[k] = ptac_from<T>(v);
            if (has_maximum) {
                const real before = ptac_real(most.at[k]);

                v = v > before || v != v ? v : before; /* NaN if either is */
                most.at[k] = ptac_from<T>(v);
            }
            p.at[k] = ptac_from<T>(
                multiply_add(step_size_neg, m / (root(v) / correction + eps), x));
        }
        average.template put<n>(i, a);
        square.template put<n>(i, s);
        if (has_maximum)
            maximum.template put<n>(i, most);
        param.template put<n>(i, p);
    }
};

/* A number on the device, of either type. */
template <class real> PTAC_DEVICE real number_at(const void *at, bool is_f64)
{
    if (is_f64)
        return (real)ptac_input<double>{(const double *)at}[0];
    return (real)ptac_input<float>{(const float *)at}[0];
}

/*
 * What depends on the count of a step that a graph may have captured, which one thread
 * of the block reads and works out: 1 - beta^t is -expm1(t * log(beta)), which keeps
 * the digits that torch's 1 - pow(beta, t) loses in early steps.
 */
template <class T>
PTAC_DEVICE void read_count(adam_step<T> *step, const ptac_adam_entry &e,
                            const ptac_cuda_adam &adam)
{
    typedef real_of<T> real;
    enum { STEP_SIZE_NEG, CORRECTION, DECAY_FACTOR, N };
    PTAC_SHARED(real, told, N);

    if (threadIdx.x == 0) {
        const real count = number_at<real>(e.step, adam.step_is_f64) + 1;
        const real lr =
            adam.lr_at ? number_at<real>(adam.lr_at, adam.lr_is_f64) : (real)adam.lr;

        told[STEP_SIZE_NEG] = -(lr / one_minus_exp(count * (real)adam.log_beta1));
        told[CORRECTION] = root(one_minus_exp(count * (real)adam.log_beta2));
        told[DECAY_FACTOR] =
            adam.lr_at ? 1 - lr * (real)adam.decoupled_decay : (real)adam.decay_factor;
    }
    __syncthreads();
    step->step_size_neg = told[STEP_SIZE_NEG];
    step->correction = told[CORRECTION];
    step->decay_factor = told[DECAY_FACTOR];
    step->has_factor |= adam.lr_at && adam.decoupled_decay != 0;
}

template <class T>
PTAC_DEVICE void step_by_adam(const table<ptac_adam_entry> &t,
                              const ptac_cuda_adam &adam)
{
    typedef real_of<T> real;
    const ptac_adam_entry &e = t.entries[entry_of(t, (int)blockIdx.x)];
    const bool in_packs = is_aligned(e.param) && is_aligned(e.grad) &&
                          is_aligned(e.average) && is_aligned(e.square) &&
                          is_aligned(e.maximum);
    adam_step<T> step = {
        {(T *)e.param},
        {(T *)e.average},
        {(T *)e.square},
        {(T *)e.maximum},
        {(const T *)e.grad},
        (real)adam.one_minus_beta1,
        (real)adam.beta2,
        (real)adam.one_minus_beta2,
        (real)adam.eps,
        (real)adam.weight_decay,
        (real)adam.decay_factor,
        (real)(adam.is_capturable ? 0 : e.step_size_neg),
        (real)(adam.is_capturable ? 0 : e.correction),
        adam.weight_decay != 0,
        adam.decay_factor != 1,
        e.maximum != nullptr,
        adam.maximize != 0,
    };

    if (adam.is_capturable)
        read_count(&step, e, adam);
    walk<T>(part_of<T>((int)blockIdx.x - e.first_chunk, e.n, in_packs), step);
}
