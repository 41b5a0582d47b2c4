/*
 * copy_avx512.c - copies, blocks of 16 x 16 floats at a time.
 *
 * The algorithm is in the templates; this file only names the instructions.
 */
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f")))
#include "ops/copy/turn_avx512.h"

#define ISA         "avx512"
#define NEEDS       PTAC_CPU_AVX512
#define BIG_4       16
#define BIG_BLOCK_4 turn_4_by_16
#define BIG_8       8
#define BIG_BLOCK_8 turn_8_by_8
#include "ops/copy/copy_rows_tpl.h"
#endif
