/*
 * step_tpl.h - the optimizers' steps in vectors. Leaves what PTAC_STEP_ROWS asks for.
 *
 * Included once by step_<isa>.c, behind typed_<isa>.h. Expects
 *
 *   root_estimate(x)      1 / sqrt(x) of floats, as the CPU's rsqrtps gives it
 *   ZEROS(i)              lanes of 32-bit i that are 0, for WITHOUT(zeros, m), other
 *                         lanes of m, and CLEAR(zeros, v), v and there 0
 *   BEYOND(i, limit)      i >= limit, unsigned
 *
 * and gives sgd_tpl.h and adam_tpl.h, for each type,
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
#define can_root_f32       (ptac_the_host.sqrt_rule != PTAC_SQRT_CALL)
#define can_root_f64       (ptac_the_host.sqrt_rule_f64 == PTAC_SQRT_IEEE)

#define OF(name) name##_f32

/*
 * As root.h says. The host decides for lanes outside the iteration's range; zero is
 * common, and zero.
 */
INLINE vec_f32 refined_root(vec_f32 x)
{
    const ivec_f32 bits = (ivec_f32)x, first = ISET(PTAC_ROOT_FIRST);
    const ivec_f32 limit = ISET(PTAC_ROOT_LAST - PTAC_ROOT_FIRST + 1);
    const mask_f32 zeros = ZEROS(bits);
    /* Unsigned, so that what is below the first is beyond the last. */
    const mask_f32 odd = BEYOND(I(sub)(bits, first), limit);
    const vec_f32 half = SET(0.5f), y = root_estimate(x);
    vec_f32 s = MUL(x, y), h = MUL(half, y), r;

    if (__builtin_expect(!IS_NONE(WITHOUT(zeros, odd)), 0)) {
        float in[N_LANES], out[N_LANES];

        STORE_REAL(in, x);
        ptac_the_host.sqrt_f32(in, out, N_LANES);
        return LOAD_REAL(out);
    }
    r = SUB(half, MUL(s, h));
    s = ADD(s, MUL(s, r));
    h = ADD(h, MUL(h, r));
    r = SUB(x, MUL(s, s));
    return CLEAR(zeros, ADD(s, MUL(r, h)));
}

INLINE vec_f32 root_f32(vec_f32 x)
{
    return ptac_the_host.sqrt_rule == PTAC_SQRT_IEEE ? V(sqrt)(x) : refined_root(x);
}

#include "ops/optim/adam_tpl.h"
#include "ops/optim/sgd_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/optim/adam_tpl.h"
#include "ops/optim/sgd_tpl.h"
