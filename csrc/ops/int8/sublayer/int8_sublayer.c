/*
 * int8_sublayer.c - rows go through a sublayer, a block at a time.
 */
#include "ops/int8/sublayer/int8_sublayer.h"

#include "core/host.h"
#include "core/scratch.h"

enum {
    BLOCK_FLOATS = 1 << 16, /* between the products, that stay in cache */
    LEAST_BLOCK = 24,       /* rows: weights are read once for each block */
    MOST_BLOCK = 192,
    /* Fewer rows a thread would rather share out the columns of that many weights. */
    LEAST_ROWS = 24,
    MANY_WEIGHTS = 1 << 19,
};

typedef struct sublayer_job {
    const ptac_int8_isa *isa;
    const ptac_int8_sublayer *p;
    ptac_int8_weight weights[2];
    ptac_int8_norm norm;
    const float *x, *residual;
    float *y;
    int64_t block; /* rows */
    ptac_status status;
} sublayer_job;

/* Where a thread works: of a block of rows. */
typedef struct sublayer_space {
    ptac_row_scale *rows;
    float *between; /* [n], where there is a second weight */
    float *normal;  /* one row [k] */
    uint8_t *q;     /* of the wider input */
} sublayer_space;

static int64_t bytes_of_q(const ptac_int8_sublayer *p)
{
    const int64_t k = ptac_int8_pitch(p->k), n = p->n_2 ? ptac_int8_pitch(p->n) : 0;

    return k > n ? k : n;
}

static int64_t floats_between(const ptac_int8_sublayer *p)
{
    return p->n_2 ? p->n : 0;
}

/* The bytes that a thread needs; where they begin, in *space, if there is memory. */
static size_t lay_out(const sublayer_job *job, uint8_t *memory, sublayer_space *space)
{
    const ptac_int8_sublayer *p = job->p;
    const int64_t rows = ptac_whole_lines(job->block * (int64_t)sizeof *space->rows);
    const int64_t between = ptac_whole_lines(job->block * floats_between(p) * 4);
    const int64_t normal = ptac_whole_lines(p->k * 4);

    if (memory)
        *space = (sublayer_space){
            .rows = (ptac_row_scale *)memory,
            .between = (float *)(memory + rows),
            .normal = (float *)(memory + rows + between),
            .q = memory + rows + between + normal,
        };
    return (size_t)(rows + between + normal + job->block * bytes_of_q(p));
}

/* y of n rows from row on. */
static void run_block(const sublayer_job *job, const sublayer_space *space, int64_t row,
                      int64_t n)
{
    const ptac_int8_sublayer *p = job->p;
    const ptac_int8_isa *isa = job->isa;
    const int64_t width = ptac_sublayer_width(p);
    float *y = job->y + row * width, *h = p->n_2 ? space->between : y;

    for (int64_t r = 0; r < n; r++) {
        const float *x = job->x + (row + r) * p->k;

        if (p->norm == PTAC_SUBLAYER_NORM_FIRST) {
            isa->norm(&job->norm, x, p->k, space->normal);
            x = space->normal;
        }
        space->rows[r] =
            ptac_int8_quantize_row(isa, x, p->k, space->q + r * ptac_int8_pitch(p->k));
    }
    ptac_int8_multiply_rows(isa, &job->weights[0], space->q, space->rows, n, h);
    for (int64_t r = 0; r < n && p->n_2; r++, h += p->n) {
        if (p->act == PTAC_ACT_GELU)
            isa->gelu(h, p->n);
        space->rows[r] =
            ptac_int8_quantize_row(isa, h, p->n, space->q + r * ptac_int8_pitch(p->n));
    }
    if (p->n_2)
        ptac_int8_multiply_rows(isa, &job->weights[1], space->q, space->rows, n, y);
    for (int64_t r = 0; r < n; r++, y += width) {
        if (job->residual)
            isa->add(y, job->residual + (row + r) * width, width);
        if (p->norm == PTAC_SUBLAYER_NORM_LAST)
            isa->norm(&job->norm, y, width, y);
    }
}

