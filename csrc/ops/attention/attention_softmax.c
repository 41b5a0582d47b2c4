/*
 * attention_softmax.c - sixteen keys at a time. Only rows that need AVX512-BF16 come
 * here.
 */
#if defined(__x86_64__)
#include "ops/attention/attention_softmax.h"

#include "core/host.h"
#include "ops/math/lanes_avx512.h"

#include "ops/math/math_tpl.h"

#include <math.h>
#include <string.h>

#define WITH_BF16                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))

#define INLINE_BF16 WITH_BF16 static inline __attribute__((always_inline))

enum {
    GRAIN = 1 << 13,   /* elements worth a thread */
    EXPONENT = 0x7f80, /* of a number in bfloat16 that is not finite */
};

/* Where one query's numbers lie. */
typedef struct query {
    int64_t batch, head, index;
    int64_t n_seen; /* keys up to the last that it may see */
    const float *shifts, *mask;
    uint16_t *scores;
} query;

static query query_at(const ptac_attention_part *part, int64_t row)
{
    const int64_t head = part->first_head + row / part->n_queries;
    query q = {
        .batch = head / part->heads_a_batch,
        .head = head % part->heads_a_batch,
        .index = row % part->n_queries,
        .n_seen = part->n_keys,
        .shifts = part->key_shifts + row / part->n_queries * part->n_keys,
        .scores = part->scores + row * part->n_keys,
    };
    const int64_t *strides = part->mask_strides;

    if (part->is_causal && q.index < q.n_seen)
        q.n_seen = q.index + 1;
    if (part->mask)
        q.mask = part->mask + q.batch * strides[0] + q.head * strides[1] +
                 q.index * strides[2];
    return q;
}

INLINE vec load_widened(const uint16_t *p, int n)
{
    if (v_all(n))
        return v_widen(_mm256_loadu_si256((const __m256i *)p));
    return v_widen(_mm256_maskz_loadu_epi16(v_first(n), p));
}

/* What is added to scores: nothing, one number for all keys, or one for each. */
typedef enum addend { NOTHING, ONE, EACH } addend;

/* Scores of n keys from the j-th on; where there are fewer, the least of all. */
INLINE vec scores_at(const query *q, vec scale, addend with, int64_t j, int n)
{
    vec score =
        v_fma(scale, load_widened(q->scores + j, n), v_load_first(q->shifts + j, n));

    if (with == ONE)
        score = v_add(score, v_set(*q->mask));
    if (with == EACH)
        score = v_add(score, v_load_first(q->mask + j, n));
    return v_keep_first(score, v_set(-INFINITY), n);
}

INLINE void take_maximum(vec *most, mask *nan, vec score)
{
    *most = v_max(*most, score);
    *nan |= _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
}

/* exp(score - largest) of n lanes, stored as rounded; what it was rounded to. */
INLINE_BF16 vec weight(vec score, vec largest, int n, uint16_t *out)
{
    const vec e = v_exp_bounded(v_sub(score, largest));
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(e);

    v_store_halves(out, rounded, n);
    return v_widen(rounded);
}

INLINE_BF16 float weigh_with(query q, float scale, addend with, float *largest)
{
    const vec factor = v_set(scale);
    vec most = v_set(-INFINITY), sums = v_zero(), top;
    mask nan = 0;

    FOR_LANES(j, n, 0, q.n_seen,
              take_maximum(&most, &nan, scores_at(&q, factor, with, j, n)));
    *largest = nan ? NAN : v_largest(most);
    if (*largest == -INFINITY) {
        memset(q.scores, 0, (size_t)q.n_seen * sizeof *q.scores);
        return 0;
    }
    top = v_set(*largest);
    FOR_LANES(j, n, 0, q.n_seen,
              sums = v_add(sums, weight(scores_at(&q, factor, with, j, n), top, n,
                                        q.scores + j)));
    return v_sum(sums);
}

WITH_BF16 static float weigh_query(const ptac_attention_part *part, const query *q,
                                   float *largest)
{
    if (!q->mask)
        return weigh_with(*q, part->scale, NOTHING, largest);
    if (part->mask_strides[3] == 0)
        return weigh_with(*q, part->scale, ONE, largest);
    return weigh_with(*q, part->scale, EACH, largest);
}

/* The sum of a[i] * b[i]. */
TARGET static float dot(const uint16_t *a, const float *b, int64_t n)
{
    vec sums = v_zero();

    FOR_LANES(i, some, 0, n,
              sums = v_fma(load_widened(a + i, some), v_load_first(b + i, some), sums));
    return v_sum(sums);
}

TARGET bool ptac_attention_is_finite(const uint16_t *values, int64_t n)
{
    const __m512i exponent = _mm512_set1_epi16(EXPONENT);
    __mmask32 others = 0;

    for (int64_t i = 0; i < n; i += 32) {
        const __mmask32 some = n - i < 32 ? (1u << (n - i)) - 1 : ~0u;
        const __m512i bits = _mm512_maskz_loadu_epi16(some, values + i);

        others |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(bits, exponent), exponent);
    }
    return !others;
}

