/*
 * log_softmax_avx2.c - log-softmax, eight float lanes at a time.
 *
 * The algorithm is in log_softmax_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/softmax/log_softmax_tpl.h"

static const ptac_kernel log_softmax_avx2 = {
    .op = PTAC_OP_LOG_SOFTMAX,
    .name = "avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(log_softmax_avx2)
#endif
