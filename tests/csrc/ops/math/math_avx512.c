/*
 * math_avx512.c - the vector functions with avx512's lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "math_lanes_tpl.h"

const math_lanes math_avx512 = {"avx512", PTAC_CPU_AVX512, ALL_MAPS};
#endif
