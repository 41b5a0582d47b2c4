/*
 * step_avx2.c - the steps of optimizers, eight floats or four doubles
 * at a time.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#define ZEROS(i)          IEQUAL(i, ISET(0))
#define BEYOND(i, limit)  IEQUAL(_mm256_max_epu32(i, limit), i)
#define WITHOUT(zeros, m) V(andnot)(zeros, m)
#define CLEAR(zeros, v)   V(andnot)(zeros, v)
#define root_estimate     _mm256_rsqrt_ps
#define root_estimate_14  root_estimate
#define HAS_ESTIMATE_14   false

#include "ops/optim/step_tpl.h"

PTAC_STEP_ROWS("avx2", PTAC_CPU_AVX2, ptac_step_accepts_fused)
#endif
