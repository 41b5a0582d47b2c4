/*
 * foreach_tpl.h - operations over lists of tensors, a vector at a time.
 *
 * Included once by foreach_<isa>.c, behind typed_<isa>.h. Leaves what PTAC_FOREACH_ROWS
 * asks for. It includes itself for each type that OF(name) names, f32 and f64.
 */
#ifndef FOREACH_OF_TYPE
#define FOREACH_OF_TYPE
#include "ops/foreach/foreach.h"

#include <math.h>

/* Eight lanes whatever the CPU has, as foreach.h says. */
__attribute__((target("avx2"))) static float norm(const float *x, int64_t n)
{
    enum { LANES = 8 };
    float sums[LANES];
    __m256 sum = _mm256_setzero_ps();
    int64_t i = 0;

    if (n == 1)
        return fabsf(x[0]);
    for (; i + LANES <= n; i += LANES) {
        const __m256 v = _mm256_loadu_ps(x + i);

        sum = _mm256_add_ps(sum, _mm256_mul_ps(v, v));
    }
    _mm256_storeu_ps(sums, sum);
    for (int j = 1; j < LANES; j++)
        sums[0] += sums[j];
    return ptac_foreach_root(sums[0], x + i, (int)(n - i));
}

/* Elements of an item by whole vectors, and the rest of them; lanes(at, m). */
#define FOREACH_LANES(lanes)                                                           \
    for (int64_t i = 0; i < n; i += N_LANES) {                                         \
        if (i + N_LANES <= n)                                                          \
            lanes(i, N_LANES);                                                         \
        else                                                                           \
            lanes(i, (int)(n - i));                                                    \
    }

#define OF(name) name##_f32
#include "ops/foreach/foreach_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/foreach/foreach_tpl.h"
#undef OF
#else

TARGET static void OF(scale)(const ptac_foreach_item *item, int64_t first, int64_t n,
                             const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;
    const VEC factor = SET(f->number);

#define SCALE(at, m)      STORE(x + (at), MUL(LOAD(x + (at), m), factor), m)
    FOREACH_LANES(SCALE)
}

TARGET static void OF(clamp)(const ptac_foreach_item *item, int64_t first, int64_t n,
                             const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;
    const VEC limit = SET(f->number);

/* The instructions give their second operand where either is NaN, or both are 0. */
#define FROM_BELOW(at, m) STORE(x + (at), V(max)(limit, LOAD(x + (at), m)), m)
#define FROM_ABOVE(at, m) STORE(x + (at), V(min)(limit, LOAD(x + (at), m)), m)
    if (f->is_lower)
        FOREACH_LANES(FROM_BELOW)
    else
        FOREACH_LANES(FROM_ABOVE)
}

TARGET static void OF(lerp)(const ptac_foreach_item *item, int64_t first, int64_t n,
                            const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;
    const REAL *to = (const REAL *)item->other + first, weight = (REAL)f->number;
    const VEC by = SET(weight), back = SET(weight - 1);

#define FROM_START(at, m)                                                              \
    STORE(x + (at),                                                                    \
          FMA(by, SUB(LOAD(to + (at), m), LOAD(x + (at), m)), LOAD(x + (at), m)), m)
#define FROM_END(at, m)                                                                \
    STORE(x + (at),                                                                    \
          FMA(back, SUB(LOAD(to + (at), m), LOAD(x + (at), m)), LOAD(to + (at), m)),   \
          m)
    if (weight < (REAL)0.5 && weight > (REAL)-0.5)
        FOREACH_LANES(FROM_START)
    else
        FOREACH_LANES(FROM_END)
}

TARGET static void OF(unscale)(const ptac_foreach_item *item, int64_t first, int64_t n,
                               const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first, lanes[N_LANES];
    const VEC factor = SET(f->number), zero = SET(0);
    VEC odd = zero; /* 0 times what is finite is 0, and else not a number */
    bool is_finite = true;

#define LOOK(at, m) odd = FMA(LOAD(x + (at), m), zero, odd)
    if (f->number == 1) {
        FOREACH_LANES(LOOK);
    } else {
        for (int64_t i = 0; i < n; i += N_LANES) {
            const int m = i + N_LANES <= n ? N_LANES : (int)(n - i);

            LOOK(i, m);
            SCALE(i, m);
        }
    }
    STORE_REAL(lanes, odd);
    for (int i = 0; i < N_LANES; i++)
        is_finite &= lanes[i] == 0;
    if (!is_finite)
        __atomic_store_n(f->found, 1, __ATOMIC_RELAXED);
}

#undef SCALE
#undef FROM_BELOW
#undef FROM_ABOVE
#undef FROM_START
#undef FROM_END
#undef LOOK
#endif
