/*
 * step_ref_tpl.h - the optimizers' steps by their definitions, an element at a time.
 *
 * Included by step_ref.c for each type that OF(name) names, f32 and f64. Expects
 * OF(fused) and OF(ieee), C's fma() and sqrt() of that type. Leaves OF(sgd_range),
 * OF(adam_range) and OF(adadelta_range), as ptac_range_fn.
 */

static inline REAL OF(multiply_add)(REAL a, REAL b, REAL c)
{
    return ptac_the_host.fma ? OF(fused)(a, b, c) : a * b + c;
}

static double OF(sgd_part)(const ptac_step_item *item, int64_t first, int64_t n,
                           const ptac_step *step, bool is_tail)
{
    const ptac_sgd *sgd = &step->sgd;
    const REAL momentum = (REAL)sgd->momentum, decay = (REAL)sgd->weight_decay;
    const REAL keep = (REAL)sgd->one_minus_dampening, lr_neg = (REAL)sgd->lr_neg;
    REAL *p = (REAL *)item->param + first;
    const REAL *grad = (const REAL *)item->grad + first;
    REAL *buffer = item->state[0] ? (REAL *)item->state[0] + first : NULL;
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        REAL g = sgd->maximize ? -grad[i] : grad[i];

        if (sgd->weight_decay != 0)
            g = OF(multiply_add)(p[i], decay, g);
        if (buffer) {
            if (item->is_first)
                buffer[i] = g;
            else if (is_tail)
                buffer[i] = OF(multiply_add)(buffer[i], momentum, g * keep);
            else
                buffer[i] = OF(multiply_add)(g, keep, buffer[i] * momentum);
            g = sgd->nesterov ? OF(multiply_add)(buffer[i], momentum, g) : buffer[i];
        }
        p[i] = OF(multiply_add)(g, lr_neg, p[i]);
        sum += (double)grad[i] * (double)grad[i];
    }
    return sum;
}

PTAC_STEP_RANGE(OF(sgd_range), OF(sgd_part))

/* torch.lerp: from the start for weights below one half, else from the end. */
static inline REAL OF(lerp)(REAL start, REAL end, REAL weight)
{
    if (weight < (REAL)0.5 && weight > (REAL)-0.5)
        return OF(multiply_add)(weight, end - start, start);
    return OF(multiply_add)(weight - 1, end - start, end);
}

/* Everything up to the root, of one element; returns what it is taken of. */
static inline REAL OF(moments)(const ptac_step_item *item, int64_t at,
                               const ptac_adam *adam, bool is_tail)
{
    REAL *p = (REAL *)item->param + at;
    REAL *average = (REAL *)item->state[0] + at, *square = (REAL *)item->state[1] + at;
    REAL *maximum = (REAL *)item->state[2];
    REAL g = ((const REAL *)item->grad)[at];

    if (adam->maximize)
        g = -g;
    if (adam->decay_factor != 1)
        *p *= (REAL)adam->decay_factor;
    if (adam->weight_decay != 0)
        g = OF(multiply_add)(*p, (REAL)adam->weight_decay, g);
    *average = OF(lerp)(*average, g, (REAL)adam->one_minus_beta1);
    if (is_tail)
        *square = OF(multiply_add)(*square, (REAL)adam->beta2,
                                   (REAL)adam->one_minus_beta2 * g * g);
    else
        *square = OF(multiply_add)((REAL)adam->one_minus_beta2 * g, g,
                                   *square * (REAL)adam->beta2);
    if (!adam->amsgrad)
        return *square;
    if (*square > maximum[at] || (!is_tail && *square != *square))
        maximum[at] = *square;
    return maximum[at];
}

/* As the way that is asked for rounds them. */
static inline void OF(roots)(const ptac_step *step, const REAL *in, REAL *out,
                             int64_t n)
{
    if (step->way != PTAC_STEP_FUSED) {
        ptac_the_host.OF(sqrt)(in, out, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = OF(ieee)(in[i]);
}

static double OF(adam_part)(const ptac_step_item *item, int64_t first, int64_t n,
                            const ptac_step *step, bool is_tail)
{
    const REAL step_size_neg = (REAL)item->step_size_neg;
    const REAL correction = (REAL)item->bias_correction2_sqrt;
    const REAL eps = (REAL)step->adam.eps;
    REAL second[BLOCK], roots[BLOCK];
    double sum = 0;

    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;
        REAL *p = (REAL *)item->param + first + i;
        const REAL *average = (const REAL *)item->state[0] + first + i;
        const REAL *grad = (const REAL *)item->grad + first + i;

        for (int64_t j = 0; j < size; j++)
            second[j] = OF(moments)(item, first + i + j, &step->adam, is_tail);
        OF(roots)(step, second, roots, size);
        for (int64_t j = 0; j < size; j++) {
            const REAL change =
                step_size_neg * average[j] / (roots[j] / correction + eps);

            p[j] += change;
            sum += (double)grad[j] * (double)change;
        }
    }
    return sum;
}

PTAC_STEP_RANGE(OF(adam_range), OF(adam_part))

static double OF(adadelta_part)(const ptac_step_item *item, int64_t first, int64_t n,
                                const ptac_step *step, bool is_tail)
{
    const ptac_adadelta *a = &step->adadelta;
    const REAL rho = (REAL)a->rho, one_minus_rho = (REAL)a->one_minus_rho;
    const REAL eps = (REAL)a->eps, lr_neg = (REAL)a->lr_neg;
    REAL squares[BLOCK], changes[BLOCK], g[BLOCK];

    (void)is_tail;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;
        REAL *p = (REAL *)item->param + first + i;
        REAL *square = (REAL *)item->state[0] + first + i;
        REAL *change = (REAL *)item->state[1] + first + i;

        for (int64_t j = 0; j < size; j++) {
            g[j] = ((const REAL *)item->grad)[first + i + j];
            if (a->maximize)
                g[j] = -g[j];
            if (a->weight_decay != 0)
                g[j] = OF(multiply_add)(p[j], (REAL)a->weight_decay, g[j]);
            square[j] = OF(multiply_add)(one_minus_rho * g[j], g[j], square[j] * rho);
            squares[j] = square[j] + eps;
            changes[j] = change[j] + eps;
        }
        OF(roots)(step, squares, squares, size);
        OF(roots)(step, changes, changes, size);
        for (int64_t j = 0; j < size; j++) {
            const REAL delta = changes[j] / squares[j] * g[j];

            change[j] = OF(multiply_add)(one_minus_rho * delta, delta, change[j] * rho);
            p[j] = OF(multiply_add)(delta, lr_neg, p[j]);
        }
    }
    return 0;
}

PTAC_STEP_RANGE(OF(adadelta_range), OF(adadelta_part))
