/*
 * log_softmax_backward_avx512.c - log-softmax's gradient, sixteen float lanes at a
 * time.
 *
 * The algorithm is in log_softmax_backward_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/softmax/log_softmax_backward_tpl.h"

static const ptac_kernel log_softmax_backward_avx512 = {
    .op = PTAC_OP_LOG_SOFTMAX_BACKWARD,
    .name = "avx512",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX512,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(log_softmax_backward_avx512)
#endif
