/*
 * pool_avx512.c - pooling and its gradients, sixteen float or eight double lanes at a
 * time.
 *
 * The algorithms are in pool_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/pool/pool_rows_tpl.h"
#endif
