/*
 * upsample_avx2.c - upsampling and pixel shuffling, eight floats at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/upsample/upsample_rows_tpl.h"
#endif
