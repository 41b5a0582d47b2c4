/*
 * implicit_avx2.c - convolution of any geometry, eight float lanes at a time.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA           "avx2"
#define NEEDS         PTAC_CPU_AVX2
#define ROWS_OF_FEW   4
#define ROWS_OF_FOUR  0
#define ROWS_OF_SUMS  3
#define TERMS_OF_SUMS 4
#include "ops/conv/implicit/implicit_tpl.h"
#endif
