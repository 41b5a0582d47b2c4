/*
 * recurrent_avx512.c - lstm and gru, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA                 "avx512"
#define NEEDS               PTAC_CPU_AVX512
#define RECURRENT_REGISTERS 32
#include "ops/recurrent/backward_tpl.h"
#endif
