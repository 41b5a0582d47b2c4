/*
 * emulated_lt.c - cuBLASLt's functions for a program without a GPU.
 */
#include "emulated_lt.h"

#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

emulated_lt_state emulated_lt;

struct lt_preference_opaque {
    uint64_t workspace;
    uint32_t reductions;
    uint32_t alignment[4]; /* A, B, C, D */
};

/* What an algorithm remembers of the call that it was made for. */
typedef struct made_for {
    uint64_t sizes[3];
    uint32_t epilogue;
    int32_t types[2];
    uint32_t alignment[4];
    uint32_t workspace_bytes;
} made_for;

_Static_assert(sizeof(made_for) <= sizeof(lt_algo), "an algorithm has 64 bytes");

static lt_status make(void **made, size_t bytes)
{
    *made = calloc(1, bytes);
    if (!*made)
        abort();
    emulated_lt.n_alive++;
    return PTAC_LT_OK;
}

static lt_status drop(void *made)
{
    free(made);
    emulated_lt.n_alive--;
    return PTAC_LT_OK;
}

PUBLIC lt_status cublasLtCreate(lt_handle *handle)
{
    static char one;

    *handle = (lt_handle)(void *)&one;
    return PTAC_LT_OK;
}

PUBLIC lt_status cublasLtDestroy(lt_handle handle)
{
    (void)handle;
    return PTAC_LT_OK;
}

PUBLIC size_t cublasLtGetVersion(void)
{
    return 130100;
}

PUBLIC const char *cublasLtGetStatusName(lt_status status)
{
    return status == PTAC_LT_INVALID_VALUE   ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == PTAC_LT_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                             : "CUBLAS_STATUS_EXECUTION_FAILED";
}

PUBLIC lt_status cublasLtMatmulDescCreate(lt_desc *desc, lt_compute compute,
                                          lt_type scale_type)
{
    make((void **)desc, sizeof **desc);
    (*desc)->compute = compute;
    (*desc)->scale_type = scale_type;
    (*desc)->epilogue = PTAC_LT_EPI_NONE;
    (*desc)->bias_type = -1;
    return PTAC_LT_OK;
}

PUBLIC lt_status cublasLtMatmulDescDestroy(lt_desc desc)
{
    return drop(desc);
}

static lt_status set(void *field, size_t field_bytes, const void *value, size_t bytes)
{
    if (bytes != field_bytes)
        return emulated_lt_misuse("an attribute of another size");
    memcpy(field, value, bytes);
    return PTAC_LT_OK;
}

#define SET(field) set(&(field), sizeof(field), value, bytes)

PUBLIC lt_status cublasLtMatmulDescSetAttribute(lt_desc desc, lt_desc_attribute name,
                                                const void *value, size_t bytes)
{
    switch (name) {
    case PTAC_LT_TRANSA:
        return SET(desc->is_transposed[0]);
    case PTAC_LT_TRANSB:
        return SET(desc->is_transposed[1]);
    case PTAC_LT_EPILOGUE:
        return SET(desc->epilogue);
    case PTAC_LT_BIAS_POINTER:
        return SET(desc->bias);
    case PTAC_LT_BIAS_TYPE:
        return SET(desc->bias_type);
    case PTAC_LT_AUX_POINTER:
        return SET(desc->aux);
    case PTAC_LT_AUX_LD:
        return SET(desc->aux_ld);
    case PTAC_LT_A_SCALE:
        return SET(desc->scale[0]);
    case PTAC_LT_B_SCALE:
        return SET(desc->scale[1]);
    case PTAC_LT_A_SCALE_MODE:
        return SET(desc->scale_mode[0]);
    case PTAC_LT_B_SCALE_MODE:
        return SET(desc->scale_mode[1]);
    case PTAC_LT_FAST_ACCUM:
        return SET(desc->fast_accum);
    default:
        return emulated_lt_misuse("an attribute that nobody knows");
    }
}

PUBLIC lt_status cublasLtMatrixLayoutCreate(lt_layout *layout, lt_type type,
                                            uint64_t rows, uint64_t columns, int64_t ld)
{
    *layout = NULL;
    if (!emulated_lt_bytes(type))
        return emulated_lt_misuse("a type that nobody knows");
    if (!rows || !columns || ld < (int64_t)rows)
        return emulated_lt_misuse("a leading dimension below the rows");
    make((void **)layout, sizeof **layout);
    **layout = (struct lt_layout_opaque){type, rows, columns, ld};
    return PTAC_LT_OK;
}

PUBLIC lt_status cublasLtMatrixLayoutDestroy(lt_layout layout)
{
    return drop(layout);
}

PUBLIC lt_status cublasLtMatmulPreferenceCreate(lt_preference *preference)
{
    make((void **)preference, sizeof **preference);
    for (int i = 0; i < 4; i++)
        (*preference)->alignment[i] = 256;
    return PTAC_LT_OK;
}

PUBLIC lt_status cublasLtMatmulPreferenceDestroy(lt_preference preference)
{
    return drop(preference);
}

