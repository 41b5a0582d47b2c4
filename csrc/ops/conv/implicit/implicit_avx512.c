/*
 * implicit_avx512.c - convolution of any geometry, sixteen float lanes at a time.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA           "avx512"
#define NEEDS         PTAC_CPU_AVX512
#define ROWS_OF_FEW   8
#define ROWS_OF_FOUR  6
#define ROWS_OF_SUMS  4
#define TERMS_OF_SUMS 6
#include "ops/conv/implicit/implicit_tpl.h"
#endif
