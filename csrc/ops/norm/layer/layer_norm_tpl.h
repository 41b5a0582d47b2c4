/*
 * layer_norm_tpl.h - LayerNorm and RMSNorm of rows and their gradients, a vector of
 * floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 *
 * A row is walked over two or three times, the first of which brings it into the cache.
 * Gradients of weight and bias are summed up over blocks of rows, in float, and over
 * the blocks in double: the same blocks, whatever the number of threads.
 */
#include "core/host.h"
#include "core/scratch.h"
#include "ops/norm/norm.h"
#include "ops/softmax/softmax_tpl.h"

enum {
    NORM_SHARE = 16384, /* elements that are worth another thread */
    NORM_BLOCKS = 64,   /* of rows, at most */
    NORM_BLOCK = 16,    /* rows, at least */
};

static ptac_reason norm_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

/* n lanes of a weight from i on, or what stands for it where there is none. */
INLINE vec weight_or(const float *weight, int64_t i, float otherwise, int n)
{
    return weight ? v_load_first(weight + i, n) : v_set(otherwise);
}

/* The sum of (x - mean)^2. */
INLINE double row_squares(const float *x, int64_t n, vec mean)
{
    double sum = 0;

    for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const int64_t end = ptac_least(n, begin + SUM_BLOCK);
        vec a = v_zero(), b = v_zero();
        int64_t at = begin;

        for (; at + 2 * LANES <= end; at += 2 * LANES) {
            const vec c = v_sub(v_load(x + at), mean);
            const vec d = v_sub(v_load(x + at + LANES), mean);

            a = v_fma(c, c, a);
            b = v_fma(d, d, b);
        }
        FOR_LANES(i, some, at, end,
                  const vec c = v_keep_first(v_sub(v_load_first(x + i, some), mean),
                                             v_zero(), some);
                  a = v_fma(c, c, a));
        sum += v_sum_f64(v_add(a, b));
    }
    return sum;
}

/* Where a row lies, and how it is stretched. */
typedef struct row_place {
    double mean, rstd;
} row_place;

INLINE row_place place_row(const ptac_norm *p, const float *x, bool is_rms)
{
    const int64_t n = p->width;
    row_place at = {.mean = is_rms ? 0 : row_sum(x, n, NULL, NULL) / (double)n};
    const double squares = row_squares(x, n, v_set((float)at.mean));

    at.rstd = 1 / sqrt(squares / (double)n + p->eps);
    /* A float has overflowed on the way, or x is not finite. */
    if (!isfinite(squares))
        at.rstd = ptac_norm_statistics(p, x, &at.mean);
    return at;
}

/* y may be x. */
INLINE void normalize_row(const float *x, int64_t n, const row_place *at,
                          const float *weight, const float *bias, float *y)
{
    const vec center = v_set((float)at->mean), scale = v_set((float)at->rstd);

    FOR_LANES(i, some, 0, n, const vec away = v_sub(v_load_first(x + i, some), center);
              v_store_first(y + i,
                            v_fma(v_mul(away, scale), weight_or(weight, i, 1, some),
                                  weight_or(bias, i, 0, some)),
                            some));
}

/* sum = x + residual, which is what is normalized. */
INLINE const float *sum_row(const float *x, const float *residual, float *sum,
                            int64_t n)
{
    FOR_LANES(i, some, 0, n,
              v_store_first(
                  sum + i,
                  v_add(v_load_first(x + i, some), v_load_first(residual + i, some)),
                  some));
    return sum;
}

INLINE void norm_rows(const ptac_call *call, int64_t begin, int64_t end, bool is_rms)
{
    const ptac_norm *p = call->params;
    const float *weight = call->inputs[PTAC_NORM_WEIGHT].data;
    const float *bias = call->inputs[PTAC_NORM_BIAS].data;
    float *means = call->outputs[PTAC_NORM_MEAN].data;
    float *rstds = call->outputs[PTAC_NORM_RSTD].data;
    const float *residual = call->inputs[PTAC_NORM_RESIDUAL].data;
    const int64_t n = p->width;

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)call->inputs[PTAC_NORM_X].data + row * n;
        float *y = (float *)call->outputs[PTAC_NORM_Y].data + row * n;
        row_place at;
        vec scale;

        if (residual)
            x = sum_row(x, residual + row * n,
                        (float *)call->outputs[PTAC_NORM_SUM].data + row * n, n);
        at = place_row(p, x, is_rms);
        scale = v_set((float)at.rstd);
        if (is_rms)
            FOR_LANES(i, some, 0, n,
                      const vec normal = v_mul(v_load_first(x + i, some), scale);
                      v_store_first(y + i, v_mul(normal, weight_or(weight, i, 1, some)),
                                    some));
        else
            normalize_row(x, n, &at, weight, bias, y);
        if (means)
            means[row] = (float)at.mean;
        if (rstds)
            rstds[row] = (float)at.rstd;
    }
}

