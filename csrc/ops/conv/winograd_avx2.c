/*
 * winograd_avx2.c - convolution by transformed tiles, eight float lanes at a time.
 *
 * The algorithm is in winograd_tpl.h and winograd_weight_tpl.h, the rows are in
 * winograd_rows_tpl.h; this file names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ROWS_OF_TILES 6
#define ISA           "avx2"
#define NEEDS         PTAC_CPU_AVX2
#include "ops/conv/winograd_rows_tpl.h"
#endif