PUBLIC lt_status cublasLtMatmulPreferenceSetAttribute(lt_preference preference,
                                                      lt_preference_attribute name,
                                                      const void *value, size_t bytes)
{
    if (name == PTAC_LT_MAX_WORKSPACE)
        return SET(preference->workspace);
    if (name == PTAC_LT_REDUCTIONS)
        return SET(preference->reductions);
    if (name >= PTAC_LT_ALIGNMENT_A && name <= PTAC_LT_ALIGNMENT_D)
        return SET(preference->alignment[name - PTAC_LT_ALIGNMENT_A]);
    return emulated_lt_misuse("an attribute that nobody knows");
}

/* --- products --- */

static made_for describe(lt_desc desc, lt_layout a, lt_layout d)
{
    return (made_for){{d->rows, d->columns, emulated_lt_inner(desc, a)},
                      desc->epilogue,
                      {a->type, d->type},
                      {0},
                      0};
}

PUBLIC lt_status cublasLtMatmulAlgoGetHeuristic(lt_handle handle, lt_desc desc,
                                                lt_layout a, lt_layout b, lt_layout c,
                                                lt_layout d, lt_preference preference,
                                                int most, lt_heuristic *found, int *n)
{
    lt_status status = emulated_lt_check(desc, a, b, c, d);
    made_for made = describe(desc, a, d);

    emulated_lt.n_heuristics++;
    *n = 0;
    if (!handle || most < 1)
        return emulated_lt_misuse("no handle, or no place for results");
    if (preference->reductions != PTAC_LT_REDUCTION_COMPUTE_TYPE)
        return emulated_lt_misuse("sums of parts may be kept in 16 bits");
    if (status != PTAC_LT_OK || emulated_lt.refuses_all)
        return status ? status : PTAC_LT_NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    memcpy(made.alignment, preference->alignment, sizeof made.alignment);
    if (preference->workspace >= EMULATED_LT_WORKSPACE)
        found->workspace_bytes = made.workspace_bytes = EMULATED_LT_WORKSPACE;
    memcpy(&found->algo, &made, sizeof made);
    *n = 1;
    return PTAC_LT_OK;
}

static lt_status check_pointers(const made_for *made, const lt_product *p,
                                const void *c_data)
{
    const void *data[] = {p->a_data, p->b_data, c_data, p->d_data};

    for (int i = 0; i < 4; i++)
        if (!data[i] || (uintptr_t)data[i] % made->alignment[i])
            return emulated_lt_misuse("a pointer that is less aligned than was said");
    if (made->types[0] == PTAC_LT_R_E4M3 &&
        ((uintptr_t)p->a_data % 16 || (uintptr_t)p->b_data % 16))
        return emulated_lt_misuse("fp8 at an address that is not aligned");
    return PTAC_LT_OK;
}

static lt_status check_workspace(void *workspace, size_t bytes, const made_for *made)
{
    if (bytes < made->workspace_bytes)
        return emulated_lt_misuse("a workspace that is too small");
    if (!bytes)
        return PTAC_LT_OK;
    if (!workspace || (uintptr_t)workspace % 256)
        return emulated_lt_misuse("a workspace that is not aligned");
    memset(workspace, 0xa5, bytes);
    return PTAC_LT_OK;
}

/* alpha is 1 and beta 0, of the type of the scale. */
static bool is_plain(lt_desc desc, const void *alpha, const void *beta)
{
    if (desc->scale_type == PTAC_LT_R_32I)
        return *(const int32_t *)alpha == 1 && *(const int32_t *)beta == 0;
    return *(const float *)alpha == 1.0f && *(const float *)beta == 0.0f;
}

static lt_status multiply(const made_for *made, const lt_product *product,
                          const void *c_data, void *workspace, size_t workspace_bytes)
{
    lt_status status = check_pointers(made, product, c_data);

    if (status == PTAC_LT_OK)
        status = check_workspace(workspace, workspace_bytes, made);
    if (status != PTAC_LT_OK)
        return status;
    emulated_lt.n_products++;
    emulated_lt.n_with_epilogue += product->desc->epilogue != PTAC_LT_EPI_NONE;
    emulated_lt_multiply(product);
    return PTAC_LT_OK;
}

static bool begin(lt_stream stream, lt_desc desc)
{
    return emulated_lt.begin ? emulated_lt.begin(stream, desc->epilogue, desc->compute)
                             : stream == emulated_lt.stream;
}

PUBLIC lt_status cublasLtMatmul(lt_handle handle, lt_desc desc, const void *alpha,
                                const void *a_data, lt_layout a, const void *b_data,
                                lt_layout b, const void *beta, const void *c_data,
                                lt_layout c, void *d_data, lt_layout d,
                                const lt_algo *algo, void *workspace,
                                size_t workspace_bytes, lt_stream stream)
{
    const lt_product product = {desc, a, b, d, a_data, b_data, d_data};
    made_for made, now = describe(desc, a, d);
    lt_status status = emulated_lt_check(desc, a, b, c, d);

    if (emulated_lt.failure)
        return emulated_lt.failure;
    memcpy(&made, algo, sizeof made);
    if (memcmp(&made, &now, offsetof(made_for, alignment)) != 0)
        return emulated_lt_misuse("an algorithm of another product");
    if (status != PTAC_LT_OK)
        return status;
    if (!handle || !is_plain(desc, alpha, beta) || !begin(stream, desc))
        return emulated_lt_misuse("another handle, stream or scale");
    status = multiply(&made, &product, c_data, workspace, workspace_bytes);
    if (emulated_lt.end)
        emulated_lt.end();
    return status;
}
