/*
 * isa_tpl.h - what lies around the sums of int8 products, LANES numbers at a time.
 *
 * The includer defines
 *
 *   TARGET, LANES, vec, ints, v_*  by including ops/math/lanes_<isa>.h
 *   store_low_bytes(to, v, n)      the low bytes of n ints and what fills up a quad
 *   FETCH(p, bytes)                asks for memory so many bytes behind p, or nothing
 */
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"

/* What the columns from n on need. */
typedef struct columns {
    int n;
    ints sums;
    vec scale, bias;
    bool relu;
} columns;

INLINE columns columns_from(const ptac_epilogue *e, int n)
{
    const int left = at_most_lanes(e->n_columns - n);

    return (columns){
        .n = left,
        .sums = (ints)v_load_first((const float *)e->column_sums + n, left),
        .scale = v_load_first(e->column_scales + n, left),
        .bias = e->bias ? v_load_first(e->bias + n, left) : v_zero(),
        .relu = e->relu,
    };
}

/* float(sum - zero * column sum) */
INLINE vec exact(const columns *c, const int32_t *sums, int32_t zero)
{
    const ints off = EPI32(mullo)(c->sums, EPI32(set1)(zero));

    return JOIN(VECTOR, cvtepi32,
                ps)(EPI32(sub)((ints)v_load((const float *)sums), off));
}

/* max(0, y) where asked for; the order of the operands keeps NaN. */
INLINE void store(const columns *c, vec sums, float row_scale, float *y)
{
    const vec v = v_fma(sums, v_mul(v_set(row_scale), c->scale), c->bias);

    v_store_first(y, c->relu ? v_max(v_zero(), v) : v, c->n);
}

TARGET static void finish(const ptac_epilogue *e, const int32_t *sums, int n_rows,
                          const ptac_row_scale *rows, float *y, int64_t y_stride)
{
    for (int n = 0; n < e->n_columns; n += LANES) {
        const columns c = columns_from(e, n);

        for (int r = 0; r < n_rows; r++)
            store(&c, exact(&c, sums + r * PTAC_PANEL + n, rows[r].zero), rows[r].scale,
                  y + r * y_stride + n);
    }
}

TARGET static void finish16(const ptac_epilogue *e, const int32_t *sums,
                            ptac_row_scale row, float *y)
{
    for (int n = 0; n < e->n_columns; n += LANES) {
        const columns c = columns_from(e, n);
        const vec high = exact(&c, sums + n, row.zero >> 8);
        const vec low = exact(&c, sums + PTAC_PANEL + n, row.zero & 255);

        store(&c, v_fma(v_set(256.0f), high, low), row.scale, y + n);
    }
}

typedef struct lane_range {
    vec lo, hi, poison;
} lane_range;

INLINE void widen(lane_range *range, vec v)
{
    range->lo = v_min(range->lo, v);
    range->hi = v_max(range->hi, v);
    range->poison = v_fma(v, v_zero(), range->poison);
}

/* Two at a time: what one waits for, the other does. Half of a page is asked for. */
TARGET static void measure(const float *x, int64_t n, ptac_range *range)
{
    lane_range a = {v_zero(), v_zero(), v_zero()}, b = a;
    int64_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        FETCH(x + i, 2048);
        FETCH(x + i + LANES, 2048);
        widen(&a, v_load(x + i));
        widen(&b, v_load(x + i + LANES));
    }
    for (; i < n; i += LANES)
        widen(&a, v_load_first(x + i, at_most_lanes(n - i)));

    const float lo = -v_largest(v_sub(v_zero(), v_min(a.lo, b.lo)));
    const float hi = v_largest(v_max(a.hi, b.hi));

    range->lo = lo < range->lo ? lo : range->lo;
    range->hi = hi > range->hi ? hi : range->hi;
    range->poison += v_sum(v_add(a.poison, b.poison));
}

/* round(fma(x, by, from)); NaN becomes the least integer. */
INLINE ints round_to(vec x, vec by, vec from)
{
    return JOIN(VECTOR, cvtps, epi32)(v_fma(x, by, from));
}

TARGET static void quantize16(const float *x, int64_t n, float inverse, float zero,
                              uint8_t *high, uint8_t *low)
{
    const vec by = v_set(inverse), from = v_set(zero);

    for (int64_t i = 0; i < n; i += LANES) {
        const int left = at_most_lanes(n - i);
        const ints q = round_to(v_load_first(x + i, left), by, from);
        const ints within =
            EPI32(min)(EPI32(max)(q, EPI32(set1)(0)), EPI32(set1)(65535));

        store_low_bytes(high + i, EPI32(srli)(within, 8), left);
        store_low_bytes(low + i, within, left);
    }
}
