/*
 * sgd_cuda_tpl.h - the SGD step on CUDA.
 *
 * Included by step_cuda_tpl.h. Operations and roundings are those of
 * torch/optim/sgd.py, _multi_tensor_sgd, whose kernels (ForeachBinaryOpList.cu) compute
 * a + alpha * b fused. Unlike it, nothing is written to the gradients: with nesterov
 * and without weight decay torch adds the momentum to them in place, on this path
 * alone.
 */

template <class T> struct sgd_step {
    typedef real_of<T> real;

    ptac_output<T> param, buffer;
    ptac_input<T> grad;
    real lr_neg, momentum, keep, weight_decay;
    bool has_decay, has_buffer, is_first, nesterov, maximize;

    template <int n> PTAC_METHOD void take(ptac_i64 i) const
    {
        ptac_pack<T, n> p = param.template pack<n>(i), b = {};
        const ptac_pack<T, n> g = grad.template pack<n>(i);

        if (has_buffer && !is_first)
            b = buffer.template pack<n>(i);
        for (int k = 0; k < n; k++) {
            const real x = ptac_real(p.at[k]);
            real d = ptac_real(g.at[k]);

            if (maximize)
                d = -d;
            if (has_decay)
                d = multiply_add(x, weight_decay, d);
            if (has_buffer) {
                const real m =
                    is_first ? d : multiply_add(d, keep, ptac_real(b.at[k]) * momentum);

                b.at[k] = ptac_from<T>(m);
                d = nesterov ? multiply_add(m, momentum, d) : m;
            }
            p.at[k] = ptac_from<T>(multiply_add(d, lr_neg, x));
        }
        if (has_buffer)
            buffer.template put<n>(i, b);
        param.template put<n>(i, p);
    }
};

template <class T>
PTAC_DEVICE void step_by_sgd(const table<ptac_sgd_entry> &t, const ptac_cuda_sgd &sgd)
{
    typedef real_of<T> real;
    const ptac_sgd_entry &e = t.entries[entry_of(t, (int)blockIdx.x)];
    const bool in_packs =
        is_aligned(e.param) && is_aligned(e.grad) && is_aligned(e.buffer);
    const sgd_step<T> step = {
        {(T *)e.param},         {(T *)e.buffer},       {(const T *)e.grad},
        (real)sgd.lr_neg,       (real)sgd.momentum,    (real)sgd.one_minus_dampening,
        (real)sgd.weight_decay, sgd.weight_decay != 0, e.buffer != nullptr,
        e.is_first != 0,        sgd.nesterov != 0,     sgd.maximize != 0,
    };

    walk<T>(part_of<T>((int)blockIdx.x - e.first_chunk, e.n, in_packs), step);
}
