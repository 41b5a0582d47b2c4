/*
 * lt_plan.h - what cuBLASLt's heuristic has said of a product, kept for the next call.
 *
 * The heuristic takes some 100 us, and for the same key says the same. Refusals are
 * kept too. The table has a fixed size: a new plan takes the place of an old one. Any
 * thread may read and write it, and none waits.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_LT_PLAN_H
#define PTAC_OPS_LINEAR_CUDA_LT_PLAN_H

#include "core/base.h"
#include "device/cuda/cublaslt.h"

/* All that the heuristic may look at. Without gaps, and compared byte by byte. */
typedef struct ptac_lt_key {
    int64_t m, n, k;
    int64_t lda, ldb, ldd, ldaux;
    uint64_t workspace_bytes;
    int32_t type, d_type, compute, epilogue;
    /* Powers of two that the addresses of A, B, D, bias and aux are multiples of. */
    uint16_t alignment[5];
    uint8_t device;
    uint8_t flags; /* 1: A is transposed, 2: B, 4: scales by row */
    uint8_t unused[4];
} ptac_lt_key;

_Static_assert(sizeof(ptac_lt_key) == 8 * 8 + 4 * 4 + 16, "a key has gaps");

typedef struct ptac_lt_plan {
    lt_algo algo;
    uint64_t workspace_bytes;
    uint64_t is_refused; /* the library has no way to do this */
} ptac_lt_plan;

/* Fill in *plan where the table has the key. */
bool ptac_lt_plan_find(const ptac_lt_key *key, ptac_lt_plan *plan);

/* Keep a plan; where another thread is writing at the same place it is let go. */
void ptac_lt_plan_keep(const ptac_lt_key *key, const ptac_lt_plan *plan);

/* Forget all plans, as where the library was loaded anew (tests). */
void ptac_lt_plan_clear(void);

#endif
