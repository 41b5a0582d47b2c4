/*
 * attention_avx512.c - attention, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA         "avx512"
#define NEEDS       PTAC_CPU_AVX512
#define TILE_ROWS   8
#define FEW_QUERIES 4
#include "ops/attention/attention_tpl.h"
#endif
