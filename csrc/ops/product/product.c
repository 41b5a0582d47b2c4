/*
 * product.c - what the ways to compute products can do; products by definition.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/product/product.h"

#include "core/cpu.h"
#include "core/host.h"

static bool has_work_up_to(int64_t most, int64_t m, int64_t n, int64_t k)
{
    return m <= most && n <= most && k <= most && m * n <= most && m * n * k <= most;
}

bool ptac_product_is_small(int64_t m, int64_t n, int64_t k)
{
    enum { MOST_WORK = 1 << 15 };

    return has_work_up_to(MOST_WORK, m, n, k);
}

bool ptac_product_is_thin(int64_t m, int64_t n, int64_t k)
{
    enum { MOST_WORK = 1 << 20, LEAST_COLUMNS = 4, VECTOR = 16 };

    return n >= LEAST_COLUMNS && n < VECTOR && k >= VECTOR &&
           has_work_up_to(MOST_WORK, m, n, k);
}

bool ptac_product_small_is_dot(const ptac_product *p)
{
    /* Of some terms, lanes' partial sums cost more than panels, if columns fill one. */
    enum { FEW_ROWS = 4, FEW_TERMS = 64, MANY_TERMS = 256, PANEL = 32 };

    return ptac_product_accepts_dot(p) == PTAC_TAKE &&
           (p->m < FEW_ROWS || p->k >= MANY_TERMS ||
            (p->k > FEW_TERMS && p->n < PANEL));
}

ptac_reason ptac_product_accepts_dot(const ptac_product *product)
{
    if (product->a_term != 1 || product->b_term != 1)
        return PTAC_LAYOUT;
    return product->n < 4 ? PTAC_SHAPE : PTAC_TAKE;
}

ptac_reason ptac_product_accepts_packed(const ptac_product *product)
{
    return (product->a_row == 1 || product->a_term == 1) &&
                   (product->b_term == 1 || product->b_column == 1)
               ? PTAC_TAKE
               : PTAC_LAYOUT;
}

ptac_reason ptac_product_accepts_stream(const ptac_product *product)
{
    if (product->b_column != 1)
        return PTAC_LAYOUT;
    return product->m > PTAC_STREAM_ROWS ? PTAC_SHAPE : PTAC_TAKE;
}

ptac_reason ptac_product_accepts_turned(const ptac_product *product)
{
    if (product->a_term != 1 || product->b_term != 1 ||
        (product->bias && product->bias_row != 0))
        return PTAC_LAYOUT;
    if (product->alpha != 1 || product->beta != 1)
        return PTAC_ARGUMENT;
    return product->m < PTAC_TURNED_LEAST_ROWS || product->m > PTAC_TURNED_ROWS ||
                   product->n + product->k > PTAC_TURNED_FLOATS / product->m
               ? PTAC_SHAPE
               : PTAC_TAKE;
}

bool ptac_product_turned_pays(int64_t m, int n_lanes)
{
    enum { PANEL_VECTORS = 3 };
    const int64_t rest = m % n_lanes;

    return m >= PTAC_TURNED_LEAST_ROWS && m <= PANEL_VECTORS * n_lanes &&
           (rest == 0 || rest >= n_lanes - n_lanes / 8);
}

size_t ptac_product_kept_bytes(int64_t n, int64_t k, int n_lanes)
{
    const int64_t panel = 2 * n_lanes;

    return sizeof(float) * (size_t)(ptac_parts(n, panel) * panel * k);
}

bool ptac_product_small_pays(const ptac_product *p)
{
    enum { MANY_ROWS = 40 };

    return p->m < MANY_ROWS || !ptac_product_small_is_dot(p) || !ptac_cpu_is_amd() ||
           ptac_product_is_small(p->m, p->n, p->k) ||
           ptac_product_is_thin(p->m, p->n, p->k);
}

bool ptac_product_packed_pays(int64_t n, int64_t k, int n_threads)
{
    enum { MOST_TERMS = 256, LEAST_COLUMNS = 256 };

    return k <= MOST_TERMS || (n_threads > 1 && n >= LEAST_COLUMNS) ||
           ptac_cpu_is_amd();
}

/*
 * How a and b lie: "n" row by row, "t" column by column. nt is a layer's forward, nn
 * the gradient of its input, tn that of its weight.
 */
enum {
    NN,
    NT,
    TN,
    TT,
    N_ORDERS,
};

