/*
 * bias_act_avx2.c - bias, activation and their gradient, eight float lanes at a time.
 *
 * The algorithm is in bias_act_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/linear/bias_act_tpl.h"

const ptac_bias_act ptac_bias_act_avx2 = ROW("avx2");
#endif
