/*
 * bias_act.h - what follows a matrix product: bias and activation, and their gradient.
 * Level close.
 *
 * Not an operator of its own: the rows of linear_act and linear_act_backward call it
 * behind and before their products. Matrices are float32, row by row.
 */
#ifndef PTAC_OPS_LINEAR_BIAS_ACT_H
#define PTAC_OPS_LINEAR_BIAS_ACT_H

#include "core/host.h"
#include "ops/linear/act.h"

/* By their definitions, in double: act(z), and g's gradient by what is saved. */
double ptac_act_value(double z, ptac_act act);
double ptac_act_gradient(double g, double saved, ptac_act act);

/* Backward needs z + bias of these, and y of the others. */
static inline bool ptac_act_saves_z(ptac_act act)
{
    return act == PTAC_ACT_GELU || act == PTAC_ACT_GELU_TANH || act == PTAC_ACT_SILU;
}

/* cuBLASLt has it as a product's epilogue; others are a kernel behind the product. */
static inline bool ptac_act_has_epilogue(ptac_act act)
{
    return act == PTAC_ACT_RELU || act == PTAC_ACT_GELU_TANH;
}

/*
 * y = act(z + bias). Rows of z and y begin ldz and ldy elements apart. bias has n_cols
 * elements or is NULL. y may be z. With keep_z, which asks for a y of its own, z + bias
 * is written back to z.
 */
typedef struct ptac_act_forward {
    float *z;
    int64_t ldz;
    const float *bias;
    float *y;
    int64_t ldy;
    int64_t n_rows, n_cols;
    ptac_act act;
    bool keep_z;
} ptac_act_forward;

/*
 * gz = g * act'(saved), where saved is z + bias or y as ptac_act_saves_z() tells, and
 * gb[j], unless it is NULL, the sum of column j of gz. Matrices are dense; gz may be g.
 * Where act is none saved is not read, and gz may be NULL.
 *
 * Columns add up in float over 32 rows and from there in double, in an order that the
 * sizes decide and threads do not.
 *
 * ReLU passes the gradient where !(y <= 0), so also at NaN, as threshold_backward does.
 */
typedef struct ptac_act_backward {
    const float *g, *saved;
    float *gz, *gb;
    int64_t n_rows, n_cols;
    ptac_act act;
} ptac_act_backward;

enum {
    PTAC_ACT_PANEL = 1024,   /* columns summed together, at most */
    PTAC_ACT_ROW_BLOCK = 32, /* rows summed in float */
};

/* One panel of one group of rows, for which sums come back in double. */
typedef struct ptac_act_piece {
    const ptac_act_backward *job;
    int64_t row, last_row;
    int64_t column;
    int n_columns;
} ptac_act_piece;

typedef void (*ptac_act_sum)(const ptac_act_piece *piece, double sums[PTAC_ACT_PANEL]);

/* A row, by ptac_act. A ptac_range_fn has the job as its context. */
typedef struct ptac_bias_act {
    const char *name;
    ptac_range_fn forward[PTAC_N_ACTS];  /* rows [begin, end) */
    ptac_range_fn backward[PTAC_N_ACTS]; /* elements, without sums */
    ptac_act_sum sum[PTAC_N_ACTS];       /* a piece, with them */
} ptac_bias_act;

/*
 * Results that are not finite agree with stock's, except that
 * - GELU of +inf is +inf and of a large z finite, where oneDNN's is NaN and infinite;
 * - an infinite g gives an infinite gz far out in the tails of GELU and SiLU, where
 *   stock's slope is 0, hence its product NaN.
 *
 * Both use the host's threads where the work is worth it. They cannot fail.
 */
void ptac_bias_act_forward(const ptac_bias_act *by, const ptac_act_forward *job);
void ptac_bias_act_backward(const ptac_bias_act *by, const ptac_act_backward *job);

extern const ptac_bias_act ptac_bias_act_scalar;
#if defined(__x86_64__)
extern const ptac_bias_act ptac_bias_act_avx2, ptac_bias_act_avx512;
#endif

/* The fastest that this CPU, as ptac_cpu_features() sees it, can run. */
const ptac_bias_act *ptac_bias_act_best(void);

#endif
