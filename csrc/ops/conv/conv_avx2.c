/*
 * conv_avx2.c - convolution, direct and by tiles, eight float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA           "avx2"
#define NEEDS         PTAC_CPU_AVX2
#define ROWS_OF_TILES 6
#define EPILOGUE      ptac_conv_epilogue_avx2
#include "ops/conv/direct_tpl.h"
#include "ops/conv/epilogue_tpl.h"
#include "ops/conv/winograd/winograd_rows_tpl.h"
#endif
