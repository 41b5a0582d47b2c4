/*
 * step_lanes.h - what optimizer steps ask of lanes beyond the words of typed_lanes.h.
 *
 * Included behind typed_<isa>.h and step_<isa>.h, which defines
 *
 *   SUM, TOTAL(sum)       a vector of doubles, and their sum
 *   dot_f32(sum, a, b)    sum + the products of all lanes, in double
 *   root_estimate(x)      1 / sqrt(x) of floats, as the CPU's rsqrtps gives it
 *
 * Gives for each type
 *
 *   DOT(sum, a, b)        sum + the products of all lanes, in double
 *   MAXIMUM(a, b)         NaN if either is
 *   XOR(a, b)             bitwise
 *   CAN_ROOT, ROOT(v)     square roots as the host rounds them, if we know how
 *   HOST_ROOT(in, out, n) by the host itself
 */
#ifndef PTAC_OPS_OPTIM_STEP_LANES_H
#define PTAC_OPS_OPTIM_STEP_LANES_H

#include "ops/optim/root.h"
#include "ops/optim/step.h"

#define DOT       OF(dot)
#define XOR       V(xor)
#define CAN_ROOT  OF(can_root)
#define ROOT      OF(root)
#define HOST_ROOT ptac_the_host.OF(sqrt)
/* The instruction gives its second operand when either is NaN. */
#define MAXIMUM(a, b) PICK(UNORDERED(a, a), V(max)(a, b), a)

#define dot_f64(sum, a, b) JOIN(VECTOR, fmadd, pd)(a, b, sum)
#define root_f64           JOIN(VECTOR, sqrt, pd)
#define can_root_f32       (ptac_the_host.sqrt_rule != PTAC_SQRT_CALL)
#define can_root_f64       (ptac_the_host.sqrt_rule_f64 == PTAC_SQRT_IEEE)

#define OF(name) name##_f32

/*
 * As root.h says. The host decides for lanes outside the iteration's range; zero is
 * common, and zero.
 */
INLINE vec_f32 refined_root(vec_f32 x)
{
    const vec_f32 first = (vec_f32)ISET(PTAC_ROOT_FIRST);
    const vec_f32 last = (vec_f32)ISET(PTAC_ROOT_LAST);
    const mask_f32 zero = IEQUAL((ivec_f32)x, ISET(0));
    const mask_f32 even =
        AND(COMPARE(x, first, _CMP_GE_OQ), COMPARE(x, last, _CMP_LE_OQ));
    const vec_f32 half = SET(0.5f), y = root_estimate(x);
    vec_f32 s = MUL(x, y), h = MUL(half, y), r;

    if (__builtin_expect(!IS_EVERY(OR(even, zero)), 0)) {
        float in[N_LANES], out[N_LANES];

        STORE_REAL(in, x);
        ptac_the_host.sqrt_f32(in, out, N_LANES);
        return LOAD_REAL(out);
    }
    r = SUB(half, MUL(s, h));
    s = ADD(s, MUL(s, r));
    h = ADD(h, MUL(h, r));
    r = SUB(x, MUL(s, s));
    return KEEP(COMPARE(x, SET(0), _CMP_NEQ_UQ), ADD(s, MUL(r, h)));
}

INLINE vec_f32 root_f32(vec_f32 x)
{
    return ptac_the_host.sqrt_rule == PTAC_SQRT_IEEE ? V(sqrt)(x) : refined_root(x);
}

#undef OF

#endif
