/*
 * attention_products.c - attention without gradients as two products of bfloat16 by
 * oneDNN, with our own weights between them.
 *
 * Torch's kernel goes through keys in blocks, so that scores never lie in memory as a
 * whole, and multiplies small tiles. Here a few heads at a time have all their scores
 * in cache, and each product is one call: measured on Zen 4, 1.5 to 3 times as fast
 * as torch's kernel in either precision. A gradient would need scores again that are
 * rounded as these were, so that calls which may have one are left to others.
 */
#if defined(__x86_64__)
#include "bind/torch/rows/attention.h"
#include "bind/torch/rows/bf16.h"
#include "ops/attention/attention_softmax.h"
#include "ops/bf16/cast.h"

#include <string.h>

enum {
    PART_BYTES = 1 << 20,  /* of scores a thread, which its cache should hold */
    MOST_BYTES = 1 << 26,  /* of all scores at hand, but for those of one head */
    MOST_SCORES = 1 << 24, /* of one head */
};

/* Tensors that a call makes: of all heads, or as many as the largest part has. */
enum {
    Q, /* [heads, n, d] in bfloat16 */
    K,
    V,
    SCORES, /* of a part */
    VALUES,
    N_NARROW,
    INVERSES = N_NARROW,
    QUERY_MEANS,
    KEY_MEANS,
    KEY_SHIFTS,
    SHIFTS,
    N_TEMPORARY,
    RESULT = N_TEMPORARY,
    LOG_SUMS,
    N_MADE,
};

typedef struct workspace {
    at_tensor made[N_MADE];
    void *data[N_MADE];
} workspace;

static void drop_workspace(workspace *w)
{
    for (int i = 0; i < N_MADE; i++)
        at_drop_tensor(&w->made[i]);
}

#define AT_OWNED_WORKSPACE __attribute__((cleanup(drop_workspace)))

static at_error make(workspace *w, int which, ptac_dtype dtype, int n_dims,
                     const int64_t *sizes, const int64_t *strides)
{
    ptac_view view = {NULL};
    const at_error error =
        ptac_new(dtype, n_dims, sizes, strides, &w->made[which], &view);

    w->data[which] = view.data;
    return error;
}

/* All but the results; heads of a part. */
static at_error make_temporary(workspace *w, const ptac_attention *p, int64_t heads)
{
    const int64_t all = p->batch * p->heads, d = p->d;
    const int64_t n_q = p->n_queries, n_k = p->n_keys;
    const int64_t sizes[N_TEMPORARY][3] = {
        [Q] = {all, n_q, d},          [K] = {all, n_k, d},
        [V] = {all, n_k, d},          [SCORES] = {heads, n_q, n_k},
        [VALUES] = {heads, n_q, d},   [INVERSES] = {heads, n_q, 1},
        [QUERY_MEANS] = {all, d, 1},  [KEY_MEANS] = {all, d, 1},
        [KEY_SHIFTS] = {all, n_k, 1}, [SHIFTS] = {all, 1, 1},
    };
    at_error error = 0;

    for (int i = 0; i < N_TEMPORARY && !error; i++)
        error = make(w, i, i < N_NARROW ? PTAC_BF16 : PTAC_F32, 3, sizes[i], NULL);
    return error;
}

static bool is_readable_mask(at_tensor mask)
{
    ptac_view view;

    ptac_view_of(mask, &view);
    return view.sizes[view.n_dims - 1] == 1 || view.strides[view.n_dims - 1] == 1;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_attention_call *p = call->params;
    const ptac_attention_tensors *a = &p->host;

    const ptac_reason why = ptac_attention_copies_reason(call);

    if (why)
        return why;
    if (!T.aoti_torch_cpu_bmm_out)
        return PTAC_ARGUMENT;
    if (ptac_bf16_wants_grad(a->tensors, 3))
        return PTAC_GRAD;
    if (p->is.n_queries > MOST_SCORES / p->is.n_keys)
        return PTAC_SHAPE;
    return a->mask && !is_readable_mask(a->mask) ? PTAC_LAYOUT : PTAC_TAKE;
}

/* Results with the strides that torch's kernel gives them. */
static at_error make_results(const ptac_view *query, workspace *w,
                             ptac_attention_part *part)
{
    const int64_t *q = query->sizes;
    int64_t strides[4], sum_strides[4];

    ptac_attention_result_strides(query, strides, sum_strides);
    if (make(w, RESULT, PTAC_F32, 4, q, strides) ||
        make(w, LOG_SUMS, PTAC_F32, 3, q, sum_strides))
        return 1;
    part->results = w->data[RESULT];
    part->log_sums = w->data[LOG_SUMS];
    memcpy(part->results_strides, strides, sizeof part->results_strides);
    memcpy(part->log_sums_strides, sum_strides, sizeof part->log_sums_strides);
    return 0;
}

/* By which strides a mask of 2 or 4 dimensions is read for every score. */
static void read_mask(at_tensor mask, ptac_attention_part *part)
{
    ptac_view view;

    ptac_view_of(mask, &view);
    part->mask = view.data;
    for (int i = 0; i < view.n_dims; i++)
        part->mask_strides[4 - view.n_dims + i] =
            view.sizes[i] == 1 ? 0 : view.strides[i];
}

/* Heads [first, first + n) of [heads, rows, columns], or each of them transposed. */
static at_error some_heads(at_tensor all, int64_t first, const int64_t sizes[3],
                           bool is_transposed, at_tensor *made)
{
    const int64_t n = sizes[is_transposed ? 2 : 1], d = sizes[is_transposed ? 1 : 2];
    const int64_t strides[3] = {n * d, is_transposed ? 1 : d, is_transposed ? d : 1};

    return T.aoti_torch__reinterpret_tensor(all, 3, sizes, strides, first * n * d,
                                            made);
}

