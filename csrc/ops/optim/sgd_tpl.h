/*
 * sgd_tpl.h - the SGD step, a vector at a time.
 *
 * Included by step_tpl.h for each type that OF(name) names, f32 and f64. Leaves
 * OF(sgd_range), a ptac_range_fn.
 */

typedef struct OF(sgd_scalars) {
    VEC momentum, weight_decay, one_minus_dampening, lr_neg, flip;
} OF(sgd_scalars);

/* Elements [at, at + m), m <= N_LANES, of one parameter; returns their gradients. */
INLINE VEC OF(sgd_lanes)(const ptac_step_item *item, int64_t at, int m,
                         const ptac_sgd *sgd, const OF(sgd_scalars) * s, bool is_tail)
{
    REAL *p = (REAL *)item->param + at;
    REAL *buffer = (REAL *)item->state[0];
    const VEC x = LOAD(p, m);
    const VEC grad = LOAD((const REAL *)item->grad + at, m);
    VEC g = XOR(grad, s->flip);

    if (sgd->weight_decay != 0)
        g = FMA(x, s->weight_decay, g);
    if (buffer) {
        VEC b = g;

        buffer += at;
        if (!item->is_first && is_tail)
            b = FMA(LOAD(buffer, m), s->momentum, MUL(g, s->one_minus_dampening));
        else if (!item->is_first)
            b = FMA(g, s->one_minus_dampening, MUL(LOAD(buffer, m), s->momentum));
        STORE(buffer, b, m);
        g = sgd->nesterov ? FMA(b, s->momentum, g) : b;
    }
    STORE(p, FMA(g, s->lr_neg, x), m);
    return grad;
}

TARGET static inline double OF(sgd_part)(const ptac_step_item *item, int64_t first,
                                         int64_t n, const ptac_step *step, bool is_tail)
{
    const ptac_sgd *sgd = &step->sgd;
    const OF(sgd_scalars) s = {
        .momentum = SET(sgd->momentum),
        .weight_decay = SET(sgd->weight_decay),
        .one_minus_dampening = SET(sgd->one_minus_dampening),
        .lr_neg = SET(sgd->lr_neg),
        .flip = sgd->maximize ? SET(-0.0) : SET(0.0),
    };
    vec_f64 sum = {0};
    int64_t i = 0;

    if (step->sums) {
        for (; i + N_LANES <= n; i += N_LANES) {
            const VEC grad = OF(sgd_lanes)(item, first + i, N_LANES, sgd, &s, is_tail);

            sum = DOT(sum, grad, grad);
        }
    }
    for (; i + N_LANES <= n; i += N_LANES)
        OF(sgd_lanes)(item, first + i, N_LANES, sgd, &s, is_tail);
    if (i < n) { /* lanes beyond are zero */
        const VEC grad = OF(sgd_lanes)(item, first + i, (int)(n - i), sgd, &s, is_tail);

        sum = DOT(sum, grad, grad);
    }
    return v_total(sum);
}

TARGET PTAC_STEP_RANGE(OF(sgd_range), OF(sgd_part))
