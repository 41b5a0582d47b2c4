/*
 * foreach_avx2.c - operations over lists of tensors, eight floats or four doubles at a
 * time.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/foreach/foreach_tpl.h"

PTAC_FOREACH_ROWS("avx2", PTAC_CPU_AVX2, ptac_foreach_accepts_fused)
#endif
