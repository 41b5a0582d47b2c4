/*
 * lowered_avx512.c - convolutions of few places, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/conv/lowered/lowered_columns_tpl.h"

#include "ops/conv/lowered/lowered_columns_last_tpl.h" /* goes by the one above */

static const ptac_lowered_way lowered_avx512 = {&ptac_panels_avx512, lower_channels,
                                                lower_channels_last};

static ptac_status run_avx512(const ptac_call *call)
{
    return ptac_lowered_run(call, &lowered_avx512);
}

PTAC_ROW(CONV2D, "lowered_avx512", PTAC_CLOSE, PTAC_CPU_AVX512, ptac_lowered_accepts,
         run_avx512, .spreads = true, .pays = ptac_lowered_pays)
#endif
