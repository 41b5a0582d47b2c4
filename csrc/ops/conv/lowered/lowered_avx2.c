/*
 * lowered_avx2.c - convolutions of few places, eight float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define LOWERED_REGISTERS 16
#define LOWERED_WAY       lowered_avx2
#include "ops/conv/lowered/lowered_tpl.h"

static ptac_status run_avx2(const ptac_call *call)
{
    return ptac_lowered_run(call, &lowered_avx2);
}

PTAC_ROW(CONV2D, "lowered_avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_lowered_accepts,
         run_avx2, .spreads = true)
#endif
