/*
 * adam_tpl.h - the Adam and AdamW steps, a vector at a time.
 *
 * Included by step_tpl.h for each type that OF(name) names, f32 and f64. Leaves
 * OF(adam_range), a ptac_range_fn.
 */

/* The scalars of a call, spread over the lanes. */
typedef struct OF(adam_scalars) {
    VEC one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay, decay_factor, flip;
    bool lerp_from_start; /* torch.lerp starts from the end for weights from 0.5 on */
    bool is_fused, is_tail;
} OF(adam_scalars);

INLINE OF(adam_scalars) OF(spread)(const ptac_step *step, bool is_tail)
{
    const ptac_adam *adam = &step->adam;
    const REAL weight = (REAL)adam->one_minus_beta1;

    return (OF(adam_scalars)){
        .one_minus_beta1 = SET(adam->one_minus_beta1),
        .beta2 = SET(adam->beta2),
        .one_minus_beta2 = SET(adam->one_minus_beta2),
        .eps = SET(adam->eps),
        .weight_decay = SET(adam->weight_decay),
        .decay_factor = SET(adam->decay_factor),
        .flip = adam->maximize ? SET(-0.0) : SET(0.0),
        .lerp_from_start = weight < 0.5 && weight > -0.5,
        .is_fused = step->way == PTAC_STEP_FUSED,
        .is_tail = is_tail,
    };
}

/* Decays *x, updates the moments in memory; returns what the step takes the root of. */
INLINE VEC OF(moments)(const ptac_step_item *item, int64_t at, int m,
                       const ptac_adam *adam, const OF(adam_scalars) * s, VEC *x,
                       VEC *average)
{
    REAL *first = (REAL *)item->state[0] + at, *second = (REAL *)item->state[1] + at;
    VEC g = XOR(LOAD((const REAL *)item->grad + at, m), s->flip);
    VEC v, difference;

    *x = LOAD((REAL *)item->param + at, m);
    if (adam->decay_factor != 1)
        *x = MUL(*x, s->decay_factor);
    if (adam->weight_decay != 0)
        g = FMA(*x, s->weight_decay, g);

    *average = LOAD(first, m);
    difference = SUB(g, *average);
    if (s->lerp_from_start)
        *average = FMA(s->one_minus_beta1, difference, *average);
    else
        *average = FMA(SUB(s->one_minus_beta1, SET(1.0)), difference, g);
    STORE(first, *average, m);

    v = LOAD(second, m);
    if (s->is_tail)
        v = FMA(v, s->beta2, MUL(MUL(s->one_minus_beta2, g), g));
    else
        v = FMA(MUL(s->one_minus_beta2, g), g, MUL(v, s->beta2));
    STORE(second, v, m);
    if (adam->amsgrad) {
        REAL *maximum = (REAL *)item->state[2] + at;

        if (s->is_tail)
            v = V(max)(v, LOAD(maximum, m)); /* the one before where either is NaN */
        else
            v = MAXIMUM(LOAD(maximum, m), v);
        STORE(maximum, v, m);
    }
    return v;
}

/* What is added to the parameter. */
INLINE VEC OF(change)(VEC average, VEC root, const ptac_step_item *item,
                      const OF(adam_scalars) * s)
{
    const VEC denominator = ADD(DIV(root, SET(item->bias_correction2_sqrt)), s->eps);

    return DIV(MUL(SET(item->step_size_neg), average), denominator);
}

/* sum + the products of m lanes; beyond these the change may be no number. */
INLINE vec_f64 OF(dot_first)(vec_f64 sum, const REAL *grad, VEC change, int m)
{
    REAL changes[N_LANES] = {0};

    if (m == N_LANES)
        return DOT(sum, LOAD(grad, N_LANES), change);
    STORE(changes, change, m);
    return DOT(sum, LOAD(grad, m), LOAD(changes, N_LANES));
}

/* Where the square root is ours to compute: one pass. */
INLINE VEC OF(adam_lanes)(const ptac_step_item *item, int64_t at, int m,
                          const ptac_adam *adam, const OF(adam_scalars) * s)
{
    VEC x, average;
    const VEC v = OF(moments)(item, at, m, adam, s, &x, &average);
    const VEC change = OF(change)(average, s->is_fused ? V(sqrt)(v) : ROOT(v), item, s);

    STORE((REAL *)item->param + at, ADD(x, change), m);
    return change;
}

