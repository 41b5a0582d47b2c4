/*
 * squeeze_excite_avx2.c - squeeze-and-excitation, eight floats at a time.
 *
 * The algorithm is in the template; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/squeeze_excite/squeeze_excite_tpl.h"
#endif