static void run_rows(int64_t begin, int64_t end, void *context)
{
    sublayer_job *job = context;
    const int64_t n_blocks = ptac_parts(end - begin, job->block);
    uint8_t *memory = ptac_scratch_take(lay_out(job, NULL, NULL));
    sublayer_space space;

    if (!memory) {
        __atomic_store_n(&job->status, PTAC_NO_MEMORY, __ATOMIC_RELAXED);
        return;
    }
    lay_out(job, memory, &space);
    for (int64_t i = 0; i < n_blocks; i++) {
        const int64_t first = begin + (end - begin) * i / n_blocks;
        const int64_t last = begin + (end - begin) * (i + 1) / n_blocks;

        run_block(job, &space, first, last - first);
    }
    ptac_scratch_give(memory);
}

static int64_t weights_of(const ptac_int8_sublayer *p)
{
    return p->n * (p->k + p->n_2);
}

static ptac_int8_weight weight_of(const ptac_call *call, int at, int64_t n, int64_t k)
{
    return (ptac_int8_weight){
        .n = n,
        .k = k,
        .packed = call->inputs[at].data,
        .scales = call->inputs[at + 1].data,
        .bias = call->inputs[at + 2].data,
    };
}

ptac_status ptac_int8_sublayer_run(const ptac_call *call, const ptac_int8_isa *isa)
{
    const ptac_int8_sublayer *p = call->params;
    const ptac_view *in = call->inputs;
    const int64_t block = BLOCK_FLOATS / (floats_between(p) + 1);
    sublayer_job job = {
        .isa = isa,
        .p = p,
        .weights = {weight_of(call, PTAC_SUBLAYER_PACKED, p->n, p->k),
                    weight_of(call, PTAC_SUBLAYER_SECOND, p->n_2, p->n)},
        .norm = {in[PTAC_SUBLAYER_NORM_WEIGHT].data, in[PTAC_SUBLAYER_NORM_BIAS].data,
                 p->eps},
        .x = in[PTAC_SUBLAYER_X].data,
        .residual = in[PTAC_SUBLAYER_RESIDUAL].data,
        .y = call->outputs[0].data,
        .block = block < LEAST_BLOCK ? LEAST_BLOCK : ptac_least(block, MOST_BLOCK),
    };

    job.weights[0].relu = p->act == PTAC_ACT_RELU;
    job.weights[0].y_is_near = p->n_2 > 0;
    ptac_parallel_for(0, p->m, 1 + PTAC_INT8_GRAIN / weights_of(p), run_rows, &job);
    return job.status;
}

ptac_reason ptac_int8_sublayer_accepts(const ptac_call *call)
{
    const ptac_int8_sublayer *p = call->params;
    const int64_t widest =
        p->n > ptac_sublayer_width(p) ? p->n : ptac_sublayer_width(p);
    const int64_t y[] = {p->m, widest};

    if (!ptac_int8_is_aligned(call))
        return PTAC_LAYOUT;
    if (p->act == PTAC_ACT_GELU && !p->n_2)
        return PTAC_ARGUMENT;
    if (call->n_threads > 1 && p->m < LEAST_ROWS * (int64_t)call->n_threads &&
        weights_of(p) >= MANY_WEIGHTS)
        return PTAC_SHAPE;
    /* A single row has 16 bits, which are int8_linear's. */
    return p->m < 2 || p->k > PTAC_INT8_MOST_TERMS || widest > PTAC_INT8_MOST_TERMS ||
                   !ptac_int8_is_countable(y, 2)
               ? PTAC_SHAPE
               : PTAC_TAKE;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    enum { MANY = 32 };
    const ptac_int8_sublayer *p = call->params;

    if (p->m == 0 || p->n == 0 || p->k == 0)
        return PTAC_EMPTY;
    shape->kind = 2 * (p->n_2 > 0) + (p->m >= MANY);
    shape->work = weights_of(p);
    return PTAC_TAKE;
}

PTAC_SHAPES(INT8_SUBLAYER, classify, "one_m2_31", "one_m32_up", "two_m2_31",
            "two_m32_up")
