/*
 * typed_avx2_tpl.h - the words of typed_lanes.h for AVX2 that move elements.
 *
 * Included once for OF(name) name_f32 and once for name_f64, by typed_avx2.h, which
 * defines for each
 *
 *   lanes_, vec_             how many lanes, and their vector
 *   lane_bits_(lo, hi)       lanes [lo, hi) all ones, the others 0, as __m256i
 *   evens_(a, b), odds_(a, b)  lanes 0, 2 ... and 1, 3 ... of a, then of b
 */

INLINE MASK OF(range)(int lo, int hi)
{
    return (MASK)OF(lane_bits)(lo, hi);
}

INLINE lane_span OF(span_of)(int64_t stride, int lo, int hi)
{
    if (stride == 1 || hi <= lo)
        return (lane_span){OF(lane_bits)(lo, hi), _mm256_setzero_si256()};
    lo *= 2;
    hi = 2 * hi - 1;
    return (lane_span){OF(lane_bits)(lo, hi),
                       OF(lane_bits)(lo - N_LANES, hi - N_LANES)};
}

INLINE VEC OF(load)(const ELEM *p, int n)
{
    return n == N_LANES ? LOAD_REAL(p) : V(maskload)(p, OF(lane_bits)(0, n));
}

INLINE VEC OF(load_span)(const ELEM *p, lane_span span)
{
    return V(maskload)(p, span.low);
}

INLINE VEC OF(load2_span)(const ELEM *p, lane_span span)
{
    return OF(evens)(V(maskload)(p, span.low), V(maskload)(p + N_LANES, span.high));
}

INLINE void OF(load_pairs)(const ELEM *p, int n, VEC *even, VEC *odd)
{
    const int half = N_LANES / 2;
    const VEC low = OF(load)(p, n >= half ? N_LANES : 2 * n);
    const VEC high = n > half ? OF(load)(p + N_LANES, 2 * (n - half)) : V(setzero)();

    *even = OF(evens)(low, high);
    *odd = OF(odds)(low, high);
}

INLINE void OF(store)(ELEM *p, VEC v, int n)
{
    if (n == N_LANES)
        STORE_REAL(p, v);
    else
        V(maskstore)(p, OF(lane_bits)(0, n), v);
}

INLINE void OF(store_pairs)(ELEM *p, VEC even, VEC odd, int n)
{
    const int half = N_LANES / 2;
    const VEC low = V(unpacklo)(even, odd), high = V(unpackhi)(even, odd);

    OF(store)(p, V(permute2f128)(low, high, 0x20), n >= half ? N_LANES : 2 * n);
    if (n > half)
        OF(store)(p + N_LANES, V(permute2f128)(low, high, 0x31), 2 * (n - half));
}
