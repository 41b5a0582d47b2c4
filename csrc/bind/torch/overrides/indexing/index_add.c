/*
 * index_add.c - index_add, index_add_ and scatter_add_.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/indexing/indexing_direct.h"

#include <string.h>

static bool is_one(const at_scalar *alpha)
{
    double value;

    return ptac_scalar_read(alpha, &value) && value == 1;
}

/* index_add's arguments; ptac_rows_read_x() wants n rows like the table's. */
static ptac_reason read_index_add(ptac_rows_job *j, int64_t dim, at_tensor index,
                                  at_tensor x)
{
    const ptac_view *table = &j->call.inputs[PTAC_ROWS_TABLE];
    ptac_reason why = ptac_rows_read_index(j, index);

    if (why)
        return why;
    if (!ptac_is_first_dim(dim, table->n_dims))
        return PTAC_ARGUMENT;
    return j->call.inputs[PTAC_ROWS_INDEX].n_dims == 1
               ? ptac_rows_read_x(j, x, j->n_dims, j->sizes)
               : PTAC_SHAPE;
}

/* index_add, in place or not */

typedef struct add_args {
    at_tensor self;
    int64_t dim;
    at_tensor index, x;
    const at_scalar *alpha;
} add_args;

/* It calls scatter_add_ by the dispatcher. */
static void stock_index_add(const void *context, at_tensor *out)
{
    PTAC_MUTED;
    const add_args *a = context;

    out[0] =
        at_adopt(T.cpu_index_add(a->self, a->dim, a->index, a->x, a->alpha).words[0]);
}

static void stock_index_add_(at_tensor self, const void *context)
{
    const add_args *a = context;

    T.cpu_index_add_(self, a->dim, a->index, a->x, a->alpha);
}

static ptac_reason read_addition(ptac_rows_job *j, const add_args *a)
{
    ptac_rows_begin(j, PTAC_OP_INDEX_ADD, a->self);
    return is_one(a->alpha) ? read_index_add(j, a->dim, a->index, a->x) : PTAC_ARGUMENT;
}

static bool serve_index_add(const add_args *a, at_tensor *made)
{
    PTAC_ROWS_JOB j;
    const ptac_view *table = &j.call.inputs[PTAC_ROWS_TABLE];
    const ptac_reason why = read_addition(&j, a);
    const ptac_kernel *row;

    if (why) {
        ptac_refuse(j.call.op, why);
        return false;
    }
    j.call.n_inputs = PTAC_ROWS_X + 1;
    row = ptac_admit(&j.call);
    if (!row)
        return false;
    ptac_rows_take(&j, PTAC_ROWS_INDEX, a->index);
    ptac_rows_take(&j, PTAC_ROWS_X, a->x);
    return ptac_rows_make(&j, row, table->n_dims, table->sizes, stock_index_add, a,
                          made);
}

static void *typed_index_add(void **result, void *functor, uint64_t keys,
                             at_tensor self, int64_t dim, at_tensor index, at_tensor x,
                             const at_scalar *alpha)
{
    PTAC_IN_FLIGHT;
    const add_args args = {self, dim, index, x, alpha};
    AT_OWNED at_tensor made = NULL;

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_INDEX_ADD) && serve_index_add(&args, &made))
        *result = at_release(&made);
    else
        *result = T.cpu_index_add(self, dim, index, x, alpha).words[0];
    return result;
}

static bool serve_index_add_(const add_args *a)
{
    PTAC_ROWS_JOB j;
    const ptac_reason why = read_addition(&j, a);

    return ptac_rows_add_in_place(&j, why, a->self, a->index, a->x, stock_index_add_,
                                  a);
}

static at_tensor typed_index_add_(void *functor, uint64_t keys, at_tensor self,
                                  int64_t dim, at_tensor index, at_tensor x,
                                  const at_scalar *alpha)
{
    PTAC_IN_FLIGHT;
    const add_args args = {self, dim, index, x, alpha};

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_INDEX_ADD) && serve_index_add_(&args))
        return self;
    return T.cpu_index_add_(self, dim, index, x, alpha);
}

/* scatter_add_ */

static void stock_scatter_add_(at_tensor self, const void *context)
{
    const add_args *a = context;

    T.cpu_scatter_add_(self, a->dim, a->index, a->x);
}

static ptac_reason read_scatter(ptac_rows_job *j, const add_args *a)
{
    const ptac_view *table = &j->call.inputs[PTAC_ROWS_TABLE];
    ptac_view *index = &j->call.inputs[PTAC_ROWS_INDEX];
    ptac_reason why = ptac_read_table(table, &j->rows);

    if (why)
        return why;
    ptac_view_of(a->index, index);
    why = ptac_read_expanded(a->index, index, table, &j->rows);
    if (why)
        return why;
    if (!ptac_is_first_dim(a->dim, table->n_dims) || index->dtype != PTAC_I64)
        return PTAC_ARGUMENT;
    return ptac_rows_read_x(j, a->x, index->n_dims, index->sizes);
}

static bool serve_scatter_add_(const add_args *a)
{
    PTAC_ROWS_JOB j;
    ptac_reason why;

    ptac_rows_begin(&j, PTAC_OP_SCATTER_ADD, a->self);
    why = read_scatter(&j, a);
    return ptac_rows_add_in_place(&j, why, a->self, NULL, a->x, stock_scatter_add_, a);
}

static at_tensor typed_scatter_add_(void *functor, uint64_t keys, at_tensor self,
                                    int64_t dim, at_tensor index, at_tensor x)
{
    PTAC_IN_FLIGHT;
    const add_args args = {self, dim, index, x, NULL};

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_SCATTER_ADD) && serve_scatter_add_(&args))
        return self;
    return T.cpu_scatter_add_(self, dim, index, x);
}

PTAC_ROWS_DIRECT(index_add, "index_add", "", INDEX_ADD, typed_index_add)
PTAC_ROWS_DIRECT(index_add_, "index_add_", "", INDEX_ADD, typed_index_add_)
PTAC_ROWS_DIRECT(scatter_add_, "scatter_add_", "", SCATTER_ADD, typed_scatter_add_)
#endif
