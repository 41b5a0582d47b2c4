/*
 * int8_embedding.h - rows of an int8 table as floats: y[i] = scale[row] * row.
 *
 * inputs: indices, int64, contiguous; table [n_rows, width], plain int8; scales
 * [n_rows]. outputs: y [n_indices, width]. An index that the table does not have gives
 * PTAC_UNSUITED, and y holds anything then: stock knows what to say of it. A product of
 * two floats, so that all rows give the same bits. The only shape kind has the width as
 * its work.
 */
#ifndef PTAC_OPS_INT8_EMBEDDING_INT8_EMBEDDING_H
#define PTAC_OPS_INT8_EMBEDDING_INT8_EMBEDDING_H

#include "core/kernel.h"

typedef struct ptac_int8_embedding {
    int64_t n_indices, n_rows, width;
} ptac_int8_embedding;

/* One row: y = scale * q. */
typedef void (*ptac_int8_row_fn)(const int8_t *q, float scale, int64_t width, float *y);

ptac_reason ptac_int8_embedding_accepts(const ptac_call *call);
ptac_status ptac_int8_embedding_run(const ptac_call *call, ptac_int8_row_fn widen);

#endif
