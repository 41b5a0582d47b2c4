/*
 * cross_entropy_backward_avx2.c - cross-entropy's gradient, eight float lanes at a
 * time.
 *
 * The algorithm is in cross_entropy_backward_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/loss/cross_entropy_backward_tpl.h"

static const ptac_kernel cross_entropy_backward_avx2 = {
    .op = PTAC_OP_CROSS_ENTROPY_BACKWARD,
    .name = "avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(cross_entropy_backward_avx2)
#endif
