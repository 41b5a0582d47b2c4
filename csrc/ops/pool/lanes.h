/*
 * lanes.h - the words that the vector templates of pooling are written in.
 *
 * lanes_<isa>.h gives each word its meaning for the types of elements.h.
 *
 *   TARGET             function attribute that permits the instructions
 *   VEC, IVEC, MASK    LANES values, LANES 32-bit positions, a truth value a lane
 *
 *   LOAD(p, n)         n lanes, others 0; no address behind them is touched
 *   SPAN, SPAN_OF(stride, lo, hi)             which elements lanes [lo, hi) come from
 *   LOAD_SPAN(p, span), LOAD2_SPAN(p, span)   those of p[0], p[1] ... or p[0], p[2] ...
 *   LOAD_PAIRS(p, n, &even, &odd)             n lanes each of 2n elements
 *   STORE(p, v, n)     the first n lanes; each must be a value that ELEM can hold
 *   STORE_PAIRS(p, even, odd, n)              interleaved, 2n elements
 *
 *   SET(x)             x, a REAL, in every lane
 *   LOAD_REAL(p), STORE_REAL(p, v)            LANES REALs
 *   STORE_REAL_PAIRS(p, even, odd)            interleaved, 2 * LANES REALs
 *   ADD(a, b), MUL(a, b), DIV(a, b)           as REAL
 *   ROUND(v)           to what ELEM can hold
 *   ADD_WHERE(m, a, b)                        m ? ROUND(a + b) : a
 *   KEEP(m, v)         m ? v : 0
 *   PICK(m, a, b), IPICK(m, a, b)             m ? b : a
 *   GREATER(a, b), UNORDERED(a, b), IEQUAL(a, b)
 *   OR(m, m), AND(m, m), RANGE(lo, hi)        masks; RANGE is lanes [lo, hi)
 *   IS_NONE(m), COUNT(m)                      no lane; how many lanes
 *
 *   ISET(i), IADD(a, b), ILOAD(p), ISTORE(p, i)
 *   IRAMP(step)        {0, step, 2 * step ...}
 *   TALLY(i, m), ISUM(i)                      i + 1 where m; the sum of all lanes
 *   LOAD_INDEX(p, n)   n positions out of int64, -1 for negative ones and behind n;
 *                      what 32 bits cannot hold becomes something that is no position
 *   INDEX_IS(p, n, i)  lanes of n int64 that are i
 *   STORE_INDEX(p, i, n)                      as int64
 */
#ifndef PTAC_OPS_POOL_LANES_H
#define PTAC_OPS_POOL_LANES_H

#include "ops/pool/elements.h"

#define VEC              OF(vec)
#define IVEC             OF(ivec)
#define MASK             OF(mask)
#define SPAN             OF(span)
#define LANES            OF(lanes)
#define LOAD             OF(load)
#define SPAN_OF          OF(span_of)
#define LOAD_SPAN        OF(load_span)
#define LOAD2_SPAN       OF(load2_span)
#define LOAD_PAIRS       OF(load_pairs)
#define STORE            OF(store)
#define STORE_PAIRS      OF(store_pairs)
#define SET              OF(set)
#define LOAD_REAL        OF(load_real)
#define STORE_REAL       OF(store_real)
#define STORE_REAL_PAIRS OF(store_real_pairs)
#define ADD              OF(add)
#define MUL              OF(mul)
#define DIV              OF(div)
#define ROUND            OF(round)
#define ADD_WHERE        OF(add_where)
#define KEEP             OF(keep)
#define PICK             OF(pick)
#define IPICK            OF(ipick)
#define GREATER          OF(greater)
#define UNORDERED        OF(unordered)
#define IEQUAL           OF(iequal)
#define OR               OF(either)
#define AND              OF(both)
#define RANGE            OF(range)
#define IS_NONE          OF(is_none)
#define COUNT            OF(count)
#define ISET             OF(iset)
#define IADD             OF(iadd)
#define ILOAD            OF(iload)
#define ISTORE           OF(istore)
#define TALLY            OF(tally)
#define ISUM             OF(isum)
#define IRAMP            OF(iramp)
#define LOAD_INDEX       OF(load_index)
#define INDEX_IS         OF(index_is)
#define STORE_INDEX      OF(store_index)

/*
 * STEP(c, n_vectors, n) over all channels of a pixel, n of them in the last vector, and
 * as many vectors at a time as the registers hold.
 */
#define OVER_CHANNELS(channels, STEP)                                                  \
    do {                                                                               \
        int64_t c = 0;                                                                 \
                                                                                       \
        for (; c + MOST_VECTORS * LANES <= (channels); c += MOST_VECTORS * LANES)      \
            STEP(c, MOST_VECTORS, LANES);                                              \
        for (; c + 2 * LANES <= (channels); c += 2 * LANES)                            \
            STEP(c, 2, LANES);                                                         \
        for (; c + LANES <= (channels); c += LANES)                                    \
            STEP(c, 1, LANES);                                                         \
        if (c < (channels))                                                            \
            STEP(c, 1, (int)((channels)-c));                                           \
    } while (0)

enum {
    MOST_VECTORS = 4,
};

/* Where n_vectors is a constant up to MOST_VECTORS. */
#define FOR_VECTORS(i, n_vectors)                                                      \
    _Pragma("GCC unroll 4") for (int i = 0; i < (n_vectors); i++)

#define INLINED TARGET static inline __attribute__((always_inline))

#endif
