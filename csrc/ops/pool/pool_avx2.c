/*
 * pool_avx2.c - pooling and its gradients, eight float or four double lanes at a time.
 *
 * The algorithms are in pool_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/pool/pool_rows_tpl.h"
#endif