TARGET static void layer_norm_rows(int64_t begin, int64_t end, void *context)
{
    norm_rows(context, begin, end, false);
}

TARGET static void rms_norm_rows(int64_t begin, int64_t end, void *context)
{
    norm_rows(context, begin, end, true);
}

static ptac_status norm_forward(const ptac_call *call)
{
    const ptac_norm *p = call->params;

    ptac_parallel_for(0, p->n_rows, NORM_SHARE / p->width + 1,
                      p->is_rms ? rms_norm_rows : layer_norm_rows, (void *)call);
    return PTAC_OK;
}

/* The gradients of a call, whose rows are cut into blocks. */
typedef struct norm_work {
    const ptac_call *call;
    int64_t rows_of_block, n_blocks;
    int n_sums;  /* of each block: 2, of weight and of bias; RMSNorm has no bias */
    float *sums; /* width of each; or NULL */
} norm_work;

/* A row on its way: what it consists of, and two sums of it. */
typedef struct norm_row {
    const float *grad, *x, *weight;
    const float *more; /* to add to the gradient, or NULL */
    vec mean, rstd;
    double sum, sum_of_products;
    bool is_rms; /* which has neither a mean nor a sum */
} norm_row;

/* n lanes of x^ from i on. */
INLINE vec normal_of(const norm_row *r, int64_t i, int n)
{
    const vec x = v_load_first(r->x + i, n);

    return v_mul(r->is_rms ? x : v_sub(x, r->mean), r->rstd);
}

INLINE void add_to(float *sums, vec terms, int n)
{
    v_store_first(sums, v_add(v_load_first(sums, n), terms), n);
}

INLINE void row_sums(norm_row *r, int64_t n, float *of_weight, float *of_bias)
{
    r->sum = r->sum_of_products = 0;
    for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
        vec sum = v_zero(), products = v_zero();

        FOR_LANES(i, some, begin, ptac_least(n, begin + SUM_BLOCK),
                  const vec grad = v_load_first(r->grad + i, some);
                  const vec normal =
                      v_keep_first(normal_of(r, i, some), v_zero(), some);
                  const vec g = v_mul(grad, weight_or(r->weight, i, 1, some));
                  sum = r->is_rms ? sum : v_add(sum, g);
                  products = v_fma(g, normal, products); if (of_weight) v_store_first(
                      of_weight + i,
                      v_fma(grad, normal, v_load_first(of_weight + i, some)), some);
                  if (of_bias) add_to(of_bias + i, grad, some));
        r->sum += r->is_rms ? 0 : v_sum_f64(sum);
        r->sum_of_products += v_sum_f64(products);
    }
}

INLINE void row_gradient(const norm_row *r, int64_t n, float *of_x)
{
    const vec shared = v_set((float)(r->sum / (double)n));
    const vec slope = v_set((float)(r->sum_of_products / (double)n));

    FOR_LANES(i, some, 0, n, const vec grad = v_load_first(r->grad + i, some);
              const vec normal = normal_of(r, i, some);
              const vec weight = weight_or(r->weight, i, 1, some);
              const vec g = r->is_rms ? v_mul(grad, weight)
                                      : v_fma(grad, weight, v_sub(v_zero(), shared));
              vec of_row = v_mul(v_fnma(normal, slope, g), r->rstd);
              if (r->more) of_row = v_add(of_row, v_load_first(r->more + i, some));
              v_store_first(of_x + i, of_row, some));
}

