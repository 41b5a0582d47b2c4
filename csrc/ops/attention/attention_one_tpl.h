/*
 * attention_one_tpl.h - a query at a time, for as few as decoding has.
 *
 * Lanes are neighbouring numbers of a key, and then neighbouring keys: keys and values
 * are read once, in the order in which they lie.
 */
enum {
    ONE_VECTORS = 4, /* of results that are summed at once */
};

/* Where a thread works: the query, times scale, and the scores of all keys. */
typedef struct one_space {
    float *q, *scores;
} one_space;

static size_t one_floats(const ptac_attention *is)
{
    return (size_t)(ptac_parts(is->d, LANES) + ptac_parts(is->n_keys, LANES) + 1) *
           LANES;
}

/* sums[i] += some numbers of the i-th of four keys times those of the query */
INLINE void add_to_four(vec sums[4], const float *q, const float *k, int64_t row,
                        int some)
{
    const vec query = v_load(q);

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sums[i] = v_fma(v_load_first(k + i * row, some), query, sums[i]);
}

/* Products of four keys with the query. */
INLINE __m128 four_scores(const float *q, const float *k, int64_t row, int64_t d)
{
    vec sums[4] = {v_zero(), v_zero(), v_zero(), v_zero()};

    FOR_LANES(c, some, 0, d, add_to_four(sums, q + c, k + c, row, some));
    return v_sums_of_four(sums);
}

INLINE float one_score(const float *q, const float *k, int64_t d)
{
    vec sum = v_zero();

    FOR_LANES(c, some, 0, d,
              sum = v_fma(v_load_first(k + c, some), v_load(q + c), sum));
    return v_sum(sum);
}

INLINE void one_scores(const ptac_attention_job *job, const float *k,
                       const one_space *s, int64_t n)
{
    const int64_t d = job->is.d, row = job->k.row;
    int64_t j = 0;

    for (; j + 4 <= n; j += 4)
        _mm_storeu_ps(s->scores + j, four_scores(s->q, k + j * row, row, d));
    for (; j < n; j++)
        s->scores[j] = one_score(s->q, k + j * row, d);
}

/* Scores become weights; returns what they sum up to. */
INLINE float one_weigh(float *scores, const float *mask, int64_t mask_key, int64_t n,
                       float *log_sum)
{
    vec most = v_set(-INFINITY), total = v_zero();
    float largest, sum;

    if (mask)
        for (int64_t j = 0; j < n; j++)
            scores[j] += mask[j * mask_key];
    FOR_LANES(j, some, 0, n,
              most = v_max(most, v_keep_first(v_load_first(scores + j, some),
                                              v_set(-INFINITY), some)));
    largest = v_largest(most);
    if (largest == -INFINITY)
        largest = 0;
    FOR_LANES(j, some, 0, n, {
        const vec score = v_sub(v_load_first(scores + j, some), v_set(largest));
        const vec weight = v_weight(score);

        v_store_first(scores + j, weight, some);
        total = v_add(total, v_keep_first(weight, v_zero(), some));
    });
    sum = v_sum(total);
    sum = sum == 0 ? 1 : sum;
    *log_sum = largest + logf(sum);
    return sum;
}

/* n_vectors of results, the last with n_last lanes; n_vectors is a constant. */
INLINE vec one_sums(const float *weights, const float *v, int64_t row, int64_t n,
                    int n_vectors, int n_last, float factor, float *y)
{
    vec sums[2][ONE_VECTORS], odd = v_zero();
    int64_t j = 0;

#pragma GCC unroll 4
    for (int i = 0; i < n_vectors; i++)
        sums[0][i] = sums[1][i] = v_zero();
    for (; j + 2 <= n; j += 2) {
#pragma GCC unroll 2
        for (int more = 0; more < 2; more++) {
            const float *at = v + (j + more) * row;
            const vec weight = v_set(weights[j + more]);

#pragma GCC unroll 4
            for (int i = 0; i < n_vectors; i++)
                sums[more][i] =
                    v_fma(weight,
                          i < n_vectors - 1 ? v_load(at + i * LANES)
                                            : v_load_first(at + i * LANES, n_last),
                          sums[more][i]);
        }
    }
    if (j < n)
#pragma GCC unroll 4
        for (int i = 0; i < n_vectors; i++)
            sums[0][i] = v_fma(v_set(weights[j]),
                               v_load_first(v + j * row + i * LANES,
                                            i < n_vectors - 1 ? LANES : n_last),
                               sums[0][i]);
#pragma GCC unroll 4
    for (int i = 0; i < n_vectors; i++) {
        const vec sum = v_mul(v_add(sums[0][i], sums[1][i]), v_set(factor));

        odd = v_fma(sum, v_zero(), odd);
        v_store_first(y + i * LANES, sum, i < n_vectors - 1 ? LANES : n_last);
    }
    return odd;
}

