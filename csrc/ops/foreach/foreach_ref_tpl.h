/*
 * foreach_ref_tpl.h - operations over lists by their definitions, an element at a time.
 *
 * Included by foreach_ref.c for each type that OF(name) names, f32 and f64. Expects
 * OF(fused), C's fma() of that type. Leaves OF(scale) and its like, ptac_foreach_part.
 */

static void OF(scale)(const ptac_foreach_item *item, int64_t first, int64_t n,
                      const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;

    for (int64_t i = 0; i < n; i++)
        x[i] *= (REAL)f->number;
}

static void OF(clamp)(const ptac_foreach_item *item, int64_t first, int64_t n,
                      const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;
    const REAL limit = (REAL)f->number;

    for (int64_t i = 0; i < n; i++)
        if (f->is_lower ? x[i] < limit : x[i] > limit)
            x[i] = limit;
}

/* torch.lerp: from the start for weights below one half, else from the end. */
static void OF(lerp)(const ptac_foreach_item *item, int64_t first, int64_t n,
                     const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;
    const REAL *end = (const REAL *)item->other + first, weight = (REAL)f->number;
    const bool is_small = weight < (REAL)0.5 && weight > (REAL)-0.5;

    for (int64_t i = 0; i < n; i++) {
        const REAL by = is_small ? weight : weight - 1, base = is_small ? x[i] : end[i];

        x[i] = ptac_the_host.fma ? OF(fused)(by, end[i] - x[i], base)
                                 : by * (end[i] - x[i]) + base;
    }
}

static void OF(unscale)(const ptac_foreach_item *item, int64_t first, int64_t n,
                        const ptac_foreach *f)
{
    REAL *x = (REAL *)item->self + first;
    bool is_finite = true;

    for (int64_t i = 0; i < n; i++) {
        is_finite &= isfinite(x[i]) != 0;
        if (f->number != 1)
            x[i] *= (REAL)f->number;
    }
    if (!is_finite)
        __atomic_store_n(f->found, 1, __ATOMIC_RELAXED);
}
