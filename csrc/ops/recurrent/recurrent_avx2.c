/*
 * recurrent_avx2.c - lstm and gru, eight float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA                 "avx2"
#define NEEDS               PTAC_CPU_AVX2
#define RECURRENT_REGISTERS 16
#include "ops/recurrent/backward_tpl.h"
#endif