INLINE bool one_results(const ptac_attention_job *job, const float *weights,
                        const float *v, int64_t n, float factor, float *y)
{
    const int64_t d = job->is.d, row = job->v.row;
    vec odd = v_zero();

    for (int64_t c = 0; c < d; c += ONE_VECTORS * LANES) {
        const int64_t left = d - c;
        const int n_vectors =
            left < ONE_VECTORS * LANES ? (int)ptac_parts(left, LANES) : ONE_VECTORS;
        const int n_last = at_most_lanes(left - (n_vectors - 1) * LANES);

#define SUMS(n_constant)                                                               \
    case n_constant:                                                                   \
        odd = v_add(                                                                   \
            odd, one_sums(weights, v + c, row, n, n_constant, n_last, factor, y + c)); \
        break
        switch (n_vectors) {
            SUMS(1);
            SUMS(2);
            SUMS(3);
        default:
            SUMS(4);
        }
#undef SUMS
    }
    return v_sum(odd) == 0;
}

/* The i-th query of a head; false where a result is not finite. */
INLINE bool attend_one(const ptac_attention_job *job, int64_t head, int64_t i,
                       const one_space *s)
{
    const ptac_attention *is = &job->is;
    const int64_t of_keys = ptac_attention_key_head(is, head);
    const int64_t n = ptac_attention_n_seen(is, i);
    const float *q = ptac_attention_at(&job->q, is->heads, head) + i * job->q.row;
    const float *mask = ptac_attention_mask_at(&job->mask, is->heads, head);
    float *log_sum = ptac_attention_at(&job->log_sums, is->heads, head);
    float total;

    FOR_LANES(c, some, 0, is->d,
              v_store(s->q + c, v_mul(v_set(is->scale), v_load_first(q + c, some))));
    one_scores(job, ptac_attention_at(&job->k, is->key_heads, of_keys), s, n);
    total = one_weigh(s->scores, mask ? mask + i * job->mask.query : NULL,
                      job->mask.key, n, log_sum + i * job->log_sums.row);
    return one_results(job, s->scores,
                       ptac_attention_at(&job->v, is->key_heads, of_keys), n, 1 / total,
                       ptac_attention_at(&job->y, is->heads, head) + i * job->y.row);
}

TARGET static void forward_ones(int64_t begin, int64_t end, void *context)
{
    ptac_attention_job *job = context;
    const ptac_attention *is = &job->is;
    float *memory = ptac_scratch_take(one_floats(is) * sizeof *memory);

    if (!memory) {
        ptac_attention_fail(job, PTAC_NO_MEMORY);
        return;
    }

    const one_space space = {memory, memory + ptac_parts(is->d, LANES) * LANES};

    for (int64_t row = begin; row < end; row++)
        if (!attend_one(job, row / is->n_queries, row % is->n_queries, &space))
            ptac_attention_fail(job, PTAC_UNSUITED);
    ptac_scratch_give(memory);
}

static void forward_queries(ptac_attention_job *job)
{
    const ptac_attention *is = &job->is;

    ptac_parallel_for(0, is->batch * is->heads * is->n_queries,
                      FORWARD_WORK / (4 * is->n_keys * is->d) + 1, forward_ones, job);
}
