/*
 * lowered_avx512.c - convolutions of few places, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define LOWERED_REGISTERS 32
#define LOWERED_WAY       lowered_avx512
#include "ops/conv/lowered/lowered_tpl.h"

static ptac_status run_avx512(const ptac_call *call)
{
    return ptac_lowered_run(call, &lowered_avx512);
}

PTAC_ROW(CONV2D, "lowered_avx512", PTAC_CLOSE, PTAC_CPU_AVX512, ptac_lowered_accepts,
         run_avx512, .spreads = true)
#endif