/* A tensor's matrices; those of two dimensions have one. */
typedef struct matrices {
    int64_t n, stride; /* of them */
    int64_t sizes[2], strides[2];
    float *first;
} matrices;

static matrices matrices_of(const ptac_view *x)
{
    const bool are_many = x->n_dims > 2;
    matrices all = {1, 0, {0, 0}, {0, 0}, x->data};

    if (are_many) {
        all.n = x->sizes[0];
        all.stride = x->strides[0];
    }
    for (int i = 0; i < 2; i++) {
        all.sizes[i] = x->sizes[i + are_many];
        all.strides[i] = x->strides[i + are_many];
    }
    return all;
}

/* Row by row; of a single row or column both are true, which then serves better. */
static bool is_row_by_row(const matrices *x)
{
    return x->strides[1] == 1 || x->sizes[1] == 1;
}

static bool is_dense_one_way(const matrices *x)
{
    return (is_row_by_row(x) && (x->strides[0] >= x->sizes[1] || x->sizes[0] == 1)) ||
           ((x->strides[0] == 1 || x->sizes[0] == 1) &&
            (x->strides[1] >= x->sizes[0] || x->sizes[1] == 1));
}

/* Of matrices, of which there are as many. */
static ptac_reason place(const matrices *a, const matrices *b, ptac_shape *shape)
{
    const int64_t m = a->sizes[0], k = a->sizes[1], n = b->sizes[1];

    if (a->n == 0 || m == 0 || n == 0 || k == 0)
        return PTAC_EMPTY;
    if (!is_dense_one_way(a) || !is_dense_one_way(b))
        return PTAC_LAYOUT;
    shape->kind = (is_row_by_row(a) ? NN : TN) + (is_row_by_row(b) ? 0 : 1);
    shape->work = a->n * m * n * k;
    shape->sizes[0] = a->n * m;
    shape->sizes[1] = k;
    shape->sizes[2] = n;
    shape->uses = m * n * k / (m * n + m * k + n * k);
    return PTAC_TAKE;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const matrices a = matrices_of(&call->inputs[0]), b = matrices_of(&call->inputs[1]);
    const int64_t m = a.sizes[0], k = a.sizes[1], n = b.sizes[1];
    const ptac_reason why = place(&a, &b, shape);

    if (why || !ptac_product_is_small(m, n, k))
        return why;
    shape->kind += call->params == &ptac_product_is_lean ? 2 * N_ORDERS : N_ORDERS;
    shape->sizes[0] = 0;
    return PTAC_TAKE;
}

const char ptac_product_is_lean;

#define OF_ONE "nn", "nt", "tn", "tt", "small_nn", "small_nt", "small_tn", "small_tt"
PTAC_SHAPES(MM, classify, OF_ONE, "lean_nn", "lean_nt", "lean_tn", "lean_tt")
PTAC_SHAPES(ADDMM, classify, OF_ONE)

/*
 * Of many matrices the rows of all count, since all are passed, and a kind says how
 * many rows one has at least.
 */
static ptac_reason classify_many(const ptac_call *call, ptac_shape *shape)
{
    static const int64_t least_rows[] = {1, 2, 8, 32, 96};
    enum { N_LEAST = sizeof least_rows / sizeof *least_rows };
    const matrices a = matrices_of(&call->inputs[0]), b = matrices_of(&call->inputs[1]);
    const ptac_reason why = place(&a, &b, shape);
    int which = N_LEAST - 1;

    if (why)
        return why;
    while (which > 0 && a.sizes[0] < least_rows[which])
        which--;
    shape->kind += which * N_ORDERS;
    return PTAC_TAKE;
}

#define OF_ROWS(n) "nn_" #n, "nt_" #n, "tn_" #n, "tt_" #n
PTAC_SHAPES(BMM, classify_many, OF_ROWS(1), OF_ROWS(2), OF_ROWS(8), OF_ROWS(32),
            OF_ROWS(96))
PTAC_SHAPES(BADDBMM, classify_many, OF_ROWS(1), OF_ROWS(2), OF_ROWS(8), OF_ROWS(32),
            OF_ROWS(96))

/* What is added, under the sizes of y. */
static void take_bias(const ptac_view *bias, bool are_many, ptac_product_batch *all)
{
    int64_t strides[3] = {0, 0, 0};

    for (int i = 0; i < bias->n_dims; i++)
        if (bias->sizes[i] > 1)
            strides[3 - bias->n_dims + i] = bias->strides[i];
    all->bias = are_many ? strides[0] : 0;
    all->first.bias_row = strides[1];
    all->first.bias = bias->data;
}

