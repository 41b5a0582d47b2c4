/*
 * rooted_tpl.h - the steps of RMSprop, Adagrad and NAdam, a vector at a time: what
 * comes before a square root, and what comes after.
 *
 * Included by step_tpl.h for each type that OF(name) names, f32 and f64. Leaves
 * OF(rmsprop_range), OF(adagrad_range) and OF(nadam_range), each a ptac_range_fn.
 */

/* The scalars of a call and an item, spread over the lanes. */
typedef struct OF(rooted_scalars) {
    VEC weight, keep, square_weight; /* of the new gradient; of squares, old and new */
    VEC eps, weight_decay, flip;
    VEC step_neg, momentum, grad_step_neg, correction, decay_factor;
    bool has_decay, has_factor, has_momentum, has_average;
    bool lerp_from_start; /* torch.lerp starts from the end for weights from 0.5 on */
    bool corrects_root;   /* NAdam: or else what it is of */
    bool is_fused;
} OF(rooted_scalars);

#define ROOTED_HEAD(x)                                                                 \
    .eps = SET((x)->eps), .weight_decay = SET((x)->weight_decay),                      \
    .flip = (x)->maximize ? SET(-0.0) : SET(0.0), .has_decay = (x)->weight_decay != 0

/* The gradient with the weight decay that belongs to it. */
INLINE VEC OF(decayed)(const ptac_step_item *item, int64_t at, int m,
                       const OF(rooted_scalars) * s)
{
    const VEC g = XOR(LOAD((const REAL *)item->grad + at, m), s->flip);

    if (!s->has_decay)
        return g;
    return FMA(LOAD((const REAL *)item->param + at, m), s->weight_decay, g);
}

/* Move the average in memory towards g; returns it. */
INLINE VEC OF(lerp_in)(REAL *average, int m, const OF(rooted_scalars) * s, VEC g)
{
    const VEC start = LOAD(average, m), difference = SUB(g, start);
    const VEC moved = s->lerp_from_start ? FMA(s->weight, difference, start)
                                         : FMA(SUB(s->weight, SET(1.0)), difference, g);

    STORE(average, moved, m);
    return moved;
}

/* The same of the average of squares. */
INLINE VEC OF(square_in)(REAL *square, int m, const OF(rooted_scalars) * s, VEC g)
{
    const VEC v = FMA(MUL(s->square_weight, g), g, MUL(LOAD(square, m), s->keep));

    STORE(square, v, m);
    return v;
}

/* param + (size * x) / by */
INLINE void OF(add_quotient)(REAL *param, int m, VEC size, VEC x, VEC by)
{
    STORE(param, ADD(LOAD(param, m), DIV(MUL(size, x), by)), m);
}

/* RMSprop */

INLINE OF(rooted_scalars)
    OF(rmsprop_spread)(const ptac_step *step, const ptac_step_item *item)
{
    const ptac_rmsprop *r = &step->rmsprop;
    const REAL weight = (REAL)r->one_minus_alpha;

    (void)item;
    return (OF(rooted_scalars)){
        ROOTED_HEAD(r),
        .weight = SET(r->one_minus_alpha),
        .keep = SET(r->alpha),
        .square_weight = SET(r->one_minus_alpha),
        .step_neg = SET(r->lr_neg),
        .momentum = SET(r->momentum),
        .has_momentum = r->momentum > 0,
        .has_average = r->centered,
        .lerp_from_start = weight < 0.5 && weight > -0.5,
    };
}

INLINE VEC OF(rmsprop_before)(const ptac_step_item *item, int64_t at, int m,
                              const OF(rooted_scalars) * s, VEC *g)
{
    VEC v, average;

    *g = OF(decayed)(item, at, m, s);
    v = OF(square_in)((REAL *)item->state[0] + at, m, s, *g);
    if (!s->has_average)
        return v;
    average = OF(lerp_in)((REAL *)item->state[2] + at, m, s, *g);
    return FMA(MUL(SET(-1.0), average), average, v);
}

