/*
 * packed_avx512.c - kernels of 1x1 as products, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA               "avx512"
#define NEEDS             PTAC_CPU_AVX512
#define PRODUCT_REGISTERS 32
#include "ops/conv/packed/packed_tpl.h"
#endif
