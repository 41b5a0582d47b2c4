/*
 * product_stream_tpl.h - products of very few rows with a matrix that lies row by row.
 *
 * Such a b is larger than caches and read once, at the memory's speed: eight of its
 * rows at a time, side by side, as far as the sums of these columns lie in the first
 * cache. Threads share the columns.
 */
#include "core/host.h"
#include "ops/product/product.h"

enum {
    STREAM_TERMS = 8,    /* rows of b that are passed at once */
    STREAM_BLOCK = 256,  /* terms that are added up by themselves */
    STREAM_SUMS = 2048,  /* at hand, of all rows; */
    STREAM_LEAST = 4096, /* bytes of a row of b that a thread should find */
};

/* Columns [column, column + n) of y. */
typedef struct stream_part {
    const ptac_product *product;
    int64_t column, n;
} stream_part;

/* count columns of n_terms rows of b, times their factors in n_rows rows of a. */
INLINE void stream_step(const float *b, int64_t b_term,
                        float factors[PTAC_STREAM_ROWS][STREAM_TERMS], float *sums,
                        int64_t n_sums, int count, int n_rows, int n_terms)
{
    vec rows[STREAM_TERMS];

#pragma GCC unroll 8
    for (int i = 0; i < n_terms; i++)
        rows[i] = v_load_first(b + i * b_term, count);
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
        vec sum = v_load_first(sums + r * n_sums, count);

#pragma GCC unroll 8
        for (int i = 0; i < n_terms; i++)
            sum = v_fma(v_set(factors[r][i]), rows[i], sum);
        v_store_first(sums + r * n_sums, sum, count);
    }
}

/* n_terms terms from k on, added to sums. n_rows and n_terms are constants. */
INLINE void stream_terms(const stream_part *part, int64_t k, float *sums, int n_rows,
                         int n_terms)
{
    const ptac_product *p = part->product;
    const float *b = p->b + k * p->b_term + part->column;
    float factors[PTAC_STREAM_ROWS][STREAM_TERMS];

    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n_terms; i++)
            factors[r][i] = p->a[r * p->a_row + (k + i) * p->a_term];
    FOR_LANES(j, count, 0, part->n,
              stream_step(b + j, p->b_term, factors, sums + j, part->n, count, n_rows,
                          n_terms));
}

INLINE void stream_store(const ptac_product *p, float *y, const float *bias, vec sum,
                         int64_t begin, int64_t end, int count)
{
    if (begin > 0)
        sum = v_add(v_load_first(y, count), sum);
    if (end == p->k) {
        sum = v_mul(sum, v_set(p->alpha));
        if (bias)
            sum = v_add(sum, v_mul(v_load_first(bias, count), v_set(p->beta)));
    }
    v_store_first(y, sum, count);
}

/* Terms [begin, end). */
INLINE void stream_block(const stream_part *part, int64_t begin, int64_t end,
                         int n_rows)
{
    const ptac_product *p = part->product;
    _Alignas(64) float sums[STREAM_SUMS];
    int64_t k = begin;

    for (int64_t i = 0; i < n_rows * part->n; i++)
        sums[i] = 0;
    for (; k + STREAM_TERMS <= end; k += STREAM_TERMS)
        stream_terms(part, k, sums, n_rows, STREAM_TERMS);
    for (; k < end; k++)
        stream_terms(part, k, sums, n_rows, 1);
    for (int r = 0; r < n_rows; r++) {
        const float *sum = sums + r * part->n;
        const float *bias = p->bias ? p->bias + r * p->bias_row + part->column : NULL;
        float *y = p->y + r * p->y_row + part->column;

        FOR_LANES(j, count, 0, part->n,
                  stream_store(p, y + j, bias ? bias + j : NULL,
                               v_load_first(sum + j, count), begin, end, count));
    }
}

typedef void (*stream_fn)(const stream_part *part, int64_t begin, int64_t end);

#define STREAM_OF(n)                                                                   \
    TARGET static void stream_rows_##n(const stream_part *part, int64_t begin,         \
                                       int64_t end)                                    \
    {                                                                                  \
        stream_block(part, begin, end, n);                                             \
    }
STREAM_OF(1)
STREAM_OF(2)
STREAM_OF(3)
STREAM_OF(4)
STREAM_OF(5)
STREAM_OF(6)
STREAM_OF(7)
STREAM_OF(8)

static const stream_fn stream_rows[PTAC_STREAM_ROWS + 1] = {
    NULL,          stream_rows_1, stream_rows_2, stream_rows_3, stream_rows_4,
    stream_rows_5, stream_rows_6, stream_rows_7, stream_rows_8,
};

typedef struct stream_job {
    const ptac_product *product;
    int64_t n_columns; /* of a part */
} stream_job;

static void stream_parts(int64_t begin, int64_t end, void *context)
{
    const stream_job *job = context;
    const ptac_product *p = job->product;

    for (int64_t i = begin; i < end; i++) {
        stream_part part = {p, i * job->n_columns, 0};

        part.n = ptac_least(p->n - part.column, job->n_columns);
        for (int64_t k = 0; k < p->k; k += STREAM_BLOCK)
            stream_rows[p->m](&part, k, ptac_least(p->k, k + STREAM_BLOCK));
    }
}

/* Parts of equal size, whole vectors wide, one for each thread at least. */
static ptac_status product_stream(const ptac_product *p)
{
    const int64_t most = STREAM_SUMS / p->m / LANES * LANES;
    const int64_t least = STREAM_LEAST / (int64_t)sizeof(float);
    const int64_t n_threads = ptac_the_host.n_threads();
    int64_t n_parts = ptac_parts(p->n, most);
    stream_job job = {p, 0};

    if (n_parts < n_threads)
        n_parts = ptac_least(n_threads, ptac_parts(p->n, least));
    job.n_columns = ptac_parts(ptac_parts(p->n, n_parts), LANES) * LANES;
    ptac_parallel_for(0, ptac_parts(p->n, job.n_columns),
                      PTAC_PRODUCT_WORK / (p->m * p->k * job.n_columns) + 1,
                      stream_parts, &job);
    return PTAC_OK;
}
