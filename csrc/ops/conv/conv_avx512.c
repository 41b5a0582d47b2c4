/*
 * conv_avx512.c - convolution, direct and by tiles, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA           "avx512"
#define NEEDS         PTAC_CPU_AVX512
#define ROWS_OF_TILES 7
#define EPILOGUE      ptac_conv_epilogue_avx512
#include "ops/conv/direct_tpl.h"
#include "ops/conv/epilogue_tpl.h"
#include "ops/conv/winograd/winograd_rows_tpl.h"
#endif
