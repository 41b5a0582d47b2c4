/*
 * adadelta_tpl.h - the Adadelta step, a vector at a time.
 *
 * Included by step_tpl.h for each type that OF(name) names, f32 and f64. Leaves
 * OF(adadelta_range), a ptac_range_fn.
 */

/* The scalars of a call, spread over the lanes. */
typedef struct OF(adadelta_scalars) {
    VEC rho, one_minus_rho, eps, lr_neg, weight_decay, flip;
    bool has_decay;
} OF(adadelta_scalars);

/* Updates the average of squares in memory; returns it, and the gradient by *g. */
INLINE VEC OF(squares)(const ptac_step_item *item, int64_t at, int m,
                       const OF(adadelta_scalars) * s, VEC *g)
{
    REAL *square = (REAL *)item->state[0] + at;
    VEC v;

    *g = XOR(LOAD((const REAL *)item->grad + at, m), s->flip);
    if (s->has_decay)
        *g = FMA(LOAD((const REAL *)item->param + at, m), s->weight_decay, *g);
    v = FMA(MUL(s->one_minus_rho, *g), *g, MUL(LOAD(square, m), s->rho));
    STORE(square, v, m);
    return v;
}

/* The rest, from the roots of both averages. */
INLINE void OF(move)(const ptac_step_item *item, int64_t at, int m,
                     const OF(adadelta_scalars) * s, VEC g, VEC root, VEC change_root)
{
    REAL *change = (REAL *)item->state[1] + at, *p = (REAL *)item->param + at;
    const VEC delta = MUL(DIV(change_root, root), g);

    STORE(change,
          FMA(MUL(s->one_minus_rho, delta), delta, MUL(LOAD(change, m), s->rho)), m);
    STORE(p, FMA(delta, s->lr_neg, LOAD(p, m)), m);
}

INLINE VEC OF(changes)(const ptac_step_item *item, int64_t at, int m)
{
    return LOAD((const REAL *)item->state[1] + at, m);
}

/* Where the host's square root is ours to compute: one pass. */
INLINE void OF(adadelta_lanes)(const ptac_step_item *item, int64_t at, int m,
                               const OF(adadelta_scalars) * s)
{
    VEC g;
    const VEC square = ADD(OF(squares)(item, at, m, s, &g), s->eps);
    const VEC change = ADD(OF(changes)(item, at, m), s->eps);

    OF(move)(item, at, m, s, g, ROOT(square), ROOT(change));
}

/* Where only the host knows its square root: a block of averages, roots, the step. */
TARGET static inline void OF(adadelta_called)(const ptac_step_item *item, int64_t first,
                                              int64_t n, const OF(adadelta_scalars) * s)
{
    enum { BLOCK = 512 };
    REAL grads[BLOCK], squares[BLOCK], changes[BLOCK];

    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;

        for (int64_t j = 0; j < size; j += N_LANES) {
            const int m = size - j < N_LANES ? (int)(size - j) : N_LANES;
            const int64_t at = first + i + j;
            VEC g;

            STORE(squares + j, ADD(OF(squares)(item, at, m, s, &g), s->eps), m);
            STORE(changes + j, ADD(OF(changes)(item, at, m), s->eps), m);
            STORE(grads + j, g, m);
        }
        HOST_ROOT(squares, squares, size);
        HOST_ROOT(changes, changes, size);
        for (int64_t j = 0; j < size; j += N_LANES) {
            const int m = size - j < N_LANES ? (int)(size - j) : N_LANES;

            OF(move)
            (item, first + i + j, m, s, LOAD(grads + j, m), LOAD(squares + j, m),
             LOAD(changes + j, m));
        }
    }
}

TARGET static inline double OF(adadelta_part)(const ptac_step_item *item, int64_t first,
                                              int64_t n, const ptac_step *step,
                                              bool is_tail)
{
    const ptac_adadelta *a = &step->adadelta;
    const OF(adadelta_scalars) s = {
        .rho = SET(a->rho),
        .one_minus_rho = SET(a->one_minus_rho),
        .eps = SET(a->eps),
        .lr_neg = SET(a->lr_neg),
        .weight_decay = SET(a->weight_decay),
        .flip = a->maximize ? SET(-0.0) : SET(0.0),
        .has_decay = a->weight_decay != 0,
    };
    int64_t i = 0;

    (void)is_tail; /* torch has no fused Adadelta */
    if (!CAN_ROOT) {
        OF(adadelta_called)(item, first, n, &s);
        return 0;
    }
    for (; i + N_LANES <= n; i += N_LANES) {
        OF(prefetch)(item, first + i);
        OF(adadelta_lanes)(item, first + i, N_LANES, &s);
    }
    if (i < n)
        OF(adadelta_lanes)(item, first + i, (int)(n - i), &s);
    return 0;
}

TARGET PTAC_STEP_RANGE(OF(adadelta_range), OF(adadelta_part))
