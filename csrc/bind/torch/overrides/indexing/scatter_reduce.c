/*
 * scatter_reduce.c - scatter_reduce and scatter_reduce_, and scatter of one value, in
 * place or not.
 *
 * Of rows: along the first dimension, by an index that is expanded over the others.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/indexing/indexing_direct.h"
#include "ops/indexing/reduce.h"

#include <string.h>

typedef struct reduce_args {
    at_tensor self;
    int64_t dim;
    at_tensor index, x; /* x: NULL where a value is scattered */
    at_text how;
    bool has_self;
    const at_scalar *value;
} reduce_args;

typedef struct reduce_job {
    ptac_rows_job rows;
    ptac_reduction reduction;
} reduce_job;

static void drop_job(reduce_job *j)
{
    ptac_rows_drop(&j->rows);
}

#define REDUCE_JOB __attribute__((cleanup(drop_job))) reduce_job

static bool read_how(at_text text, ptac_reducing_how *how)
{
    static const struct {
        const char *name;
        ptac_reducing_how how;
    } all[] = {{"sum", PTAC_REDUCE_SUM},
               {"mean", PTAC_REDUCE_MEAN},
               {"amax", PTAC_REDUCE_LARGEST},
               {"amin", PTAC_REDUCE_SMALLEST}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *how = all[i].how;
        if (strlen(all[i].name) == text.length &&
            memcmp(all[i].name, text.text, text.length) == 0)
            return true;
    }
    return false;
}

/*
 * Where stock sorts the index and takes rows by vectors, whose maxima are the later one
 * of two zeros: ATen's can_use_expanded_index_path(). Its other way keeps the earlier.
 */
static bool stock_sorts(const ptac_call *call, bool in_place)
{
    enum { LEAST_WIDTH = 16 };
    const ptac_view *index = &call->inputs[PTAC_ROWS_INDEX];

    if (index->strides[0] != 1 || index->n_elements / index->sizes[0] < LEAST_WIDTH)
        return false;
    for (int i = 1; i < index->n_dims; i++)
        if (index->strides[i] > 1 || (index->strides[i] == 1 && index->sizes[i] > 1))
            return false;
    return ptac_view_is_contiguous(&call->inputs[PTAC_ROWS_X]) &&
           (!in_place || ptac_view_is_contiguous(&call->inputs[PTAC_ROWS_TABLE]));
}