/* out[i] = a[i] b[i] for the part's heads; a begins at head a_first, b at b_first. */
typedef struct product {
    at_tensor a, b, out;
    int64_t a_first, b_first;
    int64_t m, k, n;
    bool is_transposed; /* b */
} product;

static at_error multiply(const product *p, int64_t heads)
{
    const int64_t a_sizes[3] = {heads, p->m, p->k}, b_sizes[3] = {heads, p->k, p->n};
    const int64_t out_sizes[3] = {heads, p->m, p->n};
    AT_OWNED at_tensor a = NULL, b = NULL, out = NULL;

    return some_heads(p->a, p->a_first, a_sizes, false, &a) ||
           some_heads(p->b, p->b_first, b_sizes, p->is_transposed, &b) ||
           some_heads(p->out, 0, out_sizes, false, &out) ||
           T.aoti_torch_cpu_bmm_out(out, a, b);
}

static at_error attend(const workspace *w, ptac_attention_part *part)
{
    const int64_t n_q = part->n_queries, n_k = part->n_keys, d = part->d;
    const int64_t first = part->first_head;
    const at_tensor *made = w->made;
    const product scores = {
        made[Q], made[K], made[SCORES], first, first, n_q, d, n_k, true,
    };
    const product values = {
        made[SCORES], made[V], made[VALUES], 0, first, n_q, n_k, d, false,
    };

    if (multiply(&scores, part->n_heads))
        return 1;
    part->queries = (uint16_t *)w->data[Q] + first * n_q * d;
    part->key_means = (float *)w->data[KEY_MEANS] + first * d;
    part->key_shifts = (float *)w->data[KEY_SHIFTS] + first * n_k;
    part->shifts = (float *)w->data[SHIFTS] + first;
    ptac_attention_weigh(part);
    if (multiply(&values, part->n_heads))
        return 1;
    ptac_attention_finish(part);
    return 0;
}

static int64_t heads_a_part(const ptac_attention *p, int n_threads)
{
    const int64_t head_bytes = p->n_queries * p->n_keys * (int64_t)sizeof(uint16_t);
    const int64_t fitting = (int64_t)n_threads * PART_BYTES / head_bytes;
    const int64_t most = MOST_BYTES / head_bytes;
    int64_t n = fitting > n_threads ? fitting : n_threads;

    n = n < most ? n : most;
    n = ptac_least(n, p->batch * p->heads);
    return n > 1 ? n : 1;
}

/*
 * Queries and keys without their means, and values, where all are finite: in a product
 * what is not would reach others.
 */
static ptac_status narrow_all(const ptac_call *call, float scale, const workspace *w)
{
    const ptac_attention_call *params = call->params;
    const ptac_attention *p = &params->is;
    const ptac_view *in = call->inputs;
    const int64_t heads = p->batch * p->heads, d = p->d;
    void *const *data = w->data;

    ptac_bf16_narrow_view(&in[PTAC_ATTENTION_VALUE], data[V]);
    if (!ptac_attention_centre(&in[PTAC_ATTENTION_QUERY], data[QUERY_MEANS], data[Q]) ||
        !ptac_attention_centre(&in[PTAC_ATTENTION_KEY], data[KEY_MEANS], data[K]) ||
        !ptac_attention_is_finite(data[V], heads * p->n_keys * d))
        return PTAC_UNSUITED;

    const ptac_attention_means means = {
        heads,           p->n_keys,        d,
        scale,           data[K],          data[QUERY_MEANS],
        data[KEY_MEANS], data[KEY_SHIFTS], data[SHIFTS],
    };

    ptac_attention_shift(&means);
    return PTAC_OK;
}

static ptac_status run(const ptac_call *call)
{
    const ptac_attention_call *params = call->params;
    const ptac_attention *p = &params->is;
    const ptac_view *query = &call->inputs[PTAC_ATTENTION_QUERY];
    const ptac_attention_tensors *a = &params->host;
    const int64_t all = p->batch * p->heads;
    const int64_t heads = heads_a_part(p, call->n_threads);
    AT_OWNED_WORKSPACE workspace w = {.made = {NULL}};
    ptac_attention_part part = {
        .heads_a_batch = query->sizes[1],
        .n_queries = p->n_queries,
        .n_keys = p->n_keys,
        .d = p->d,
        .scale = p->scale,
        .is_causal = p->is_causal,
    };
    ptac_status status;

    if (make_temporary(&w, p, heads) || make_results(query, &w, &part))
        return PTAC_NO_MEMORY;
    part.scores = w.data[SCORES];
    part.sums_of_values = w.data[VALUES];
    part.inverses = w.data[INVERSES];
    status = narrow_all(call, part.scale, &w);
    if (status)
        return status;
    if (a->mask)
        read_mask(a->mask, &part);
    for (; part.first_head < all; part.first_head += heads) {
        const int64_t left = all - part.first_head;

        part.n_heads = left < heads ? left : heads;
        if (attend(&w, &part))
            return PTAC_UNSUPPORTED;
    }
    ptac_bf16_sign(w.made[LOG_SUMS]); /* for who computes a gradient all the same */
    a->results[0] = at_give(&w.made[RESULT]);
    a->results[1] = at_give(&w.made[LOG_SUMS]);
    return PTAC_OK;
}

PTAC_BF16_ROW(ATTENTION, "bf16_products", accepts, run)
#endif
