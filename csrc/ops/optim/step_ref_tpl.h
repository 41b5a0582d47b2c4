/*
 * step_ref_tpl.h - the optimizers' steps by their definitions, an element at a time.
 *
 * Included by step_ref.c for each type that OF(name) names, f32 and f64. Expects
 * OF(fused), C's fma() of that type. Leaves OF(sgd_range) and
 * OF(adam_range), as ptac_range_fn.
 */

static inline REAL OF(multiply_add)(REAL a, REAL b, REAL c)
{
    return ptac_the_host.fma ? OF(fused)(a, b, c) : a * b + c;
}

static double OF(sgd_part)(const ptac_step_item *item, int64_t first, int64_t n,
                           const ptac_step *step)
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
            buffer[i] =
                item->is_first ? g : OF(multiply_add)(g, keep, buffer[i] * momentum);
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
                               const ptac_adam *adam)
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
    *square *= (REAL)adam->beta2;
    *square = OF(multiply_add)((REAL)adam->one_minus_beta2 * g, g, *square);
    if (!adam->amsgrad)
        return *square;
    if (*square > maximum[at] || *square != *square)
        maximum[at] = *square;
    return maximum[at];
}

static double OF(adam_part)(const ptac_step_item *item, int64_t first, int64_t n,
                            const ptac_step *step)
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
            second[j] = OF(moments)(item, first + i + j, &step->adam);
        ptac_the_host.OF(sqrt)(second, roots, size);
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
