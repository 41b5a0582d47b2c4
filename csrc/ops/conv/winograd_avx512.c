/*
 * winograd_avx512.c - convolution by transformed tiles, sixteen float lanes at a time.
 *
 * The algorithm is in winograd_tpl.h and winograd_weight_tpl.h, the rows are in
 * winograd_rows_tpl.h; this file names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ROWS_OF_TILES 7
#define ISA           "avx512"
#define NEEDS         PTAC_CPU_AVX512
#include "ops/conv/winograd_rows_tpl.h"
#endif
