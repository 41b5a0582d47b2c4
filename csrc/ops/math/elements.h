/*
 * elements.h - float, bfloat16 and double, in memory and in arithmetic.
 *
 * Templates say OF(name), which the file that includes them defines as name_f32,
 * name_bf16 or name_f64. A bfloat16 is computed with as a float.
 */
#ifndef PTAC_OPS_MATH_ELEMENTS_H
#define PTAC_OPS_MATH_ELEMENTS_H

#include "ops/bf16/bf16.h"

typedef float elem_f32, real_f32, real_bf16;
typedef double elem_f64, real_f64;
typedef uint16_t elem_bf16;

#define widen_f32(x) ((float)(x))
#define widen_f64(x) ((double)(x))
#define widen_bf16   bf16_to_f32
#define narrow_f32   widen_f32
#define narrow_f64   widen_f64
#define narrow_bf16  bf16_from_f32

#define ELEM   OF(elem)
#define REAL   OF(real)
#define WIDEN  OF(widen)
#define NARROW OF(narrow)

#endif
