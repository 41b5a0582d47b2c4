/*
 * step_avx2.h - what step_lanes.h expects of AVX2.
 */
#ifndef PTAC_OPS_OPTIM_STEP_AVX2_H
#define PTAC_OPS_OPTIM_STEP_AVX2_H

#include "ops/math/typed_avx2.h"
#include "ops/optim/avx2_sum.h"

#define SUM           __m256d
#define TOTAL         ptac_avx2_total
#define dot_f32       ptac_avx2_dot
#define root_estimate _mm256_rsqrt_ps

#include "ops/optim/step_lanes.h"

#endif
