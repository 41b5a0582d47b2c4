/*
 * bias_act_avx512.c - bias, activation and their gradient, sixteen float lanes at a
 * time.
 *
 * The algorithm is in bias_act_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/linear/bias_act_tpl.h"

const ptac_bias_act ptac_bias_act_avx512 = ROW("avx512");
#endif
