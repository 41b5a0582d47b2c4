/*
 * step_tpl.h - the optimizers' steps in vectors. Leaves what PTAC_STEP_ROWS asks for.
 *
 * Included once by step_<isa>.c, behind typed_<isa>.h. Expects
 *
 *   root_estimate(x)      1 / sqrt(x) of floats, as the CPU's rsqrtps gives it
 *   root_estimate_14(x)   as its vrsqrt14ps does; only where HAS_ESTIMATE_14
 *   ZEROS(i)              lanes of 32-bit i that are 0, for WITHOUT(zeros, m), other
 *                         lanes of m, and CLEAR(zeros, v), v and there 0
 *   BEYOND(i, limit)      i >= limit, unsigned
 *
 * and gives sgd_tpl.h, adam_tpl.h, adadelta_tpl.h and rooted_tpl.h, for each type,
 *
 *   DOT(sum, a, b)        sum + the products of all lanes, in double
 *   MAXIMUM(a, b)         NaN if either is
 *   XOR(a, b)             bitwise
 *   CAN_ROOT, ROOT(v)     square roots as the host rounds them, if we know how
 *   HOST_ROOT(in, out, n) by the host itself
 */
#include "ops/optim/root.h"
#include "ops/optim/step.h"

#define DOT       OF(dot)
#define XOR       V(xor)
#define CAN_ROOT  OF(can_root)
#define ROOT      OF(root)
#define HOST_ROOT ptac_the_host.OF(sqrt)
/* The instruction gives its second operand when either is NaN. */
#define MAXIMUM(a, b) PICK(UNORDERED(a, a), V(max)(a, b), a)

#define dot_f32            v_dot
#define dot_f64(sum, a, b) PD(fmadd)(a, b, sum)
#define root_f64           PD(sqrt)
#define can_root_f32                                                                   \
    (ptac_the_host.sqrt_rule != PTAC_SQRT_CALL &&                                      \
     (HAS_ESTIMATE_14 || ptac_the_host.sqrt_rule != PTAC_SQRT_CORRECTED))
#define can_root_f64 (ptac_the_host.sqrt_rule_f64 == PTAC_SQRT_IEEE)

#define OF(name) name##_f32

/* As root.h says; the host decides for lanes out of range but the common one, zero. */
INLINE vec_f32 estimated_root(vec_f32 x, bool is_corrected)
{
    const int32_t from =
        is_corrected ? PTAC_ROOT_CORRECTED_FIRST : PTAC_ROOT_REFINED_FIRST;
    const int32_t last =
        is_corrected ? PTAC_ROOT_CORRECTED_LAST : PTAC_ROOT_REFINED_LAST;
    const ivec_f32 bits = (ivec_f32)x;
    const mask_f32 zeros = ZEROS(bits);
    /* Unsigned, so that what is below the first is beyond the last. */
    const mask_f32 odd = BEYOND(I(sub)(bits, ISET(from)), ISET(last - from + 1));
    const vec_f32 half = SET(0.5f);
    const vec_f32 y = is_corrected ? root_estimate_14(x) : root_estimate(x);
    vec_f32 s = MUL(x, y), h = MUL(half, y), r;

    if (__builtin_expect(!IS_NONE(WITHOUT(zeros, odd)), 0)) {
        float in[N_LANES], out[N_LANES];

        STORE_REAL(in, x);
        ptac_the_host.sqrt_f32(in, out, N_LANES);
        return LOAD_REAL(out);
    }
    if (is_corrected)
        return CLEAR(zeros, FMA(V(fnmadd)(s, s, x), h, s));
    r = SUB(half, MUL(s, h));
    s = ADD(s, MUL(s, r));
    h = ADD(h, MUL(h, r));
    r = SUB(x, MUL(s, s));
    return CLEAR(zeros, ADD(s, MUL(r, h)));
}

INLINE vec_f32 root_f32(vec_f32 x)
{
    switch (ptac_the_host.sqrt_rule) {
    case PTAC_SQRT_IEEE:
        return V(sqrt)(x);
    case PTAC_SQRT_CORRECTED:
        return estimated_root(x, HAS_ESTIMATE_14);
    default:
        return estimated_root(x, false);
    }
}

#include "ops/optim/adam_tpl.h"
#include "ops/optim/adadelta_tpl.h"
#include "ops/optim/rooted_tpl.h"
#include "ops/optim/sgd_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/optim/adam_tpl.h"
#include "ops/optim/adadelta_tpl.h"
#include "ops/optim/rooted_tpl.h"
#include "ops/optim/sgd_tpl.h"
