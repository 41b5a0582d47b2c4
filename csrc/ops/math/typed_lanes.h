/*
 * typed_lanes.h - vector lanes for templates over float, bfloat16 and double.
 *
 * lanes.h gives the words on float lanes alone (v_add ...), this file those that follow
 * the type that OF names. typed_<isa>.h includes both. A bfloat16 is loaded as a
 * float, computed with as one, and rounded.
 *
 *   TARGET, INLINE     attributes that permit the instructions
 *   VEC, IVEC, MASK    N_LANES values, N_LANES 32-bit positions, a truth value a lane
 *   V(name), I(name)   the intrinsic of that name for VEC, and for IVEC
 *
 *   LOAD(p, n)         n lanes, others 0; no address behind them is touched
 *   SPAN, SPAN_OF(stride, lo, hi)             which elements lanes [lo, hi) come from
 *   LOAD_SPAN(p, span), LOAD2_SPAN(p, span)   those of p[0], p[1] ... or p[0], p[2] ...
 *   LOAD_PAIRS(p, n, &even, &odd)             n lanes each of 2n elements
 *   STORE(p, v, n)     the first n lanes; each must be a value that ELEM can hold
 *   STORE_PAIRS(p, even, odd, n)              interleaved, 2n elements
 *
 *   SET(x)             x, a REAL, in every lane
 *   LOAD_REAL(p), STORE_REAL(p, v)            N_LANES REALs
 *   LOAD2_REAL(p)                             of 2 * N_LANES REALs every second
 *   STORE_REAL_PAIRS(p, even, odd)            interleaved, 2 * N_LANES REALs
 *   ADD(a, b), SUB, MUL, DIV, FMA(a, b, c)    as REAL; each rounds once
 *   ROUND(v)           to what ELEM can hold
 *   ADD_WHERE(m, a, b)                        m ? ROUND(a + b) : a
 *   KEEP(m, v)         m ? v : 0
 *   PICK(m, a, b), IPICK(m, a, b)             m ? b : a
 *   GREATER(a, b), UNORDERED(a, b), IEQUAL(a, b), ILESS(a, b)
 *   OR(m, m), AND(m, m), RANGE(lo, hi)        masks; RANGE is lanes [lo, hi)
 *   IS_NONE(m), COUNT(m)                      no lane; how many lanes
 *
 *   ISET(i), IADD(a, b), ILOAD(p), ILOAD2(p), ISTORE(p, i)    32 bits each
 *   IRAMP(step)        {0, step, 2 * step ...}
 *   TALLY(i, m), ISUM(i)                      i + 1 where m; the sum of all lanes
 *   LOAD_INDEX(p, n)   n positions out of int64, -1 for negative ones and behind n;
 *                      what 32 bits cannot hold becomes something that is no position
 *   INDEX_IS(p, n, i)  lanes of n int64 that are i
 *   STORE_INDEX(p, i, n)                      as int64
 */
#ifndef PTAC_OPS_MATH_TYPED_LANES_H
#define PTAC_OPS_MATH_TYPED_LANES_H

#include "ops/math/elements.h"

#include <immintrin.h>

/* The type that lanes are computed in: name_f32 for bfloat16 too. */
#define lanes_of_f32(name)  name##_f32
#define lanes_of_bf16(name) name##_f32
#define lanes_of_f64(name)  name##_f64
#define AS_REAL(name)       OF(lanes_of)(name)

/* typed_<isa>.h defines index_vector, _mm_ to _mm512_, for each type. */
#define suffix_f32 ps
#define suffix_f64 pd
#define V(name)    JOIN(VECTOR, name, AS_REAL(suffix))
#define I(name)    JOIN(AS_REAL(index_vector), name, epi32)
#define BITS       EPI32

#define VEC     AS_REAL(vec)
#define IVEC    AS_REAL(ivec)
#define MASK    AS_REAL(mask)
#define SPAN    OF(span)
#define N_LANES AS_REAL(lanes)

#define LOAD                  OF(load)
#define SPAN_OF               OF(span_of)
#define LOAD_SPAN             OF(load_span)
#define LOAD2_SPAN            OF(load2_span)
#define LOAD_PAIRS            OF(load_pairs)
#define STORE                 OF(store)
#define STORE_PAIRS           OF(store_pairs)
#define SET                   V(set1)
#define LOAD_REAL             V(loadu)
#define LOAD2_REAL            AS_REAL(load2)
#define STORE_REAL            V(storeu)
#define STORE_REAL_PAIRS(...) AS_REAL(store_pairs)(__VA_ARGS__, N_LANES)
#define ADD                   V(add)
#define SUB                   V(sub)
#define MUL                   V(mul)
#define DIV                   V(div)
#define FMA                   V(fmadd)
#define ROUND                 OF(round)
#define ADD_WHERE(m, a, b)    PICK(m, a, ROUND(ADD(a, b)))
#define GREATER(a, b)         COMPARE(a, b, _CMP_GT_OQ)
#define UNORDERED(a, b)       COMPARE(a, b, _CMP_UNORD_Q)
#define RANGE                 AS_REAL(range)
#define ISET                  I(set1)
#define IADD                  I(add)
#define WHOLE(name)           JOIN(AS_REAL(index_vector), name, AS_REAL(index_bits))
#define ILOAD(p)              WHOLE(loadu)((void *)(p))
#define ILOAD2                AS_REAL(iload2)
#define ISTORE(p, i)          WHOLE(storeu)((void *)(p), i)
#define IRAMP(step)           I(mullo)(ISET(step), AS_REAL(lane_numbers))
#define TALLY                 AS_REAL(tally)
#define ISUM                  AS_REAL(isum)
#define LOAD_INDEX            AS_REAL(load_index)
#define INDEX_IS              AS_REAL(index_is)
#define STORE_INDEX           AS_REAL(store_index)

#define round_f32(v) (v)
#define round_f64(v) (v)

#endif
