/*
 * cast.h - between float32 and bfloat16, as torch rounds: to nearest, ties to even,
 * NaN to one quiet NaN. What is too large for bfloat16 becomes infinity.
 *
 * For rows that multiply in bfloat16. They use the host's threads where the work is
 * worth it, and cannot fail.
 */
#ifndef PTAC_OPS_BF16_CAST_H
#define PTAC_OPS_BF16_CAST_H

#include "core/view.h"

/* out, without gaps, from rows that begin stride elements apart. */
void ptac_bf16_narrow_rows(const float *in, int64_t stride, int64_t n_rows,
                           int64_t n_cols, uint16_t *out);

/*
 * out, row by row without gaps, from a float view of 1 to 4 dimensions whose last one
 * has stride 1 (or at most one element).
 */
void ptac_bf16_narrow_view(const ptac_view *in, uint16_t *out);

void ptac_bf16_widen(const uint16_t *in, float *out, int64_t n);

/*
 * out = in * scale[c] + shift[c], then ReLU where asked for (NaN stays), of n_planes
 * planes, plane i of channel i % n_channels; each of size elements. Where the channels
 * lie innermost instead, a plane is one pixel of n_channels elements, size is 1 and
 * n_planes the number of pixels. scale and shift may be NULL.
 */
typedef struct ptac_bf16_epilogue {
    const float *scale, *shift;
    int64_t n_channels, n_planes, size;
    bool with_relu, channels_last;
} ptac_bf16_epilogue;

void ptac_bf16_widen_channels(const uint16_t *in, float *out,
                              const ptac_bf16_epilogue *epilogue);

#endif
