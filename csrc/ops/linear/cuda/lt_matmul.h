/*
 * lt_matmul.h - matrix products by cuBLASLt, of matrices that lie row by row.
 *
 * D [m, n] = op(A) [m, k] op(B) [k, n], then the epilogue. The library's matrices lie
 * column by column: it computes the transposed D, its A is our B. Bias, ReLU's mask and
 * the gradient of a bias run along n, as a Linear layer's do.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_LT_MATMUL_H
#define PTAC_OPS_LINEAR_CUDA_LT_MATMUL_H

#include "ops/linear/cuda/lt_plan.h"

/* A matrix: rows begin ld elements apart, elements of a row lie side by side. */
typedef struct ptac_lt_matrix {
    void *data; /* of A and B only read */
    int64_t ld;
} ptac_lt_matrix;

typedef struct ptac_matmul {
    int64_t m, n, k;
    ptac_lt_matrix a, b, d;
    bool a_is_transposed; /* A lies as [k, m] */
    bool b_is_transposed; /* B lies as [n, k], as a Linear layer's weight does */
    int type, d_type;     /* PTAC_LT_R_*: of A and B; of D, bias and GELU's aux */
    int compute;          /* PTAC_LT_COMPUTE_* */
    int epilogue;         /* PTAC_LT_EPI_* */
    /*
     * Read by BIAS. Written by BGRADB: m sums over k of op(A); BGRADA: n sums over k of
     * op(B); DRELU_BGRAD and DGELU_BGRAD: n sums over m of D.
     */
    void *bias;
    ptac_lt_matrix aux; /* ld in bits of ReLU's mask, in elements of GELU's input */
    const float *a_scales, *b_scales; /* [m], [n] of row-wise fp8, or NULL */
    int device;
    bool only_known; /* ask the library nothing: it may wait, or load code */
} ptac_matmul;

/* Where products work: at least as aligned as PTAC_LT_WORKSPACE_ALIGNMENT. */
typedef struct ptac_lt_workspace {
    void *data;
    size_t bytes;
} ptac_lt_workspace;

enum {
    PTAC_LT_WORKSPACE_ALIGNMENT = 256,
    /* What cuBLAS recommends for compute capability 9.0; others take 4 MiB. */
    PTAC_LT_WORKSPACE_BYTES = 32 << 20,
    PTAC_LT_MASK_BITS = 128, /* a row of ReLU's mask is a multiple of these */
    PTAC_LT_AUX_UNIT = 8,    /* and one of GELU's input a multiple of these elements */
};

/* The library's number of a type that products take; -1 of another. */
int ptac_lt_type(ptac_dtype dtype);

/*
 * The plan for a product whose addresses are known: from the table, else from the
 * library. Writes nothing. False: the device is not open, the library refuses, or it
 * may not be asked.
 */
bool ptac_lt_plan_for(const ptac_matmul *matmul, const ptac_lt_workspace *workspace,
                      ptac_lt_plan *plan);

/* Starts the product on the stream. PTAC_FAILED with the library's words. */
ptac_status ptac_lt_run(const ptac_matmul *matmul, const ptac_lt_plan *plan,
                        const ptac_lt_workspace *workspace, void *stream);

/* Calls of the heuristic, and plans found in the table, since the program began. */
typedef struct ptac_lt_counts {
    int64_t n_asked, n_found;
} ptac_lt_counts;
ptac_lt_counts ptac_lt_counted(void);

#endif