INLINE void OF(rmsprop_after)(const ptac_step_item *item, int64_t at, int m,
                              const OF(rooted_scalars) * s, VEC g, VEC root)
{
    REAL *param = (REAL *)item->param + at, *buffer = (REAL *)item->state[1];
    const VEC by = ADD(root, s->eps);
    VEC b;

    if (!s->has_momentum) {
        OF(add_quotient)(param, m, s->step_neg, g, by);
        return;
    }
    b = ADD(MUL(LOAD(buffer + at, m), s->momentum), DIV(g, by));
    STORE(buffer + at, b, m);
    STORE(param, FMA(b, s->step_neg, LOAD(param, m)), m);
}

/* Adagrad */

INLINE OF(rooted_scalars)
    OF(adagrad_spread)(const ptac_step *step, const ptac_step_item *item)
{
    return (OF(rooted_scalars)){
        ROOTED_HEAD(&step->adagrad),
        .step_neg = SET(item->step_size_neg),
        .is_fused = step->way == PTAC_STEP_FUSED,
    };
}

INLINE VEC OF(adagrad_before)(const ptac_step_item *item, int64_t at, int m,
                              const OF(rooted_scalars) * s, VEC *g)
{
    REAL *sum = (REAL *)item->state[0] + at;
    VEC v;

    *g = OF(decayed)(item, at, m, s);
    v = FMA(*g, *g, LOAD(sum, m));
    STORE(sum, v, m);
    return v;
}

INLINE void OF(adagrad_after)(const ptac_step_item *item, int64_t at, int m,
                              const OF(rooted_scalars) * s, VEC g, VEC root)
{
    OF(add_quotient)
    ((REAL *)item->param + at, m, s->step_neg, g, ADD(root, s->eps));
}

/* NAdam */

INLINE OF(rooted_scalars)
    OF(nadam_spread)(const ptac_step *step, const ptac_step_item *item)
{
    const ptac_nadam *n = &step->nadam;
    const REAL weight = (REAL)n->one_minus_beta1;
    const bool corrects_root = step->way == PTAC_STEP_FOREACH;

    return (OF(rooted_scalars)){
        ROOTED_HEAD(n),
        .weight = SET(n->one_minus_beta1),
        .keep = SET(n->beta2),
        .square_weight = SET(n->one_minus_beta2),
        .step_neg = SET(item->step_size_neg),
        .grad_step_neg = SET(item->grad_size_neg),
        .correction =
            SET(corrects_root ? item->bias_correction2_sqrt : item->bias_correction2),
        .decay_factor = SET(n->decay_factor),
        .has_factor = n->decay_factor != 1,
        .lerp_from_start = weight < 0.5 && weight > -0.5,
        .corrects_root = corrects_root,
    };
}

INLINE VEC OF(nadam_before)(const ptac_step_item *item, int64_t at, int m,
                            const OF(rooted_scalars) * s, VEC *g)
{
    REAL *param = (REAL *)item->param + at;
    VEC v;

    if (s->has_factor)
        STORE(param, MUL(LOAD(param, m), s->decay_factor), m);
    *g = OF(decayed)(item, at, m, s);
    OF(lerp_in)((REAL *)item->state[0] + at, m, s, *g);
    v = OF(square_in)((REAL *)item->state[1] + at, m, s, *g);
    return s->corrects_root ? v : DIV(v, s->correction);
}

INLINE void OF(nadam_after)(const ptac_step_item *item, int64_t at, int m,
                            const OF(rooted_scalars) * s, VEC g, VEC root)
{
    REAL *param = (REAL *)item->param + at;
    const VEC average = LOAD((const REAL *)item->state[0] + at, m);
    const VEC by = ADD(s->corrects_root ? DIV(root, s->correction) : root, s->eps);

    OF(add_quotient)(param, m, s->grad_step_neg, g, by);
    OF(add_quotient)(param, m, s->step_neg, average, by);
}

