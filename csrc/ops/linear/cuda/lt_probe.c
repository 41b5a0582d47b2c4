/*
 * lt_probe.c - products that are planned and never run.
 */
#include "ops/linear/cuda/lt_probe.h"

#include "ops/linear/linear_act.h"

enum {
    READS_BIAS = PTAC_LT_EPI_BIAS,
    SUMS = 16 | PTAC_LT_EPI_BGRADA | PTAC_LT_EPI_BGRADB, /* DRELU_BGRAD, DGELU_BGRAD */
    HAS_AUX = 128,
    GOES_BACK = 8 | 64, /* DRELU, DGELU */
    HAS_GELU = PTAC_LT_EPI_GELU | 64,
};

/* Far from every other, and a multiple of nothing larger. */
static void *address(int number, int alignment)
{
    return (void *)(((uintptr_t)number << 32) + (uintptr_t)alignment);
}

bool ptac_lt_probe(int device, ptac_dtype dtype, bool is_tf32, int epilogue, int64_t m,
                   int64_t n, int64_t k, int alignment)
{
    const bool is_weight_grad = epilogue == PTAC_LT_EPI_BGRADB;
    const bool is_forward = !is_weight_grad && !(epilogue & GOES_BACK);
    const int64_t ld_aux = epilogue & HAS_GELU
                               ? ptac_linear_act_ldz(n)
                               : ptac_parts(n, PTAC_LT_MASK_BITS) * PTAC_LT_MASK_BITS;
    const ptac_lt_workspace workspace = {address(6, 256), PTAC_LT_WORKSPACE_BYTES};
    ptac_lt_plan plan;
    ptac_matmul matmul = {
        .m = m,
        .n = n,
        .k = k,
        .a = {address(1, alignment), is_weight_grad ? m : k},
        .b = {address(2, alignment), is_forward ? k : n},
        .d = {address(3, alignment), n},
        .a_is_transposed = is_weight_grad,
        .b_is_transposed = is_forward,
        .type = ptac_lt_type(dtype),
        .d_type = ptac_lt_type(dtype),
        .compute = is_tf32 ? PTAC_LT_COMPUTE_TF32 : PTAC_LT_COMPUTE_32F,
        .epilogue = epilogue,
        .device = device,
    };

    if (matmul.type < 0)
        return false;
    if (epilogue & (READS_BIAS | SUMS))
        matmul.bias = address(4, alignment);
    if (epilogue & HAS_AUX)
        matmul.aux = (ptac_lt_matrix){address(5, 256), ld_aux};
    return ptac_lt_plan_for(&matmul, &workspace, &plan);
}
