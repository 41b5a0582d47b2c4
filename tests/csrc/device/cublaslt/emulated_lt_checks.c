/*
 * emulated_lt_checks.c - which products the stand-in for cuBLASLt refuses.
 *
 * Limits are those of the cuBLAS documentation (cublasLtMatmul(), "Tensor Core usage",
 * cublasLtMatmulDescAttributes_t) and, for row-wise scales, of compute capability 9.0.
 */
#include "emulated_lt.h"

#include <string.h>

lt_status emulated_lt_misuse(const char *text)
{
    emulated_lt.misuse = text;
    return PTAC_LT_INVALID_VALUE;
}

uint64_t emulated_lt_inner(lt_desc desc, lt_layout a)
{
    return desc->is_transposed[0] ? a->rows : a->columns;
}

static lt_status check_sizes(lt_desc desc, lt_layout a, lt_layout b, lt_layout c,
                             lt_layout d)
{
    const int ta = desc->is_transposed[0], tb = desc->is_transposed[1];

    if ((ta ? a->columns : a->rows) != d->rows ||
        (tb ? b->rows : b->columns) != d->columns ||
        emulated_lt_inner(desc, a) != (tb ? b->columns : b->rows))
        return emulated_lt_misuse("sizes that do not fit");
    if (memcmp(c, d, sizeof *c) != 0)
        return emulated_lt_misuse("C lies unlike D");
    return PTAC_LT_OK;
}

static lt_status check_types(lt_desc desc, lt_layout a, lt_layout b, lt_layout d)
{
    const bool is_tn = desc->is_transposed[0] && !desc->is_transposed[1];
    const bool is_int8 = a->type == PTAC_LT_R_8I, is_fp8 = a->type == PTAC_LT_R_E4M3;
    const int unit = is_int8 ? 4 : 16;

    if (a->type != b->type ||
        desc->compute != (is_int8 ? PTAC_LT_COMPUTE_32I
                          : desc->compute == PTAC_LT_COMPUTE_TF32
                              ? PTAC_LT_COMPUTE_TF32
                              : PTAC_LT_COMPUTE_32F) ||
        desc->scale_type != (is_int8 ? PTAC_LT_R_32I : PTAC_LT_R_32F) ||
        (desc->compute == PTAC_LT_COMPUTE_TF32 && a->type != PTAC_LT_R_32F))
        return PTAC_LT_NOT_SUPPORTED;
    /* With fp8 the bias of a float result would have to be bfloat16. */
    if (is_fp8 && d->type == PTAC_LT_R_32F && (desc->epilogue & 4))
        return PTAC_LT_NOT_SUPPORTED;
    if (is_int8 ? d->type != PTAC_LT_R_32I : !is_fp8 && d->type != a->type)
        return PTAC_LT_NOT_SUPPORTED;
    if ((is_int8 || is_fp8) &&
        (!is_tn || d->rows % unit || emulated_lt_inner(desc, a) % unit ||
         a->ld % unit || b->ld % unit ||
         (is_int8 && desc->epilogue != PTAC_LT_EPI_NONE)))
        return PTAC_LT_NOT_SUPPORTED;
    if (!desc->scale[0] != !desc->scale[1] || (desc->scale[0] && !is_fp8))
        return emulated_lt_misuse("scales of a product that has none");
    if (desc->scale[0] && (desc->scale_mode[0] != PTAC_LT_SCALE_OUTER_VEC ||
                           desc->scale_mode[1] != PTAC_LT_SCALE_OUTER_VEC))
        return emulated_lt_misuse("scales that are not vectors");
    return PTAC_LT_OK;
}

static lt_status check_epilogue(lt_desc desc, lt_layout d)
{
    static const uint32_t known[] = {1,   2,   4,   6,   32,  36,  130, 134,
                                     136, 152, 160, 164, 192, 208, 256, 512};
    const uint32_t epilogue = desc->epilogue;
    const bool is_gelu = epilogue & (32 | 64);
    bool is_known = false;

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known |= epilogue == known[i];
    if (!is_known)
        return emulated_lt_misuse("an epilogue that nobody knows");
    if ((epilogue & (4 | 16 | 256 | 512)) && !desc->bias)
        return emulated_lt_misuse("an epilogue without its vector");
    if (epilogue & 128) {
        if (!desc->aux || (uintptr_t)desc->aux % 16)
            return emulated_lt_misuse("an auxiliary matrix that is not aligned");
        if (desc->aux_ld < (int64_t)d->rows || desc->aux_ld % (is_gelu ? 8 : 128))
            return emulated_lt_misuse("a leading dimension of the auxiliary matrix");
    }
    for (int i = 0; i < EMULATED_LT_MOST_REFUSED && emulated_lt.refused[i]; i++)
        if (emulated_lt.refused[i] == epilogue)
            return PTAC_LT_NOT_SUPPORTED;
    return PTAC_LT_OK;
}

lt_status emulated_lt_check(lt_desc desc, lt_layout a, lt_layout b, lt_layout c,
                            lt_layout d)
{
    lt_status status = check_sizes(desc, a, b, c, d);

    if (status == PTAC_LT_OK)
        status = check_types(desc, a, b, d);
    return status == PTAC_LT_OK ? check_epilogue(desc, d) : status;
}