/* As adam_tpl.h's, of what there is. */
INLINE void OF(rooted_prefetch)(const ptac_step_item *item, int64_t at)
{
    const uintptr_t ahead = (uintptr_t)at * sizeof(REAL) + 4096;

    __builtin_prefetch((const void *)((uintptr_t)item->param + ahead), 1);
    __builtin_prefetch((const void *)((uintptr_t)item->grad + ahead), 0);
    for (int i = 0; i < 3; i++)
        if (item->state[i])
            __builtin_prefetch((const void *)((uintptr_t)item->state[i] + ahead), 1);
}

/* Where only the host knows its square root: a block of numbers, roots, the rest. */
#ifndef ROOTED
#define ROOTED(name)                                                                   \
    INLINE void OF(name##_lanes)(const ptac_step_item *item, int64_t at, int m,        \
                                 const OF(rooted_scalars) * s)                         \
    {                                                                                  \
        VEC g;                                                                         \
        const VEC v = OF(name##_before)(item, at, m, s, &g);                           \
                                                                                       \
        OF(name##_after)(item, at, m, s, g, s->is_fused ? V(sqrt)(v) : ROOT(v));       \
    }                                                                                  \
    TARGET static inline void OF(name##_called)(const ptac_step_item *item,            \
                                                int64_t first, int64_t n,              \
                                                const OF(rooted_scalars) * s)          \
    {                                                                                  \
        REAL grads[ROOTED_BLOCK], roots[ROOTED_BLOCK];                                 \
                                                                                       \
        for (int64_t i = 0; i < n; i += ROOTED_BLOCK) {                                \
            const int64_t size = n - i < ROOTED_BLOCK ? n - i : ROOTED_BLOCK;          \
            const int64_t at = first + i;                                              \
                                                                                       \
            for (int64_t j = 0; j < size; j += N_LANES) {                              \
                const int m = size - j < N_LANES ? (int)(size - j) : N_LANES;          \
                VEC g;                                                                 \
                                                                                       \
                STORE(roots + j, OF(name##_before)(item, at + j, m, s, &g), m);        \
                STORE(grads + j, g, m);                                                \
            }                                                                          \
            HOST_ROOT(roots, roots, size);                                             \
            for (int64_t j = 0; j < size; j += N_LANES) {                              \
                const int m = size - j < N_LANES ? (int)(size - j) : N_LANES;          \
                                                                                       \
                OF(name##_after)                                                       \
                (item, at + j, m, s, LOAD(grads + j, m), LOAD(roots + j, m));          \
            }                                                                          \
        }                                                                              \
    }                                                                                  \
    TARGET static inline double OF(name##_part)(const ptac_step_item *item,            \
                                                int64_t first, int64_t n,              \
                                                const ptac_step *step, bool is_tail)   \
    {                                                                                  \
        const OF(rooted_scalars) s = OF(name##_spread)(step, item);                    \
        int64_t i = 0;                                                                 \
                                                                                       \
        (void)is_tail; /* Adagrad's is computed as the rest */                         \
        if (!CAN_ROOT && !s.is_fused) {                                                \
            OF(name##_called)(item, first, n, &s);                                     \
            return 0;                                                                  \
        }                                                                              \
        for (; i + N_LANES <= n; i += N_LANES) {                                       \
            OF(rooted_prefetch)(item, first + i);                                      \
            OF(name##_lanes)(item, first + i, N_LANES, &s);                            \
        }                                                                              \
        if (i < n)                                                                     \
            OF(name##_lanes)(item, first + i, (int)(n - i), &s);                       \
        return 0;                                                                      \
    }                                                                                  \
    TARGET PTAC_STEP_RANGE(OF(name##_range), OF(name##_part))

enum { ROOTED_BLOCK = 512 };
#endif

ROOTED(rmsprop)
ROOTED(adagrad)
ROOTED(nadam)
#undef ROOTED_HEAD
