/*
 * squeeze_excite_avx512.c - squeeze-and-excitation, sixteen floats at a time.
 *
 * The algorithm is in the template; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/squeeze_excite/squeeze_excite_tpl.h"
#endif
