/*
 * stack_avx2.c - tensors stacked, eight floats of each at a time.
 *
 * The algorithm is in stack_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/copy/stack_tpl.h"
#endif
