/*
 * bag_ref.c - bags of rows by definition, their shape kinds, and what all rows share.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/indexing/bag.h"

#include <string.h>

/* Kinds of a mode: narrow, wide; the same of tables that are not near. */
enum {
    WIDE_FROM = 16,
    NEAR_FLOATS = 1 << 18,
    KINDS_OF_MODE = 4,
    FAR = 2,
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_bag *p = call->params;
    const ptac_rows *rows = &p->rows;

    shape->kind = p->mode * KINDS_OF_MODE + (rows->width >= WIDE_FROM) +
                  (rows->n_rows * rows->width > NEAR_FLOATS ? FAR : 0);
    shape->work = rows->n * rows->width;
    return PTAC_TAKE;
}

static ptac_reason classify_gradient(const ptac_call *call, ptac_shape *shape)
{
    const ptac_bag *p = call->params;

    shape->kind = p->rows.n_rows * p->rows.width > NEAR_FLOATS;
    shape->work = p->n_bags * p->rows.width;
    return PTAC_TAKE;
}

PTAC_SHAPES(EMBEDDING_BAG, classify, "sum_narrow", "sum_wide", "sum_narrow_far",
            "sum_wide_far", "mean_narrow", "mean_wide", "mean_narrow_far",
            "mean_wide_far", "max_narrow", "max_wide", "max_narrow_far", "max_wide_far")
PTAC_SHAPES(EMBEDDING_BAG_MAX_BACKWARD, classify_gradient, "near", "far")

bool ptac_bag_has_offsets(const ptac_call *call)
{
    const ptac_bag *p = call->params;
    const void *offsets = call->inputs[PTAC_BAG_OFFSETS].data;
    bool rises = ptac_bag_begin(p, offsets, 0) == 0;

    for (int64_t b = 0; b < p->n_bags; b++)
        rises &= ptac_bag_begin(p, offsets, b) <= ptac_bag_begin(p, offsets, b + 1);
    if (p->n_offsets > p->n_bags)
        rises &= ptac_rows_index(&p->rows, offsets, p->n_bags) == p->rows.n;
    return rises;
}

void ptac_bag_finish(const ptac_call *call, int64_t b, int64_t n_rows)
{
    const ptac_bag *p = call->params;
    const int64_t size = p->mode == PTAC_BAG_SUM ? 0 : n_rows;

    if (!call->outputs[PTAC_BAG_SIZES].data)
        return;
    ptac_bag_put(p, call->outputs[PTAC_BAG_SIZES].data, b, size);
    if (p->mode != PTAC_BAG_MAX)
        ptac_bag_put(p, call->outputs[PTAC_BAG_LARGEST].data, b, size);
}

void ptac_bag_clear_rest(const ptac_call *call)
{
    const ptac_bag *p = call->params;

    for (int64_t i = p->n_bags; i < p->n_sizes; i++) {
        ptac_bag_put(p, call->outputs[PTAC_BAG_SIZES].data, i, 0);
        ptac_bag_put(p, call->outputs[PTAC_BAG_LARGEST].data, i, 0);
    }
}

void ptac_bag_number(const ptac_call *call, int64_t b, int64_t begin, int64_t end)
{
    void *bag_of = call->outputs[PTAC_BAG_BAG_OF].data;

    if (call->outputs[PTAC_BAG_BAG_OF].n_elements)
        for (int64_t i = begin; i < end; i++)
            ptac_bag_put(call->params, bag_of, i, b);
}

bool ptac_bag_max_gradient(const ptac_call *call, int64_t begin, int64_t end)
{
    const ptac_bag *p = call->params;
    const int64_t width = p->rows.width;
    const float *x = call->inputs[PTAC_BAG_GRAD_X].data;
    const void *largest = call->inputs[PTAC_BAG_GRAD_LARGEST].data;
    const void *sizes = call->inputs[PTAC_BAG_GRAD_SIZES].data;
    float *y = call->outputs[0].data;
    bool has_all = true;

    if (end - begin == width)
        memset(y, 0, (size_t)(p->rows.n_rows * width) * sizeof *y);
    else
        for (int64_t row = 0; row < p->rows.n_rows; row++)
            memset(y + row * width + begin, 0, (size_t)(end - begin) * sizeof *y);
    for (int64_t b = 0; b < p->n_bags; b++) {
        if (ptac_rows_index(&p->rows, sizes, b) == 0)
            continue;
        for (int64_t c = begin; c < end; c++) {
            const int64_t row = ptac_rows_row(&p->rows, largest, b * width + c);

            if (row == PTAC_NO_ROW)
                has_all = false;
            else
                y[row * width + c] += x[b * width + c];
        }
    }
    return has_all;
}

