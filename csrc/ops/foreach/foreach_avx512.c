/*
 * foreach_avx512.c - operations over lists of tensors, sixteen floats or eight doubles
 * at a time.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

/* What is written has just been read: no masked store is slow there. */
#undef STORE
#define STORE(p, v, n)                                                                 \
    ((n) == N_LANES ? STORE_REAL(p, v) : V(mask_storeu)(p, RANGE(0, n), v))

#include "ops/foreach/foreach_tpl.h"

PTAC_FOREACH_ROWS("avx512", PTAC_CPU_AVX512, ptac_foreach_accepts_fused)
#endif
