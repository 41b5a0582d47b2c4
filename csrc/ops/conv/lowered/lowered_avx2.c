/*
 * lowered_avx2.c - convolutions of few places, eight float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA        "avx2"
#define NEEDS      PTAC_CPU_AVX2
#define PANELS_WAY ptac_panels_avx2
#include "ops/conv/lowered/lowered_tpl.h"
#endif
