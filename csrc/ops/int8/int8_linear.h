/*
 * int8_linear.h - y = act(x w^T + bias) with weights and activations as int8.
 *
 * Weights have a scale for each output channel, activations a scale and a zero point
 * for each row, found in the call: 8 bits of it, or 16 where x is a single row, which
 * waits for the weights anyway. The sums are exact, so that all rows give the same bits
 * and the number of threads changes none. A row of x with NaN or infinity gives NaN in
 * all of its outputs.
 *
 * Not an approximation that the chooser may pick for a float call: who calls has
 * quantized the weights before, where a table said that this is faster.
 */
#ifndef PTAC_OPS_INT8_INT8_LINEAR_H
#define PTAC_OPS_INT8_INT8_LINEAR_H

#include "core/kernel.h"
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"

/*
 * inputs: x [m, k], whose rows begin x_stride floats apart; packed (see panel.h);
 * scales [n]; bias [n], or no data. outputs: y [m, n], row by row.
 */
typedef struct ptac_int8_linear {
    int64_t m, n, k;
    int64_t x_stride;
    bool relu;
} ptac_int8_linear;

/* Shape kinds by rows. work is n * k. */
enum {
    PTAC_INT8_M1,
    PTAC_INT8_M2,  /* 2 to 7 */
    PTAC_INT8_M8,  /* 8 to 31 */
    PTAC_INT8_M32, /* and more */
};

/* A weight [n, k] with what its product needs. */
typedef struct ptac_int8_weight {
    int64_t n, k;
    const int8_t *packed;
    const float *scales, *bias; /* bias may be NULL */
    bool relu;
    bool y_is_near; /* in a cache */
} ptac_int8_weight;

/* Bytes from one quantized row of k values to the next. */
static inline int64_t ptac_int8_pitch(int64_t k)
{
    return ptac_quads(k) * PTAC_QUAD;
}

/* A row as bytes q. */
ptac_row_scale ptac_int8_quantize_row(const ptac_int8_isa *isa, const float *x,
                                      int64_t k, uint8_t *q);

/* m such rows, a pitch apart, times the weight: y [m, n]. */
void ptac_int8_multiply_rows(const ptac_int8_isa *isa, const ptac_int8_weight *weight,
                             const uint8_t *q, const ptac_row_scale *rows, int64_t m,
                             float *y);

ptac_reason ptac_int8_linear_accepts(const ptac_call *call);
ptac_status ptac_int8_linear_run(const ptac_call *call, const ptac_int8_isa *isa);

#endif
