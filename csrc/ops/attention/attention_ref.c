/*
 * attention_ref.c - attention by definition, with sums in double.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "core/host.h"
#include "core/scratch.h"
#include "ops/attention/attention.h"

#include <math.h>
#include <string.h>

enum { GRAIN = 1 << 12 }; /* multiply-adds worth a thread */

/* One query of a head, and the head that it reads. */
typedef struct query {
    const float *q, *k, *v, *mask, *kept;
    int64_t n_seen;
} query;

static query query_at(const ptac_attention_job *job, int64_t head, int64_t i)
{
    const ptac_attention *is = &job->is;
    const int64_t of_keys = ptac_attention_key_head(is, head);
    const float *mask = ptac_attention_mask_at(&job->mask, is->heads, head);
    const float *kept = ptac_attention_mask_at(&job->kept, is->heads, head);

    return (query){
        ptac_attention_at(&job->q, is->heads, head) + i * job->q.row,
        ptac_attention_at(&job->k, is->key_heads, of_keys),
        ptac_attention_at(&job->v, is->key_heads, of_keys),
        mask ? mask + i * job->mask.query : NULL,
        kept ? kept + i * job->kept.query : NULL,
        ptac_attention_n_seen(is, i),
    };
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static double score(const ptac_attention_job *job, const query *of, int64_t j)
{
    const double product = dot(of->q, of->k + j * job->k.row, job->is.d);

    return product * job->is.scale + (of->mask ? of->mask[j * job->mask.key] : 0);
}

/* By what the weight of a key is multiplied. */
static double share(const ptac_attention_job *job, const query *of, int64_t j)
{
    return of->kept ? of->kept[j * job->kept.key] / (double)job->is.keep : 1;
}

/* Weights that are not divided yet; *log_sum of what they add up to. */
static double weigh(const ptac_attention_job *job, const query *of, double *weights,
                    float *log_sum)
{
    double most = -INFINITY, sum = 0;

    for (int64_t j = 0; j < of->n_seen; j++) {
        weights[j] = score(job, of, j);
        if (!(weights[j] <= most))
            most = weights[j];
    }
    if (most == -INFINITY)
        most = 0;
    for (int64_t j = 0; j < of->n_seen; j++)
        sum += weights[j] = exp(weights[j] - most);
    if (sum == 0)
        sum = 1;
    *log_sum = (float)(most + log(sum));
    return sum;
}

static void forward_some(int64_t begin, int64_t end, void *context)
{
    ptac_attention_job *job = context;
    const ptac_attention *is = &job->is;
    double *weights = ptac_scratch_take((size_t)is->n_keys * sizeof *weights);

    if (!weights) {
        ptac_attention_fail(job, PTAC_NO_MEMORY);
        return;
    }
    for (int64_t row = begin; row < end; row++) {
        const int64_t head = row / is->n_queries, i = row % is->n_queries;
        const query of = query_at(job, head, i);
        float *y = ptac_attention_at(&job->y, is->heads, head) + i * job->y.row;
        float *log_sum = ptac_attention_at(&job->log_sums, is->heads, head);
        const double sum = weigh(job, &of, weights, log_sum + i * job->log_sums.row);

        for (int64_t c = 0; c < is->d; c++) {
            double total = 0;

            for (int64_t j = 0; j < of.n_seen; j++)
                total += share(job, &of, j) * weights[j] * of.v[j * job->v.row + c];
            y[c] = (float)(total / sum);
            if (!isfinite(y[c]))
                ptac_attention_fail(job, PTAC_UNSUITED);
        }
    }
    ptac_scratch_give(weights);
}

static ptac_status run_forward(const ptac_call *call)
{
    ptac_attention_job job = ptac_attention_forward_job(call);
    const ptac_attention *is = &job.is;

    ptac_parallel_for(0, is->batch * is->heads * is->n_queries,
                      GRAIN / (is->n_keys * is->d) + 1, forward_some, &job);
    return job.status;
}

/* Sums of one head of keys. */
typedef struct sums {
    double *q, *k, *v; /* [d] of a query; [n_keys, d] */
} sums;

static void add_query(const ptac_attention_job *job, int64_t head, int64_t i,
                      const sums *to)
{
    const ptac_attention *is = &job->is;
    const query of = query_at(job, head, i);
    const float *y = ptac_attention_at(&job->y, is->heads, head) + i * job->y.row;
    const float *grad =
        ptac_attention_at(&job->grad, is->heads, head) + i * job->grad.row;
    const float log_sum =
        ptac_attention_at(&job->log_sums, is->heads, head)[i * job->log_sums.row];
    const double shift = dot(grad, y, is->d);

    memset(to->q, 0, (size_t)is->d * sizeof *to->q);
    for (int64_t j = 0; j < of.n_seen; j++) {
        const float *k = of.k + j * job->k.row, *v = of.v + j * job->v.row;
        const double weight = exp(score(job, &of, j) - log_sum);
        const double part = share(job, &of, j);
        const double slope = is->scale * weight * (part * dot(grad, v, is->d) - shift);

        for (int64_t c = 0; c < is->d; c++) {
            to->q[c] += slope * k[c];
            to->k[j * is->d + c] += slope * of.q[c];
            to->v[j * is->d + c] += part * weight * grad[c];
        }
    }
}

static void give(ptac_attention_job *job, const double *from, int64_t n, float *to,
                 int64_t row)
{
    const int64_t d = job->is.d;

    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < d; c++) {
            to[i * row + c] = (float)from[i * d + c];
            if (!isfinite(to[i * row + c]))
                ptac_attention_fail(job, PTAC_UNSUITED);
        }
}

static void backward_some(int64_t begin, int64_t end, void *context)
{
    ptac_attention_job *job = context;
    const ptac_attention *is = &job->is;
    const int64_t shared = is->heads / is->key_heads, n = is->n_keys * is->d;
    const size_t bytes = (size_t)(2 * n + is->d) * sizeof(double);
    double *all = ptac_scratch_take(bytes);
    const sums to = {all, all + is->d, all + is->d + n};

    if (!all) {
        ptac_attention_fail(job, PTAC_NO_MEMORY);
        return;
    }
    for (int64_t of_keys = begin; of_keys < end; of_keys++) {
        memset(all, 0, bytes);
        for (int64_t head = of_keys * shared; head < (of_keys + 1) * shared; head++)
            for (int64_t i = 0; i < is->n_queries; i++) {
                float *grad_q = ptac_attention_at(&job->grad_q, is->heads, head);

                add_query(job, head, i, &to);
                give(job, to.q, 1, grad_q + i * job->grad_q.row, 0);
            }
        give(job, to.k, is->n_keys,
             ptac_attention_at(&job->grad_k, is->key_heads, of_keys), job->grad_k.row);
        give(job, to.v, is->n_keys,
             ptac_attention_at(&job->grad_v, is->key_heads, of_keys), job->grad_v.row);
    }
    ptac_scratch_give(all);
}

static ptac_status run_backward(const ptac_call *call)
{
    ptac_attention_job job = ptac_attention_backward_job(call);

    ptac_parallel_for(0, job.is.batch * job.is.key_heads, 1, backward_some, &job);
    return job.status;
}

PTAC_ROW(ATTENTION, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_forward)
PTAC_ROW(ATTENTION_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_backward)
PTAC_ROW(ATTENTION_DROPOUT, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_forward)
PTAC_ROW(ATTENTION_DROPOUT_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all,
         run_backward)