/* The table and the index, as stock has them. */
static ptac_reason read_rows(reduce_job *j, const reduce_args *a)
{
    ptac_rows_job *rows = &j->rows;
    const ptac_view *table = &rows->call.inputs[PTAC_ROWS_TABLE];
    ptac_view *index = &rows->call.inputs[PTAC_ROWS_INDEX];
    ptac_reason why = ptac_read_table(table, &rows->rows);

    if (why)
        return why;
    ptac_view_of(a->index, index);
    why = ptac_read_expanded(a->index, index, table, &rows->rows);
    if (why)
        return why;
    return ptac_is_first_dim(a->dim, table->n_dims) && index->dtype == PTAC_I64
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

static ptac_reason read_job(reduce_job *j, const reduce_args *a, bool in_place)
{
    static const double MOST = 0x1p53;
    const ptac_view *index = &j->rows.call.inputs[PTAC_ROWS_INDEX];
    ptac_reduction *r = &j->reduction;
    double value = 0;
    ptac_reason why;

    ptac_rows_begin(&j->rows, a->x ? PTAC_OP_SCATTER_REDUCE : PTAC_OP_SCATTER, a->self);
    *r = (ptac_reduction){.has_self = a->has_self};
    j->rows.call.params = r;
    why = read_rows(j, a);
    if (why)
        return why;
    if (a->x ? !read_how(a->how, &r->how) : !ptac_scalar_read(a->value, &value))
        return PTAC_ARGUMENT;
    if (a->x) {
        why = ptac_rows_read_x(&j->rows, a->x, index->n_dims, index->sizes);
        if (why)
            return why;
        r->has_later = stock_sorts(&j->rows.call, in_place);
    }
    /* Beyond, stock rounds integers in another way, or refuses what is no float. */
    if (value > MOST || value < -MOST)
        return PTAC_ARGUMENT;
    r->value = (float)value;
    r->rows = j->rows.rows;
    return PTAC_TAKE;
}

/* Without what the table has, it calls scatter_ by the dispatcher. */
static void stock_made(const void *context, at_tensor *out)
{
    PTAC_MUTED;
    const reduce_args *a = context;
    const at_result made = a->x ? T.cpu_scatter_reduce(a->self, a->dim, a->index, a->x,
                                                       a->how, a->has_self)
                                : T.cpu_scatter(a->self, a->dim, a->index, a->value);

    out[0] = at_adopt(made.words[0]);
}

static void stock_in_place(at_tensor self, const void *context)
{
    PTAC_MUTED;
    const reduce_args *a = context;

    if (a->x)
        T.cpu_scatter_reduce_(self, a->dim, a->index, a->x, a->how, a->has_self);
    else
        T.cpu_scatter_(self, a->dim, a->index, a->value);
}

static bool serve_made(const reduce_args *a, at_tensor *made)
{
    REDUCE_JOB j;
    ptac_call *call = &j.rows.call;
    const ptac_reason why = read_job(&j, a, false);
    const ptac_view *table = &call->inputs[PTAC_ROWS_TABLE];
    const ptac_kernel *row;

    if (why) {
        ptac_refuse(call->op, why);
        return false;
    }
    call->n_inputs = a->x ? PTAC_ROWS_X + 1 : PTAC_ROWS_INDEX + 1;
    row = ptac_admit(call);
    if (!row)
        return false;
    if (a->x)
        ptac_rows_take(&j.rows, PTAC_ROWS_X, a->x);
    return ptac_rows_make(&j.rows, row, table->n_dims, table->sizes, stock_made, a,
                          made);
}

static bool serve_in_place(const reduce_args *a)
{
    REDUCE_JOB j;
    const ptac_reason why = read_job(&j, a, true);

    return ptac_rows_add_in_place(&j.rows, why, a->self, NULL, a->x, stock_in_place, a);
}

static void *typed_scatter_reduce(void **result, void *functor, uint64_t keys,
                                  at_tensor self, int64_t dim, at_tensor index,
                                  at_tensor x, at_text how, bool has_self)
{
    PTAC_IN_FLIGHT;
    const reduce_args args = {self, dim, index, x, how, has_self, NULL};
    AT_OWNED at_tensor made = NULL;

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_SCATTER_REDUCE) && serve_made(&args, &made))
        *result = at_release(&made);
    else
        *result = T.cpu_scatter_reduce(self, dim, index, x, how, has_self).words[0];
    return result;
}

static at_tensor typed_scatter_reduce_(void *functor, uint64_t keys, at_tensor self,
                                       int64_t dim, at_tensor index, at_tensor x,
                                       at_text how, bool has_self)
{
    PTAC_IN_FLIGHT;
    const reduce_args args = {self, dim, index, x, how, has_self, NULL};

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_SCATTER_REDUCE) && serve_in_place(&args))
        return self;
    return T.cpu_scatter_reduce_(self, dim, index, x, how, has_self);
}

static void *typed_scatter(void **result, void *functor, uint64_t keys, at_tensor self,
                           int64_t dim, at_tensor index, const at_scalar *value)
{
    PTAC_IN_FLIGHT;
    const reduce_args args = {.self = self, .dim = dim, .index = index, .value = value};
    AT_OWNED at_tensor made = NULL;

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_SCATTER) && serve_made(&args, &made))
        *result = at_release(&made);
    else
        *result = T.cpu_scatter(self, dim, index, value).words[0];
    return result;
}

static at_tensor typed_scatter_(void *functor, uint64_t keys, at_tensor self,
                                int64_t dim, at_tensor index, const at_scalar *value)
{
    PTAC_IN_FLIGHT;
    const reduce_args args = {.self = self, .dim = dim, .index = index, .value = value};

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_SCATTER) && serve_in_place(&args))
        return self;
    return T.cpu_scatter_(self, dim, index, value);
}

PTAC_ROWS_DIRECT(scatter_reduce, "scatter_reduce", "two", SCATTER_REDUCE,
                 typed_scatter_reduce)
PTAC_ROWS_DIRECT(scatter_reduce_, "scatter_reduce_", "two", SCATTER_REDUCE,
                 typed_scatter_reduce_)
PTAC_ROWS_DIRECT(scatter, "scatter", "value", SCATTER, typed_scatter)
PTAC_ROWS_DIRECT(scatter_, "scatter_", "value", SCATTER, typed_scatter_)
#endif
