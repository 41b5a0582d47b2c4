/*
 * batch_norm_avx2.c - batch normalization, eight float lanes at a time.
 *
 * The algorithm is in batch_norm_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/norm/batch_norm_tpl.h"

const ptac_batch_norm_fold_fn ptac_batch_norm_fold_avx2 = fold_all_sums;

PTAC_ROW(BATCH_NORM, "avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_accept_all, batch_norm)
PTAC_ROW(BATCH_NORM_BACKWARD, "avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_accept_all,
         batch_norm_backward)
PTAC_ROW(BATCH_NORM_ACT, "avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_accept_all,
         batch_norm_act)
PTAC_ROW(BATCH_NORM_ACT_BACKWARD, "avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_accept_all,
         batch_norm_act_backward)
#endif
