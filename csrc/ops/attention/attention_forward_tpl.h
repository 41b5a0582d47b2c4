/*
 * attention_forward_tpl.h - blocks of queries through the keys.
 */
#include "core/host.h"
#include "core/scratch.h"

enum {
    FORWARD_KEYS = 128,     /* of a block: their scores stay in the first cache */
    FORWARD_WORK = 1 << 17, /* multiply-adds that are worth a thread */
};

/* Where a thread works; terms or keys of BLOCK_LANES. */
typedef struct forward_space {
    float *q, *sums;             /* [d] */
    float *scores, *mask, *kept; /* [FORWARD_KEYS] */
    float *most, *total;         /* [BLOCK_LANES] */
    strips values;
} forward_space;

static size_t forward_floats(const ptac_attention *is)
{
    return (size_t)((2 * is->d + 3 * FORWARD_KEYS + 2) * BLOCK_LANES +
                    strips_floats(is));
}

static forward_space forward_space_in(float *memory, const ptac_attention *is)
{
    forward_space s = {.q = memory};

    s.sums = s.q + is->d * BLOCK_LANES;
    s.scores = s.sums + is->d * BLOCK_LANES;
    s.mask = s.scores + FORWARD_KEYS * BLOCK_LANES;
    s.kept = s.mask + FORWARD_KEYS * BLOCK_LANES;
    s.most = s.kept + FORWARD_KEYS * BLOCK_LANES;
    s.total = s.most + BLOCK_LANES;
    if (strips_floats(is))
        s.values.laid_out = s.total + BLOCK_LANES;
    return s;
}

/* Scores become weights; lanes whose keys were all masked stay at zero. */
INLINE void weigh(const forward_space *s, const block *q, const keys *k, int64_t d)
{
    for (int lane = 0; lane < q->n_vectors * LANES; lane += LANES) {
        float *scores = s->scores + lane;
        const vec before = v_load(s->most + lane);
        vec most = before;
        const vec none = v_set(-INFINITY);
        vec from, shrinks, total;

        complete_scores(k, scores, lane);
        for (int j = 0; j < k->n; j++)
            most = v_max(most, v_load(scores + j * BLOCK_LANES));
        from = v_pick(v_at_most(most, none), v_zero(), most);
        shrinks = v_weight(v_sub(before, from)); /* 0 of none before */
        total = v_mul(v_load(s->total + lane), shrinks);
        for (int j = 0; j < k->n; j++) {
            const vec weight = v_weight(v_sub(v_load(scores + j * BLOCK_LANES), from));

            total = v_add(total, weight);
            v_store(scores + j * BLOCK_LANES, weight);
        }
        drop(k, scores, lane);
        v_store(s->most + lane, most);
        v_store(s->total + lane, total);
        if (k->first == 0)
            continue;
        for (int64_t c = 0; c < d; c++) {
            float *sum = s->sums + c * BLOCK_LANES + lane;

            v_store(sum, v_mul(v_load(sum), shrinks));
        }
    }
}

/* Totals become the factors of results. */
INLINE void finish_totals(const ptac_attention_job *job, const forward_space *s,
                          const block *q)
{
    float *to = ptac_attention_at(&job->log_sums, job->is.heads, q->head) +
                q->first * job->log_sums.row;

    for (int lane = 0; lane < q->n_vectors * LANES; lane += LANES) {
        const vec most = v_load(s->most + lane), total = v_load(s->total + lane);
        const vec one = v_pick(v_at_most(total, v_zero()), v_set(1), total);
        const vec from = v_pick(v_at_most(most, v_set(-INFINITY)), v_zero(), most);

        v_store(s->most + lane, v_add(from, v_log(one)));
        v_store(s->total + lane, v_div(v_set(1), one));
    }
    for (int i = 0; i < q->n; i++)
        to[i * job->log_sums.row] = s->most[i];
}

/* One block; false where a result is not finite. */
INLINE bool attend_block(const ptac_attention_job *job, const block *q,
                         forward_space *s)
{
    const ptac_attention *is = &job->is;
    const float *of_k = ptac_attention_at(&job->k, is->key_heads, q->of_keys);
    const float *of_v = ptac_attention_at(&job->v, is->key_heads, q->of_keys);
    const int64_t n_seen = ptac_attention_n_seen(is, q->first + q->n - 1);
    vec odd = v_zero();

    lay_out_strips(&s->values, of_v, job->v.row, is->n_keys, is->d);
    lay_out(ptac_attention_at(&job->q, is->heads, q->head) + q->first * job->q.row,
            job->q.row, q->n, is->d, is->scale, s->q);
    for (int lane = 0; lane < q->n_vectors * LANES; lane += LANES) {
        v_store(s->most + lane, v_set(-INFINITY));
        v_store(s->total + lane, v_zero());
    }
    for (int64_t first = 0; first < n_seen; first += FORWARD_KEYS) {
        keys k = keys_at(job, q, first, FORWARD_KEYS, n_seen);
        const tile scores = {
            .a = s->q,
            .a_term = BLOCK_LANES,
            .b = of_k + first * job->k.row,
            .b_row = job->k.row,
            .b_term = 1,
            .out = s->scores,
            .out_row = BLOCK_LANES,
            .n_terms = is->d,
        };
        const tile sums = {
            .a = s->scores,
            .a_term = BLOCK_LANES,
            .out = s->sums,
            .out_row = BLOCK_LANES,
            .n_terms = k.n,
            .adds = first > 0,
        };

        lay_out_mask(q, &k, s->mask);
        lay_out_kept(job, q, &k, s->kept);
        multiply(scores, k.n, q->n_vectors);
        weigh(s, q, &k, is->d);
        multiply_columns(&s->values, of_v, job->v.row, first, is->n_keys, is->d, sums,
                         q->n_vectors);
    }
    finish_totals(job, s, q);
    give_rows(s->sums, s->total, q->n, is->d,
              ptac_attention_at(&job->y, is->heads, q->head) + q->first * job->y.row,
              job->y.row, &odd);
    return v_sum(odd) == 0;
}

TARGET static void forward_some(int64_t begin, int64_t end, void *context)
{
    ptac_attention_job *job = context;
    const ptac_attention *is = &job->is;
    const int64_t blocks = blocks_a_head(is);
    float *memory = ptac_scratch_take(forward_floats(is) * sizeof *memory);

    if (!memory) {
        ptac_attention_fail(job, PTAC_NO_MEMORY);
        return;
    }

    forward_space space = forward_space_in(memory, is);

    for (int64_t i = begin; i < end; i++) {
        const block q = block_at(is, i / blocks, i % blocks);

        if (!attend_block(job, &q, &space))
            ptac_attention_fail(job, PTAC_UNSUITED);
    }
    ptac_scratch_give(memory);
}

static void forward_blocks(ptac_attention_job *job)
{
    const ptac_attention *is = &job->is;
    const int64_t work = BLOCK_LANES * is->n_keys * is->d;

    ptac_parallel_for(0, is->batch * is->heads * blocks_a_head(is),
                      FORWARD_WORK / work + 1, forward_some, job);
}
