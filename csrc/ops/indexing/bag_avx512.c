/*
 * bag_avx512.c - bags of rows, sixteen floats at a time.
 *
 * The algorithm is in bag_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/indexing/bag_tpl.h"
#endif
