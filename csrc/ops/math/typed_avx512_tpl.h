/*
 * typed_avx512_tpl.h - the words of typed_lanes.h for AVX-512 that move elements.
 *
 * Included once for OF(name) name_f32 and once for name_f64, by typed_avx512.h, which
 * defines for each
 *
 *   lanes_, vec_, mask_      how many lanes, their vector, a bit each
 *   even_places_(first)      places first, first + 2 ... of two vectors
 *   mixed_places_(first)     places first, first + N_LANES, first + 1 ...
 */

INLINE MASK OF(range)(int lo, int hi)
{
    return (MASK)((1u << hi) - (1u << lo));
}

INLINE VEC OF(load_span)(const ELEM *p, uint32_t span)
{
    return V(maskz_loadu)((MASK)span, p);
}

INLINE VEC OF(load)(const ELEM *p, int n)
{
    return n == N_LANES ? LOAD_REAL(p) : OF(load_span)(p, OF(range)(0, n));
}

INLINE VEC OF(load2_span)(const ELEM *p, uint32_t span)
{
    const VEC low = V(maskz_loadu)((MASK)span, p);
    const VEC high = V(maskz_loadu)((MASK)(span >> N_LANES), p + N_LANES);

    return V(permutex2var)(low, OF(even_places)(0), high);
}

INLINE void OF(load_pairs)(const ELEM *p, int n, VEC *even, VEC *odd)
{
    const uint32_t mask = first_pairs(n);
    const VEC low = V(maskz_loadu)((MASK)mask, p);
    const VEC high = V(maskz_loadu)((MASK)(mask >> N_LANES), p + N_LANES);

    *even = V(permutex2var)(low, OF(even_places)(0), high);
    *odd = V(permutex2var)(low, OF(even_places)(1), high);
}

INLINE void OF(store)(ELEM *p, VEC v, int n)
{
    store_bytes(p, (__m512i)v, (int)sizeof(ELEM) * n);
}

INLINE void OF(store_pairs)(ELEM *p, VEC even, VEC odd, int n)
{
    const int half = N_LANES / 2;
    const VEC low = V(permutex2var)(even, OF(mixed_places)(0), odd);
    const VEC high = V(permutex2var)(even, OF(mixed_places)(half), odd);

    STORE(p, low, 2 * n);
    if (n > half)
        STORE(p + N_LANES, high, 2 * (n - half));
}
