/*
 * lt_matmul.c - a product in cuBLASLt's words, its plan, and its start.
 */
#include "ops/linear/cuda/lt_matmul.h"

#include <string.h>

enum {
    MOST_ALIGNED = 256, /* more makes no difference to the library */
};

/* The library's objects of one product; they last as long as a call. */
typedef struct words {
    lt_desc desc;
    lt_layout a, b, d; /* the library's A and B */
} words;

static ptac_lt_counts counts;

ptac_lt_counts ptac_lt_counted(void)
{
    return (ptac_lt_counts){__atomic_load_n(&counts.n_asked, __ATOMIC_RELAXED),
                            __atomic_load_n(&counts.n_found, __ATOMIC_RELAXED)};
}

int ptac_lt_type(ptac_dtype dtype)
{
    switch (dtype) {
    case PTAC_F32:
        return PTAC_LT_R_32F;
    case PTAC_F16:
        return PTAC_LT_R_16F;
    case PTAC_BF16:
        return PTAC_LT_R_16BF;
    default:
        return -1;
    }
}

static uint16_t alignment_of(const void *data)
{
    const uintptr_t bits = (uintptr_t)data | MOST_ALIGNED;

    return (uint16_t)(bits & -bits);
}

static ptac_lt_key key_of(const ptac_matmul *p, const ptac_lt_workspace *workspace)
{
    const void *data[] = {p->a.data, p->b.data, p->d.data, p->bias, p->aux.data};
    ptac_lt_key key = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .lda = p->a.ld,
        .ldb = p->b.ld,
        .ldd = p->d.ld,
        .ldaux = p->aux.data ? p->aux.ld : 0,
        .workspace_bytes = workspace->bytes,
        .type = p->type,
        .d_type = p->d_type,
        .compute = p->compute,
        .epilogue = p->epilogue,
        .device = (uint8_t)p->device,
        .flags = (uint8_t)(p->a_is_transposed | p->b_is_transposed << 1 |
                           (p->a_scales != NULL) << 2),
    };

    for (int i = 0; i < 5; i++)
        key.alignment[i] = alignment_of(data[i]);
    return key;
}

#define SET(desc, name, value) ptac_lt.desc_set(desc, name, &(value), sizeof(value))

static lt_status set_scales(lt_desc desc, const ptac_matmul *p)
{
    const int32_t mode = PTAC_LT_SCALE_OUTER_VEC;
    lt_status status = SET(desc, PTAC_LT_A_SCALE_MODE, mode);

    if (!status)
        status = SET(desc, PTAC_LT_B_SCALE_MODE, mode);
    if (!status)
        status = SET(desc, PTAC_LT_A_SCALE, p->b_scales);
    if (!status)
        status = SET(desc, PTAC_LT_B_SCALE, p->a_scales);
    return status;
}

static lt_status describe(const ptac_matmul *p, lt_desc desc)
{
    const int32_t a_transposed = p->b_is_transposed, b_transposed = p->a_is_transposed;
    const uint32_t epilogue = (uint32_t)p->epilogue;
    const int64_t ldaux = p->aux.ld;
    lt_status status = SET(desc, PTAC_LT_TRANSA, a_transposed);

    if (!status)
        status = SET(desc, PTAC_LT_TRANSB, b_transposed);
    if (!status)
        status = SET(desc, PTAC_LT_EPILOGUE, epilogue);
    if (!status && p->bias)
        status = SET(desc, PTAC_LT_BIAS_POINTER, p->bias);
    if (!status && p->aux.data)
        status = SET(desc, PTAC_LT_AUX_POINTER, p->aux.data);
    if (!status && p->aux.data)
        status = SET(desc, PTAC_LT_AUX_LD, ldaux);
    if (!status && p->a_scales)
        status = set_scales(desc, p);
    return status;
}

/* Layouts of the library's A, B and D: ours with rows as its columns. */
static lt_status lay_out(const ptac_matmul *p, words *w)
{
    const int64_t a[] = {p->a_is_transposed ? p->m : p->k,
                         p->a_is_transposed ? p->k : p->m};
    const int64_t b[] = {p->b_is_transposed ? p->k : p->n,
                         p->b_is_transposed ? p->n : p->k};
    lt_status status =
        ptac_lt.layout_create(&w->a, p->type, (uint64_t)b[0], (uint64_t)b[1], p->b.ld);

    if (!status)
        status = ptac_lt.layout_create(&w->b, p->type, (uint64_t)a[0], (uint64_t)a[1],
                                       p->a.ld);
    if (!status)
        status = ptac_lt.layout_create(&w->d, p->d_type, (uint64_t)p->n, (uint64_t)p->m,
                                       p->d.ld);
    return status;
}

static void drop(words *w)
{
    if (w->d)
        ptac_lt.layout_destroy(w->d);
    if (w->b)
        ptac_lt.layout_destroy(w->b);
    if (w->a)
        ptac_lt.layout_destroy(w->a);
    if (w->desc)
        ptac_lt.desc_destroy(w->desc);
}

