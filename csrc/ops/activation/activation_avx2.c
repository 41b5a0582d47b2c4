/*
 * activation_avx2.c - activations and their gradients, eight float lanes at a time.
 *
 * The algorithms are in activation_tpl.h and curves_tpl.h; this file only names the
 * lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/activation/activation_tpl.h"
#include "ops/activation/curves_tpl.h"
#include "ops/activation/elu_tpl.h"
#endif
