/*
 * lowered_avx512.c - convolutions of few places, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA        "avx512"
#define NEEDS      PTAC_CPU_AVX512
#define PANELS_WAY ptac_panels_avx512
#include "ops/conv/lowered/lowered_tpl.h"
#endif
