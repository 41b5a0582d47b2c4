/*
 * indexing_avx2.c - rows by indices, eight floats at a time.
 *
 * The algorithm is in indexing_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/indexing/indexing_tpl.h"
#include "ops/indexing/reduce_tpl.h"
#endif
