/*
 * upsample_avx512.c - upsampling and pixel shuffling, sixteen floats at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/upsample/upsample_rows_tpl.h"
#endif
