/*
 * small_avx512.c - small_pointwise, sixteen float lanes at a time.
 *
 * The algorithm is in small_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/pointwise/small_tpl.h"
#endif
