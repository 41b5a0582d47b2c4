/*
 * copy_avx2.c - copies, blocks of 8 x 8 floats at a time.
 *
 * The algorithm is in the templates; this file only names the instructions.
 */
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2")))
#include "ops/copy/turn_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/copy/copy_rows_tpl.h"
#endif
