/*
 * math_avx2.c - the vector functions with avx2's lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "math_lanes_tpl.h"

const math_lanes math_avx2 = {"avx2", PTAC_CPU_AVX2, ALL_MAPS};
#endif
