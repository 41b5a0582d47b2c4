/*
 * weights.c - sixteen keys at a time. Only rows that need AVX512-BF16 come here, so on
 * x86-64 there is AVX-512.
 */
#include "ops/attention/weights.h"

#include "core/host.h"

#include <math.h>
#include <string.h>

enum {
    GRAIN = 1 << 13, /* elements worth a thread */
};

/* Where one query's numbers lie. */
typedef struct query {
    int64_t batch, head, index;
    int64_t n_seen; /* keys up to the last that it may see */
    const float *mask;
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

#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/math/math_tpl.h"

#define WITH_BF16                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))

INLINE vec widened(__m256i values)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

INLINE vec load_widened(const uint16_t *p, int n)
{
    if (__builtin_constant_p(n) && n == LANES)
        return widened(_mm256_loadu_si256((const __m256i *)p));
    return widened(_mm256_maskz_loadu_epi16(v_first(n), p));
}

/* What is added to scores: nothing, one number for all keys, or one for each. */
typedef enum addend { NOTHING, ONE, EACH } addend;

/* Scores of n keys from the j-th on; where there are fewer, the least of all. */
INLINE vec scores_at(const query *q, vec scale, addend with, int64_t j, int n)
{
    vec score = v_mul(scale, load_widened(q->scores + j, n));

    if (with == ONE)
        score = v_add(score, v_set(*q->mask));
    if (with == EACH)
        score = v_add(score, v_load_first(q->mask + j, n));
    return v_keep_first(score, v_set(-INFINITY), n);
}

typedef struct maximum {
    vec most;
    mask nan;
} maximum;

INLINE void take_maximum(maximum *m, vec score)
{
    m->most = v_max(m->most, score);
    m->nan |= _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
}

WITH_BF16 static inline __attribute__((always_inline)) vec weight(vec score,
                                                                  vec largest,
                                                                  __m256i *rounded)
{
    const vec e = v_exp_bounded(v_sub(score, largest));

    *rounded = (__m256i)_mm512_cvtneps_pbh(e);
    return widened(*rounded);
}

WITH_BF16 static inline __attribute__((always_inline)) float weigh_with(query q,
                                                                        float scale,
                                                                        addend with,
                                                                        float *largest)
{
    const int64_t whole = q.n_seen - q.n_seen % LANES;
    const int rest = (int)(q.n_seen - whole);
    maximum m = {v_set(-INFINITY), 0};
    vec factor = v_set(scale), sums = v_zero();
    __m256i rounded;

    for (int64_t j = 0; j < whole; j += LANES)
        take_maximum(&m, scores_at(&q, factor, with, j, LANES));
    if (rest)
        take_maximum(&m, scores_at(&q, factor, with, whole, rest));
    *largest = m.nan ? NAN : v_largest(m.most);
    if (*largest == -INFINITY) {
        memset(q.scores, 0, (size_t)q.n_seen * sizeof *q.scores);
        return 0;
    }
    for (int64_t j = 0; j < whole; j += LANES) {
        const vec score = scores_at(&q, factor, with, j, LANES);

        sums = v_add(sums, weight(score, v_set(*largest), &rounded));
        _mm256_storeu_si256((__m256i *)(q.scores + j), rounded);
    }
    if (rest) {
        const vec score = scores_at(&q, factor, with, whole, rest);

        sums = v_add(sums, weight(score, v_set(*largest), &rounded));
        _mm256_mask_storeu_epi16(q.scores + whole, v_first(rest), rounded);
    }
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

TARGET static void scale_row(const uint16_t *in, float factor, float *out, int64_t n)
{
    const vec by = v_set(factor);
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        v_store(out + i, v_mul(by, load_widened(in + i, LANES)));
    if (i < n)
        v_store_first(out + i, v_mul(by, load_widened(in + i, (int)(n - i))),
                      (int)(n - i));
}
#else
#include "ops/pool/bf16.h"

static float score_at(const ptac_attention_part *part, const query *q, int64_t j)
{
    const float score = part->scale * bf16_to_f32(q->scores[j]);

    return q->mask ? score + q->mask[j * part->mask_strides[3]] : score;
}

static float weigh_query(const ptac_attention_part *part, const query *q,
                         float *largest)
{
    float sum = 0;

    *largest = -INFINITY;
    for (int64_t j = 0; j < q->n_seen; j++)
        *largest = fmaxf(*largest, score_at(part, q, j));
    for (int64_t j = 0; j < q->n_seen; j++) {
        const float e =
            *largest == -INFINITY ? 0 : expf(score_at(part, q, j) - *largest);

        q->scores[j] = bf16_from_f32(e);
        sum += bf16_to_f32(q->scores[j]);
    }
    return sum;
}

static void scale_row(const uint16_t *in, float factor, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = factor * bf16_to_f32(in[i]);
}
#endif

static void weigh_some(int64_t begin, int64_t end, void *context)
{
    const ptac_attention_part *part = context;
    const int64_t *strides = part->log_sums_strides;

    for (int64_t row = begin; row < end; row++) {
        const query q = query_at(part, row);
        float largest;
        const float sum = weigh_query(part, &q, &largest);

        for (int64_t j = q.n_seen; j < part->n_keys; j++)
            q.scores[j] = 0;
        part->inverses[row] = sum == 0 ? 0 : 1 / sum;
        part->log_sums[q.batch * strides[0] + q.head * strides[1] +
                       q.index * strides[2]] = largest + logf(sum);
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
