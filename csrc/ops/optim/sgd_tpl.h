/*
 * sgd_tpl.h - the SGD step, a vector at a time. Included once per element type and
 * instruction set; the file that includes it names the lanes, see avx512_f32_tpl.h.
 */

typedef struct SUFFIX(sgd_scalars) {
    VEC momentum, weight_decay, one_minus_dampening, lr_neg, flip;
} SUFFIX(sgd_scalars);

/* Elements [at, at + m), m <= LANES, of one parameter; returns their gradients. */
TARGET static inline VEC SUFFIX(sgd_lanes)(const ptac_step_item *item, int64_t at,
                                           int m, const ptac_sgd *sgd,
                                           const SUFFIX(sgd_scalars) * s)
{
    TYPE *p = (TYPE *)item->param + at;
    TYPE *buffer = (TYPE *)item->state[0];
    const VEC x = LOAD(p, m);
    const VEC grad = LOAD((const TYPE *)item->grad + at, m);
    VEC g = XOR(grad, s->flip);

    if (sgd->weight_decay != 0)
        g = FMA(x, s->weight_decay, g);
    if (buffer) {
        VEC b = g;

        buffer += at;
        if (!item->is_first)
            b = FMA(g, s->one_minus_dampening, MUL(LOAD(buffer, m), s->momentum));
        STORE(buffer, b, m);
        g = sgd->nesterov ? FMA(b, s->momentum, g) : b;
    }
    STORE(p, FMA(g, s->lr_neg, x), m);
    return grad;
}

TARGET static inline double SUFFIX(sgd_part)(const ptac_step_item *item, int64_t first,
                                             int64_t n, const ptac_step *step)
{
    const ptac_sgd *sgd = &step->sgd;
    const SUFFIX(sgd_scalars) s = {
        .momentum = SET(sgd->momentum),
        .weight_decay = SET(sgd->weight_decay),
        .one_minus_dampening = SET(sgd->one_minus_dampening),
        .lr_neg = SET(sgd->lr_neg),
        .flip = sgd->maximize ? SET(-0.0) : SET(0.0),
    };
    SUM sum = {0};
    int64_t i = 0;

    if (step->sums) {
        for (; i + LANES <= n; i += LANES) {
            const VEC grad = SUFFIX(sgd_lanes)(item, first + i, LANES, sgd, &s);

            sum = DOT(sum, grad, grad);
        }
    }
    for (; i + LANES <= n; i += LANES)
        SUFFIX(sgd_lanes)(item, first + i, LANES, sgd, &s);
    if (i < n) { /* lanes beyond are zero */
        const VEC grad = SUFFIX(sgd_lanes)(item, first + i, (int)(n - i), sgd, &s);

        sum = DOT(sum, grad, grad);
    }
    return TOTAL(sum);
}

TARGET static void SUFFIX(sgd_range)(int64_t begin, int64_t end, void *context)
{
    const ptac_step *step = context;

    PTAC_STEP_EACH(step, begin, end, SUFFIX(sgd_part));
}
