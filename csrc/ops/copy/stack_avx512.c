/*
 * stack_avx512.c - tensors stacked, sixteen floats of each at a time.
 *
 * The algorithm is in stack_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/copy/stack_tpl.h"
#endif
