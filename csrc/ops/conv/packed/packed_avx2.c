/*
 * packed_avx2.c - kernels of 1x1 as products, eight float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA               "avx2"
#define NEEDS             PTAC_CPU_AVX2
#define PRODUCT_REGISTERS 16
#include "ops/conv/packed/packed_tpl.h"
#endif
