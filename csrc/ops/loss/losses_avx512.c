/*
 * losses_avx512.c - losses and their gradients, sixteen float lanes at a time.
 *
 * The algorithms are in losses_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/loss/losses_tpl.h"
#endif
