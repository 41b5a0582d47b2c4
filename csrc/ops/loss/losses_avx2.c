/*
 * losses_avx2.c - losses and their gradients, eight float lanes at a time.
 *
 * The algorithms are in losses_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/loss/losses_tpl.h"
#endif