/* n rows of d numbers, stride apart: means, and what is left without them, rounded. */
WITH_BF16 static void centre(const float *in, int64_t stride, int64_t n, int64_t d,
                             float *means, uint16_t *out)
{
    for (int64_t i = 0; i < d; i += LANES) {
        const int some = at_most_lanes(d - i);
        vec sums = v_zero();

        for (int64_t row = 0; row < n; row++)
            sums = v_add(sums, v_load_first(in + row * stride + i, some));
        v_store_first(means + i, v_div(sums, v_set((float)n)), some);
    }
    for (int64_t row = 0; row < n; row++)
        FOR_LANES(i, some, 0, d,
                  v_store_halves(out + row * d + i,
                                 (__m256i)_mm512_cvtneps_pbh(
                                     v_sub(v_load_first(in + row * stride + i, some),
                                           v_load_first(means + i, some))),
                                 some));
}

TARGET static void scale_row(const uint16_t *in, float factor, float *out, int64_t n)
{
    const vec by = v_set(factor);

    FOR_LANES(i, some, 0, n,
              v_store_first(out + i, v_mul(by, load_widened(in + i, some)), some));
}

typedef struct centre_job {
    const ptac_view *in;
    float *means;
    uint16_t *centred;
    bool has_failed;
} centre_job;

static void centre_some(int64_t begin, int64_t end, void *context)
{
    centre_job *job = context;
    const int64_t *sizes = job->in->sizes, *strides = job->in->strides;
    const int64_t n = sizes[2], d = sizes[3];

    for (int64_t head = begin; head < end; head++) {
        const float *in = (const float *)job->in->data + head / sizes[1] * strides[0] +
                          head % sizes[1] * strides[1];
        float *means = job->means + head * d;

        centre(in, strides[2], n, d, means, job->centred + head * n * d);
        for (int64_t i = 0; i < d; i++)
            if (!isfinite(means[i]))
                __atomic_store_n(&job->has_failed, true, __ATOMIC_RELAXED);
    }
}

bool ptac_attention_centre(const ptac_view *in, float *means, uint16_t *centred)
{
    const int64_t *sizes = in->sizes;
    centre_job job = {in, means, centred, false};

    ptac_parallel_for(0, sizes[0] * sizes[1], GRAIN / (sizes[2] * sizes[3]) + 1,
                      centre_some, &job);
    return !job.has_failed;
}

static void shift_some(int64_t begin, int64_t end, void *context)
{
    const ptac_attention_means *m = context;
    const int64_t n = m->n_keys, d = m->d;

    for (int64_t head = begin; head < end; head++) {
        const float *of_queries = m->of_queries + head * d;
        const float *of_keys = m->of_keys + head * d;
        float both = 0;

        for (int64_t i = 0; i < d; i++)
            both += of_queries[i] * of_keys[i];
        m->shifts[head] = m->scale * both;
        for (int64_t j = head * n; j < (head + 1) * n; j++)
            m->key_shifts[j] = m->scale * dot(m->keys + j * d, of_queries, d);
    }
}

void ptac_attention_shift(const ptac_attention_means *means)
{
    ptac_parallel_for(0, means->n_heads, GRAIN / (means->n_keys * means->d) + 1,
                      shift_some, (void *)means);
}

static void weigh_some(int64_t begin, int64_t end, void *context)
{
    const ptac_attention_part *part = context;
    const int64_t *strides = part->log_sums_strides;

    for (int64_t row = begin; row < end; row++) {
        const int64_t head = row / part->n_queries;
        const query q = query_at(part, row);
        float largest;
        const float sum = weigh_query(part, &q, &largest);

        for (int64_t j = q.n_seen; j < part->n_keys; j++)
            q.scores[j] = 0;
        part->inverses[row] = sum == 0 ? 0 : 1 / sum;
        part->log_sums[q.batch * strides[0] + q.head * strides[1] +
                       q.index * strides[2]] =
            largest + logf(sum) + part->shifts[head] +
            part->scale * dot(part->queries + row * part->d,
                              part->key_means + head * part->d, part->d);
    }
}

static void finish_some(int64_t begin, int64_t end, void *context)
{
    const ptac_attention_part *part = context;
    const int64_t *strides = part->results_strides;

    for (int64_t row = begin; row < end; row++) {
        const query q = query_at(part, row);

        scale_row(part->sums_of_values + row * part->d, part->inverses[row],
                  part->results + q.batch * strides[0] + q.head * strides[1] +
                      q.index * strides[2],
                  part->d);
    }
}

void ptac_attention_weigh(const ptac_attention_part *part)
{
    ptac_parallel_for(0, part->n_heads * part->n_queries, GRAIN / part->n_keys + 1,
                      weigh_some, (void *)part);
}

void ptac_attention_finish(const ptac_attention_part *part)
{
    ptac_parallel_for(0, part->n_heads * part->n_queries, GRAIN / part->d + 1,
                      finish_some, (void *)part);
}
#endif
