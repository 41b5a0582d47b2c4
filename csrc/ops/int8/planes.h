/*
 * planes.h - images between planes of channels and pixels of channels, by vectors.
 */
#ifndef PTAC_OPS_INT8_PLANES_H
#define PTAC_OPS_INT8_PLANES_H

#include "ops/int8/isa.h"

/* Members of ptac_int8_isa, by AVX2 and by AVX-512. */
void ptac_quantize_planes_avx2(const ptac_pixels *image, const float *planes,
                               int64_t plane_stride, int64_t begin, int64_t end,
                               float inverse, float zero, uint8_t *q);
void ptac_store_planes_avx2(const float *rows, int n_pixels, int n_columns,
                            float *planes, int64_t plane_stride);
void ptac_quantize_planes_avx512(const ptac_pixels *image, const float *planes,
                                 int64_t plane_stride, int64_t begin, int64_t end,
                                 float inverse, float zero, uint8_t *q);
void ptac_store_planes_avx512(const float *rows, int n_pixels, int n_columns,
                              float *planes, int64_t plane_stride);
void ptac_pick_avx512(const float *x, int64_t step, int64_t n, float *out);

#endif