INLINE void norm_slopes(const norm_work *work, int64_t begin, int64_t end, bool is_rms)
{
    const ptac_view *in = work->call->inputs;
    const ptac_norm *p = work->call->params;
    const float *means = in[PTAC_NORM_GRAD_MEAN].data;
    const float *rstds = in[PTAC_NORM_GRAD_RSTD].data;
    const float *of_sum = in[PTAC_NORM_GRAD_SUM].data;
    float *of_x = work->call->outputs[PTAC_NORM_GRAD_X].data;
    const int64_t n = p->width;

    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * work->rows_of_block;
        float *of_weight = work->sums ? work->sums + block * work->n_sums * n : NULL;
        float *of_bias = work->sums && !is_rms ? of_weight + n : NULL;

        for (int64_t i = 0; work->sums && i < work->n_sums * n; i++)
            of_weight[i] = 0;
        for (int64_t row = first;
             row < ptac_least(p->n_rows, first + work->rows_of_block); row++) {
            norm_row r = {(const float *)in[PTAC_NORM_GRAD_Y].data + row * n,
                          (const float *)in[PTAC_NORM_GRAD_X_OF].data + row * n,
                          in[PTAC_NORM_GRAD_WEIGHT_OF].data,
                          of_sum ? of_sum + row * n : NULL,
                          v_set(is_rms ? 0 : means[row]),
                          v_set(rstds[row]),
                          0,
                          0,
                          is_rms};

            row_sums(&r, n, of_weight, of_bias);
            if (of_x)
                row_gradient(&r, n, of_x + row * n);
        }
    }
}

TARGET static void layer_norm_slopes(int64_t begin, int64_t end, void *context)
{
    norm_slopes(context, begin, end, false);
}

TARGET static void rms_norm_slopes(int64_t begin, int64_t end, void *context)
{
    norm_slopes(context, begin, end, true);
}

/* Column i of the sums of all blocks, of which each has n_sums. */
INLINE float column_sum(const norm_work *work, int64_t width, int which, int64_t i)
{
    double sum = 0;

    for (int64_t block = 0; block < work->n_blocks; block++)
        sum += work->sums[(work->n_sums * block + which) * width + i];
    return (float)sum;
}

TARGET static void norm_columns(int64_t begin, int64_t end, void *context)
{
    const norm_work *work = context;
    const ptac_norm *p = work->call->params;
    float *of_weight = work->call->outputs[PTAC_NORM_GRAD_WEIGHT].data;
    float *of_bias = work->call->outputs[PTAC_NORM_GRAD_BIAS].data;

    for (int64_t i = begin; i < end; i++) {
        if (of_weight)
            of_weight[i] = column_sum(work, p->width, 0, i);
        if (of_bias && !p->is_rms)
            of_bias[i] = column_sum(work, p->width, 1, i);
    }
}

static ptac_status norm_backward(const ptac_call *call)
{
    const ptac_norm *p = call->params;
    const int64_t even = (p->n_rows + NORM_BLOCKS - 1) / NORM_BLOCKS;
    norm_work work = {.call = call,
                      .rows_of_block = even < NORM_BLOCK ? NORM_BLOCK : even,
                      .n_sums = p->is_rms ? 1 : 2};

    work.n_blocks = (p->n_rows + work.rows_of_block - 1) / work.rows_of_block;
    if (call->outputs[PTAC_NORM_GRAD_WEIGHT].data ||
        call->outputs[PTAC_NORM_GRAD_BIAS].data) {
        work.sums = ptac_scratch_take((size_t)(work.n_blocks * work.n_sums * p->width) *
                                      sizeof(float));
        if (!work.sums)
            return PTAC_NO_MEMORY;
    }
    ptac_parallel_for(0, work.n_blocks,
                      NORM_SHARE / (p->width * work.rows_of_block) + 1,
                      p->is_rms ? rms_norm_slopes : layer_norm_slopes, &work);
    if (work.sums)
        ptac_parallel_for(0, p->width, NORM_SHARE / work.n_blocks + 1, norm_columns,
                          &work);
    ptac_scratch_give(work.sums);
    return PTAC_OK;
}

PTAC_ROW(LAYER_NORM, ISA, PTAC_CLOSE, NEEDS, norm_accepts, norm_forward)
PTAC_ROW(LAYER_NORM_BACKWARD, ISA, PTAC_CLOSE, NEEDS, norm_accepts, norm_backward)
PTAC_ROW(RMS_NORM, ISA, PTAC_CLOSE, NEEDS, norm_accepts, norm_forward)
PTAC_ROW(RMS_NORM_BACKWARD, ISA, PTAC_CLOSE, NEEDS, norm_accepts, norm_backward)
PTAC_ROW(ADD_NORM, ISA, PTAC_CLOSE, NEEDS, norm_accepts, norm_forward)
PTAC_ROW(ADD_NORM_BACKWARD, ISA, PTAC_CLOSE, NEEDS, norm_accepts, norm_backward)
