/*
 * product_avx512.c - products of few rows, sixteen float lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA               "avx512"
#define NEEDS             PTAC_CPU_AVX512
#define WAYS              ptac_products_avx512
#define PANELS_WAY        ptac_panels_avx512
#define PRODUCT_REGISTERS 32
#include "ops/product/product_tpl.h"
#endif