/*
 * Ask for the memory of a step 4 KiB ahead, wherever that lies: nothing is read. Four
 * streams at once are more than the hardware's own prefetching follows across pages:
 * Adam over 8 M parameters takes 3.5 ms with this and 3.9 ms without (Zen 5, 1 thread).
 * always_inline, because gcc 12 drops calls to a function that only prefetches.
 */
static inline __attribute__((always_inline)) void OF(prefetch)(
    const ptac_step_item *item, int64_t at)
{
    const uintptr_t ahead = (uintptr_t)at * sizeof(REAL) + 4096;

    __builtin_prefetch((const void *)((uintptr_t)item->param + ahead), 1);
    __builtin_prefetch((const void *)((uintptr_t)item->grad + ahead), 0);
    __builtin_prefetch((const void *)((uintptr_t)item->state[0] + ahead), 1);
    __builtin_prefetch((const void *)((uintptr_t)item->state[1] + ahead), 1);
}

TARGET static inline double OF(adam_at_once)(const ptac_step_item *item, int64_t first,
                                             int64_t n, const ptac_step *step,
                                             bool is_tail)
{
    const OF(adam_scalars) s = OF(spread)(step, is_tail);
    const REAL *grad = (const REAL *)item->grad + first;
    vec_f64 sum = {0};
    int64_t i = 0;

    if (step->sums) {
        for (; i + N_LANES <= n; i += N_LANES) {
            OF(prefetch)(item, first + i);
            sum = OF(dot_first)(
                sum, grad + i,
                OF(adam_lanes)(item, first + i, N_LANES, &step->adam, &s), N_LANES);
        }
    }
    for (; i + N_LANES <= n; i += N_LANES) {
        OF(prefetch)(item, first + i);
        OF(adam_lanes)(item, first + i, N_LANES, &step->adam, &s);
    }
    if (i < n) {
        const int m = (int)(n - i);

        sum = OF(dot_first)(sum, grad + i,
                            OF(adam_lanes)(item, first + i, m, &step->adam, &s), m);
    }
    return v_total(sum);
}

/* Where only the host knows its square root: a block of moments, roots, the step. */
TARGET static inline double OF(adam_called)(const ptac_step_item *item, int64_t first,
                                            int64_t n, const ptac_step *step,
                                            bool is_tail)
{
    enum { BLOCK = 512 };
    const ptac_adam *adam = &step->adam;
    const OF(adam_scalars) s = OF(spread)(step, is_tail);
    REAL second[BLOCK], roots[BLOCK];
    vec_f64 sum = {0};

    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;
        REAL *param = (REAL *)item->param + first + i;
        const REAL *average = (const REAL *)item->state[0] + first + i;
        const REAL *grad = (const REAL *)item->grad + first + i;

        for (int64_t j = 0; j < size; j += N_LANES) {
            const int m = size - j < N_LANES ? (int)(size - j) : N_LANES;
            VEC x, unused;

            STORE(second + j,
                  OF(moments)(item, first + i + j, m, adam, &s, &x, &unused), m);
            STORE(param + j, x, m);
        }
        HOST_ROOT(second, roots, size);
        for (int64_t j = 0; j < size; j += N_LANES) {
            const int m = size - j < N_LANES ? (int)(size - j) : N_LANES;

            const VEC change =
                OF(change)(LOAD(average + j, m), LOAD(roots + j, m), item, &s);

            STORE(param + j, ADD(LOAD(param + j, m), change), m);
            sum = OF(dot_first)(sum, grad + j, change, m);
        }
    }
    return v_total(sum);
}

TARGET static inline double OF(adam_part)(const ptac_step_item *item, int64_t first,
                                          int64_t n, const ptac_step *step,
                                          bool is_tail)
{
    if (CAN_ROOT || step->way == PTAC_STEP_FUSED)
        return OF(adam_at_once)(item, first, n, step, is_tail);
    return OF(adam_called)(item, first, n, step, is_tail);
}

TARGET PTAC_STEP_RANGE(OF(adam_range), OF(adam_part))
