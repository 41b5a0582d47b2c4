/*
 * attention_avx2.c - attention, eight float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA         "avx2"
#define NEEDS       PTAC_CPU_AVX2
#define TILE_ROWS   4
#define FEW_QUERIES 2
#include "ops/attention/attention_tpl.h"
#endif
