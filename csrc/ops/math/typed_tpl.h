/*
 * typed_tpl.h - the words of typed_lanes.h that move floats and doubles.
 *
 * Included once for OF(name) name_f32 and once for name_f64, by typed_<isa>.h, which
 * defines for each what follows. Undefines OF.
 *
 *   span_                    the elements to load from two vectors in memory
 *   LOW(span), HIGH(span)    of the first and the second, for LOAD_SOME(p, some)
 *   first_(n)                the first n lanes, likewise
 *   STORE_SOME(p, v, n)      the first n lanes
 *   evens_(a, b), odds_(a, b)          lanes 0, 2 ... and 1, 3 ... of a, then of b
 *   zip_low_(a, b), zip_high_(a, b)    lanes of a and b in turn: of the lower halves,
 *                                      of the upper ones
 */

INLINE VEC OF(load_span)(const ELEM *p, SPAN span)
{
    return LOAD_SOME(p, LOW(span));
}

INLINE VEC OF(load)(const ELEM *p, int n)
{
    return n == N_LANES ? LOAD_REAL(p) : LOAD_SOME(p, OF(first)(n));
}

INLINE VEC OF(load2_span)(const ELEM *p, SPAN span)
{
    return OF(evens)(LOAD_SOME(p, LOW(span)), LOAD_SOME(p + N_LANES, HIGH(span)));
}

INLINE VEC OF(load2)(const ELEM *p)
{
    return OF(evens)(LOAD_REAL(p), LOAD_REAL(p + N_LANES));
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
    if (n >= N_LANES)
        STORE_REAL(p, v);
    else
        STORE_SOME(p, v, n);
}

INLINE void OF(store_pairs)(ELEM *p, VEC even, VEC odd, int n)
{
    const int half = N_LANES / 2;

    OF(store)(p, OF(zip_low)(even, odd), 2 * n);
    if (n > half)
        OF(store)(p + N_LANES, OF(zip_high)(even, odd), 2 * (n - half));
}
#undef OF
