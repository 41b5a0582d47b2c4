/*
 * rooted_ref_tpl.h - the steps of RMSprop, Adagrad and NAdam by their definitions, an
 * element at a time.
 *
 * Included by step_ref.c behind step_ref_tpl.h for each type that OF(name) names.
 * Leaves OF(rmsprop_range), OF(adagrad_range) and OF(nadam_range).
 */

static double OF(rmsprop_part)(const ptac_step_item *item, int64_t first, int64_t n,
                               const ptac_step *step, bool is_tail)
{
    const ptac_rmsprop *r = &step->rmsprop;
    const REAL keep = (REAL)r->alpha, weight = (REAL)r->one_minus_alpha;
    const REAL lr_neg = (REAL)r->lr_neg;
    REAL g[BLOCK], roots[BLOCK];

    (void)is_tail;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK, at = first + i;
        REAL *p = (REAL *)item->param + at, *square = (REAL *)item->state[0] + at;
        REAL *buffer = (REAL *)item->state[1], *average = (REAL *)item->state[2];

        for (int64_t j = 0; j < size; j++) {
            g[j] = ((const REAL *)item->grad)[at + j];
            if (r->maximize)
                g[j] = -g[j];
            if (r->weight_decay != 0)
                g[j] = OF(multiply_add)(p[j], (REAL)r->weight_decay, g[j]);
            square[j] = OF(multiply_add)(weight * g[j], g[j], square[j] * keep);
            roots[j] = square[j];
            if (r->centered) {
                REAL *a = &average[at + j];

                *a = OF(lerp)(*a, g[j], weight);
                roots[j] = OF(multiply_add)(-*a, *a, square[j]);
            }
        }
        OF(roots)(step, roots, roots, size);
        for (int64_t j = 0; j < size; j++) {
            const REAL by = roots[j] + (REAL)r->eps;

            if (r->momentum > 0) {
                REAL *b = &buffer[at + j];

                *b = *b * (REAL)r->momentum + g[j] / by;
                p[j] = OF(multiply_add)(*b, lr_neg, p[j]);
            } else {
                p[j] += lr_neg * g[j] / by;
            }
        }
    }
    return 0;
}

PTAC_STEP_RANGE(OF(rmsprop_range), OF(rmsprop_part))

static double OF(adagrad_part)(const ptac_step_item *item, int64_t first, int64_t n,
                               const ptac_step *step, bool is_tail)
{
    const ptac_adagrad *a = &step->adagrad;
    REAL g[BLOCK], roots[BLOCK];

    (void)is_tail;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;
        REAL *p = (REAL *)item->param + first + i;
        REAL *sum = (REAL *)item->state[0] + first + i;

        for (int64_t j = 0; j < size; j++) {
            g[j] = ((const REAL *)item->grad)[first + i + j];
            if (a->maximize)
                g[j] = -g[j];
            if (a->weight_decay != 0)
                g[j] = OF(multiply_add)(p[j], (REAL)a->weight_decay, g[j]);
            sum[j] = OF(multiply_add)(g[j], g[j], sum[j]);
        }
        OF(roots)(step, sum, roots, size);
        for (int64_t j = 0; j < size; j++)
            p[j] += (REAL)item->step_size_neg * g[j] / (roots[j] + (REAL)a->eps);
    }
    return 0;
}

PTAC_STEP_RANGE(OF(adagrad_range), OF(adagrad_part))

static double OF(nadam_part)(const ptac_step_item *item, int64_t first, int64_t n,
                             const ptac_step *step, bool is_tail)
{
    const ptac_nadam *a = &step->nadam;
    const bool is_loop = step->way == PTAC_STEP_LOOP;
    const REAL keep = (REAL)a->beta2, square_weight = (REAL)a->one_minus_beta2;
    REAL g[BLOCK], roots[BLOCK];

    (void)is_tail;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;
        REAL *p = (REAL *)item->param + first + i;
        REAL *average = (REAL *)item->state[0] + first + i;
        REAL *square = (REAL *)item->state[1] + first + i;

        for (int64_t j = 0; j < size; j++) {
            if (a->decay_factor != 1)
                p[j] *= (REAL)a->decay_factor;
            g[j] = ((const REAL *)item->grad)[first + i + j];
            if (a->maximize)
                g[j] = -g[j];
            if (a->weight_decay != 0)
                g[j] = OF(multiply_add)(p[j], (REAL)a->weight_decay, g[j]);
            average[j] = OF(lerp)(average[j], g[j], (REAL)a->one_minus_beta1);
            square[j] = OF(multiply_add)(square_weight * g[j], g[j], square[j] * keep);
            roots[j] = is_loop ? square[j] / (REAL)item->bias_correction2 : square[j];
        }
        OF(roots)(step, roots, roots, size);
        for (int64_t j = 0; j < size; j++) {
            const REAL root =
                is_loop ? roots[j] : roots[j] / (REAL)item->bias_correction2_sqrt;
            const REAL by = root + (REAL)a->eps;

            p[j] += (REAL)item->grad_size_neg * g[j] / by;
            p[j] += (REAL)item->step_size_neg * average[j] / by;
        }
    }
    return 0;
}

PTAC_STEP_RANGE(OF(nadam_range), OF(nadam_part))
