/*
 * weight.h - floats as int8, a scale a row.
 */
#ifndef PTAC_OPS_INT8_WEIGHT_H
#define PTAC_OPS_INT8_WEIGHT_H

#include "core/base.h"

/* Sums over a row: of w^2, and of (w - scale q)^2. */
typedef struct ptac_weight_error {
    double signal, noise;
} ptac_weight_error;

/*
 * What an instruction set does with a row: its largest magnitude, with NaN in *poison
 * where a weight is not finite, else 0; and q = round(w * by) with its errors, whose
 * last digits may differ.
 */
typedef struct ptac_weight_rows {
    float (*absmax)(const float *w, int64_t k, float *poison);
    ptac_weight_error (*round)(const float *w, int64_t k, float by, float scale,
                               int8_t *q);
} ptac_weight_rows;

#if defined(__x86_64__)
extern const ptac_weight_rows ptac_weight_avx512;
#endif

/*
 * n rows of k floats, row by row: scale = absmax / 127, q = round(w * (127 / absmax)).
 * A row of zeros, or nearly so, has scale 0. errors has n elements. False where a
 * weight is not finite; the outputs then hold anything.
 */
bool ptac_quantize_weight(const float *weight, int64_t n, int64_t k, int8_t *quantized,
                          float *scales, ptac_weight_error *errors);

#endif