typedef struct bags {
    const ptac_call *call;
    int has_bad; /* an index that the table does not have */
} bags;

/* One more row for a bag that has had n before. */
static void take_row(const ptac_call *call, int64_t b, int64_t row, int64_t n)
{
    const ptac_bag *p = call->params;
    const int64_t width = p->rows.width;
    const float *x = (float *)call->inputs[PTAC_BAG_TABLE].data + row * p->rows.stride;
    float *y = (float *)call->outputs[PTAC_BAG_Y].data + b * width;

    for (int64_t c = 0; c < width; c++) {
        if (p->mode != PTAC_BAG_MAX) {
            y[c] += x[c];
        } else if (n == 0 || x[c] > y[c]) {
            y[c] = x[c];
            ptac_bag_put(p, call->outputs[PTAC_BAG_LARGEST].data, b * width + c, row);
        }
    }
}

static void run_bags(int64_t first, int64_t last, void *context)
{
    bags *job = context;
    const ptac_call *call = job->call;
    const ptac_bag *p = call->params;
    const int64_t width = p->rows.width;
    const void *offsets = call->inputs[PTAC_BAG_OFFSETS].data;

    for (int64_t b = first; b < last; b++) {
        const int64_t begin = ptac_bag_within(p, offsets, b);
        const int64_t end = ptac_bag_within(p, offsets, b + 1);
        float *y = (float *)call->outputs[PTAC_BAG_Y].data + b * width;
        int64_t n = 0;

        for (int64_t c = 0; c < width; c++) {
            y[c] = 0;
            if (p->mode == PTAC_BAG_MAX)
                ptac_bag_put(p, call->outputs[PTAC_BAG_LARGEST].data, b * width + c, 0);
        }
        for (int64_t i = begin; i < end; i++) {
            const int64_t row =
                ptac_rows_row(&p->rows, call->inputs[PTAC_BAG_INDEX].data, i);

            if (row == PTAC_NO_ROW)
                __atomic_store_n(&job->has_bad, 1, __ATOMIC_RELAXED);
            else if (row != p->rows.padding)
                take_row(call, b, row, n++);
        }
        for (int64_t c = 0; c < width && p->mode == PTAC_BAG_MEAN; c++)
            y[c] /= (float)(n ? n : 1);
        ptac_bag_finish(call, b, n);
        ptac_bag_number(call, b, begin, end);
    }
}

static ptac_status run(const ptac_call *call)
{
    bags job = {.call = call};

    if (!ptac_bag_has_offsets(call))
        return PTAC_UNSUITED;
    ptac_bag_clear_rest(call);
    ptac_share_bags(call->params, run_bags, &job);
    return job.has_bad ? PTAC_UNSUITED : PTAC_OK;
}

static void run_columns(int64_t begin, int64_t end, void *context)
{
    bags *job = context;

    if (!ptac_bag_max_gradient(job->call, begin, end))
        __atomic_store_n(&job->has_bad, 1, __ATOMIC_RELAXED);
}

static ptac_status run_gradient(const ptac_call *call)
{
    const ptac_bag *p = call->params;
    bags job = {.call = call};

    ptac_parallel_for(0, p->rows.width, 65536 / (p->n_bags + p->rows.n_rows) + 16,
                      run_columns, &job);
    return job.has_bad ? PTAC_UNSUITED : PTAC_OK;
}

PTAC_ROW(EMBEDDING_BAG, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run)
PTAC_ROW(EMBEDDING_BAG_MAX_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_rows_accepts,
         run_gradient)
