/*
 * indexing_avx512.c - rows by indices, sixteen floats at a time.
 *
 * The algorithm is in indexing_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/indexing/indexing_tpl.h"
#include "ops/indexing/reduce_tpl.h"
#endif