static lt_status put_in_words(const ptac_matmul *p, words *w)
{
    const bool is_int = p->compute == PTAC_LT_COMPUTE_32I;
    lt_status status = ptac_lt.desc_create(&w->desc, p->compute,
                                           is_int ? PTAC_LT_R_32I : PTAC_LT_R_32F);

    if (!status)
        status = describe(p, w->desc);
    return status ? status : lay_out(p, w);
}

/* Sums of parts stay in float: 16 bits would lose what stock keeps. */
static lt_status prefer(lt_preference preference, const ptac_lt_key *key)
{
    const uint32_t reductions = PTAC_LT_REDUCTION_COMPUTE_TYPE;
    /* The library's A, B, C and D, and which of the key's addresses these are. */
    static const int which[] = {1, 0, 2, 2};
    lt_status status =
        ptac_lt.preference_set(preference, PTAC_LT_MAX_WORKSPACE, &key->workspace_bytes,
                               sizeof key->workspace_bytes);

    if (!status)
        status = ptac_lt.preference_set(preference, PTAC_LT_REDUCTIONS, &reductions,
                                        sizeof reductions);
    for (int i = 0; i < 4 && !status; i++) {
        const uint32_t alignment = key->alignment[which[i]];

        status = ptac_lt.preference_set(preference, PTAC_LT_ALIGNMENT_A + i, &alignment,
                                        sizeof alignment);
    }
    return status;
}

static lt_status ask(const ptac_lt_device *device, const words *w,
                     const ptac_lt_key *key, ptac_lt_plan *plan)
{
    lt_preference preference = NULL;
    lt_heuristic best = {.workspace_bytes = 0};
    int n = 0;
    lt_status status = ptac_lt.preference_create(&preference);

    if (!status)
        status = prefer(preference, key);
    if (!status)
        status = ptac_lt.heuristic(device->handle, w->desc, w->a, w->b, w->d, w->d,
                                   preference, 1, &best, &n);
    if (preference)
        ptac_lt.preference_destroy(preference);
    __atomic_fetch_add(&counts.n_asked, 1, __ATOMIC_RELAXED);
    *plan = (ptac_lt_plan){
        .algo = best.algo,
        .workspace_bytes = best.workspace_bytes,
        .is_refused = status || n < 1 || best.state,
    };
    return status;
}

bool ptac_lt_plan_for(const ptac_matmul *matmul, const ptac_lt_workspace *workspace,
                      ptac_lt_plan *plan)
{
    const ptac_lt_device *device = ptac_lt_on(matmul->device);
    const ptac_lt_key key = key_of(matmul, workspace);
    words w = {NULL, NULL, NULL, NULL};
    lt_status status;

    if (!device)
        return false;
    if (ptac_lt_plan_find(&key, plan)) {
        __atomic_fetch_add(&counts.n_found, 1, __ATOMIC_RELAXED);
        return !plan->is_refused;
    }
    if (matmul->only_known)
        return false;
    status = put_in_words(matmul, &w);
    if (!status)
        status = ask(device, &w, &key, plan);
    else
        *plan = (ptac_lt_plan){.is_refused = true};
    drop(&w);
    /* What the library may do another time, as for want of memory, is asked again. */
    if (status == PTAC_LT_OK || status == PTAC_LT_NOT_SUPPORTED ||
        status == PTAC_LT_INVALID_VALUE)
        ptac_lt_plan_keep(&key, plan);
    return !plan->is_refused;
}

ptac_status ptac_lt_run(const ptac_matmul *matmul, const ptac_lt_plan *plan,
                        const ptac_lt_workspace *workspace, void *stream)
{
    static const float one = 1.0f, zero = 0.0f;
    static const int32_t int_one = 1, int_zero = 0;
    const bool is_int = matmul->compute == PTAC_LT_COMPUTE_32I;
    const ptac_lt_device *device = ptac_lt_on(matmul->device);
    words w = {NULL, NULL, NULL, NULL};
    lt_status status = device ? put_in_words(matmul, &w) : PTAC_LT_NOT_INITIALIZED;

    if (!status)
        status = ptac_lt.matmul(device->handle, w.desc,
                                is_int ? (const void *)&int_one : &one, matmul->b.data,
                                w.a, matmul->a.data, w.b,
                                is_int ? (const void *)&int_zero : &zero,
                                matmul->d.data, w.d, matmul->d.data, w.d, &plan->algo,
                                workspace->data, plan->workspace_bytes, stream);
    drop(&w);
    if (!status)
        return PTAC_OK;
    ptac_error_set("a product of %lld x %lld x %lld: %s", (long long)matmul->m,
                   (long long)matmul->k, (long long)matmul->n,
                   ptac_lt.status_name ? ptac_lt.status_name(status) : "no library");
    return PTAC_FAILED;
}