ptac_product_batch ptac_product_batch_of(const ptac_call *call)
{
    const bool is_sum = call->op == PTAC_OP_ADDMM || call->op == PTAC_OP_BADDBMM;
    const matrices a = matrices_of(&call->inputs[0]), b = matrices_of(&call->inputs[1]);
    const int64_t m = a.sizes[0], n = b.sizes[1];
    ptac_product_batch all = {
        .n = a.n,
        .a = a.stride,
        .b = b.stride,
        .y = m * n,
        .first =
            {
                .m = m,
                .n = n,
                .k = a.sizes[1],
                .a = a.first,
                .b = b.first,
                .a_row = a.strides[0],
                .a_term = is_row_by_row(&a) ? 1 : a.strides[1],
                .b_term = b.strides[0],
                .b_column = is_row_by_row(&b) ? 1 : b.strides[1],
                .alpha = 1,
                .beta = 1,
                .y = call->outputs[0].data,
                .y_row = n,
            },
    };
    ptac_product *p = &all.first;

    if (p->a_term != 1)
        p->a_row = 1;
    if (p->b_column != 1)
        p->b_term = 1;
    if (call->op == PTAC_OP_BADDBMM) {
        const ptac_product_factors *factors = call->params;

        p->alpha = factors->alpha;
        p->beta = factors->beta;
    }
    if (is_sum && p->beta != 0)
        take_bias(&call->inputs[2], call->op == PTAC_OP_BADDBMM, &all);
    return all;
}

/* Some of the products, all by one way. */
typedef struct job {
    const ptac_product_batch *all;
    const ptac_product_way *way;
    ptac_status status;
} job;

static void run_some(int64_t begin, int64_t end, void *context)
{
    job *j = context;
    const ptac_product_batch *all = j->all;
    ptac_product p = all->first;

    p.a += begin * all->a;
    p.b += begin * all->b;
    p.y += begin * all->y;
    if (p.bias)
        p.bias += begin * all->bias;
    for (int64_t i = begin; i < end; i++) {
        const ptac_status status = j->way->run(&p);

        if (status)
            __atomic_store_n(&j->status, status, __ATOMIC_RELAXED);
        p.a += all->a;
        p.b += all->b;
        p.y += all->y;
        if (p.bias)
            p.bias += all->bias;
    }
}

/* Threads share the products, or each one of them where they are few. */
ptac_status ptac_product_batch_run(const ptac_product_batch *all,
                                   const ptac_product_way *way)
{
    enum { MANY = 4 };
    const ptac_product *p = &all->first;
    const int n_threads = ptac_the_host.n_threads();
    job j = {all, way, PTAC_OK};

    if (all->n % n_threads != 0 && all->n < MANY * n_threads)
        run_some(0, all->n, &j);
    else
        ptac_parallel_for(0, all->n, PTAC_PRODUCT_WORK / (p->m * p->n * p->k) + 1,
                          run_some, &j);
    return j.status;
}

static ptac_reason accepts_floats(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static ptac_status define(const ptac_product *p)
{
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            const float *a = p->a + i * p->a_row, *b = p->b + j * p->b_column;
            double sum = 0;

            for (int64_t l = 0; l < p->k; l++)
                sum += (double)a[l * p->a_term] * b[l * p->b_term];
            sum *= p->alpha;
            if (p->bias)
                sum += (double)p->beta * p->bias[i * p->bias_row + j];
            p->y[i * p->y_row + j] = (float)sum;
        }
    }
    return PTAC_OK;
}

static ptac_status run_scalar(const ptac_call *call)
{
    static const ptac_product_way definition = {"scalar", NULL, define};
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_batch_run(&all, &definition);
}

PTAC_ROW(MM, "scalar", PTAC_CLOSE, 0, accepts_floats, run_scalar)
PTAC_ROW(ADDMM, "scalar", PTAC_CLOSE, 0, accepts_floats, run_scalar)
PTAC_ROW(BMM, "scalar", PTAC_CLOSE, 0, accepts_floats, run_scalar)
PTAC_ROW(BADDBMM, "scalar", PTAC_CLOSE, 0, accepts_floats, run_scalar)
