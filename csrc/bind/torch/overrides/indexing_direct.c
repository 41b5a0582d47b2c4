/*
 * indexing_direct.c - x[index], index_add, and what adds rows in place: scatter_add_,
 * index_add_, and index_put_ with accumulate, which is the gradient of x[index].
 */
#ifdef __x86_64__
#include "bind/torch/overrides/direct.h"
#include "bind/torch/overrides/indexing.h"

#include <string.h>

/* A call of ours, and what it borrows or owns. */
typedef struct job {
    ptac_call call;
    ptac_rows rows;
    at_tensors owned; /* dense copies of inputs */
    int64_t sizes[PTAC_MAX_DIMS];
    int n_dims;
} job;

static void drop_job(job *j)
{
    at_drop_tensors(&j->owned);
}

#define JOB __attribute__((cleanup(drop_job))) job

static void begin(job *j, ptac_op op, at_tensor table)
{
    j->call = (ptac_call){.op = op, .on = PTAC_ON_CPU, .params = &j->rows};
    j->owned = (at_tensors){{NULL}};
    ptac_view_of(table, &j->call.inputs[PTAC_ROWS_TABLE]);
}

/* Have an input be dense. */
static void take(job *j, int i, at_tensor tensor)
{
    ptac_view *view = &j->call.inputs[i];

    if (!ptac_view_is_contiguous(view)) {
        j->owned.at[i] = at_dense(tensor, view, false);
        ptac_view_of(j->owned.at[i], view);
    }
    j->call.n_inputs = i + 1;
}

/* The only tensor of a list, which nothing stands before or behind; NULL: others do. */
static at_tensor only_index(const at_tensor_list *list)
{
    const at_tensor_values *values = list->values;
    at_value *first = values->begin;

    return values->end - first == 1 && first->tag == AT_VALUE_TENSOR && first->payload
               ? (at_tensor)first
               : NULL;
}

/* Sizes of what table[index] is. */
static ptac_reason size_up(job *j)
{
    const ptac_view *table = &j->call.inputs[PTAC_ROWS_TABLE];
    const ptac_view *index = &j->call.inputs[PTAC_ROWS_INDEX];

    j->n_dims = index->n_dims + table->n_dims - 1;
    if (j->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    memcpy(j->sizes, index->sizes, (size_t)index->n_dims * sizeof *j->sizes);
    memcpy(j->sizes + index->n_dims, table->sizes + 1,
           (size_t)(table->n_dims - 1) * sizeof *j->sizes);
    return PTAC_TAKE;
}

/* Read the table and the index of table[index]. */
static ptac_reason read_index(job *j, at_tensor index)
{
    ptac_view *view = &j->call.inputs[PTAC_ROWS_INDEX];
    ptac_reason why = ptac_read_table(&j->call.inputs[PTAC_ROWS_TABLE], &j->rows);

    if (why)
        return why;
    if (!index)
        return PTAC_ARGUMENT;
    ptac_view_of(index, view);
    why = ptac_read_index(index, view->n_elements, &j->rows);
    return why ? why : size_up(j);
}

/* The x of an addition, of sizes as they have to be. */
static ptac_reason read_x(job *j, at_tensor x, int n_dims, const int64_t *sizes)
{
    ptac_view *view = &j->call.inputs[PTAC_ROWS_X];

    ptac_view_of(x, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    return ptac_view_has_sizes(view, n_dims, sizes) ? PTAC_TAKE : PTAC_ARGUMENT;
}

/* index_add's arguments; read_x() wants n rows like the table's. */
static ptac_reason read_index_add(job *j, int64_t dim, at_tensor index, at_tensor x)
{
    const ptac_view *table = &j->call.inputs[PTAC_ROWS_TABLE];
    ptac_reason why = read_index(j, index);

    if (why)
        return why;
    if (!ptac_is_first_dim(dim, table->n_dims))
        return PTAC_ARGUMENT;
    return j->call.inputs[PTAC_ROWS_INDEX].n_dims == 1
               ? read_x(j, x, j->n_dims, j->sizes)
               : PTAC_SHAPE;
}

/* A number of torch's, as it comes out of a tensor, reads as we think. */
static bool reads_as(int32_t dtype, double real, int64_t number, int32_t tag)
{
    AT_OWNED at_tensor tensor = NULL;
    at_scalar scalar;

    if (at_new(dtype, 0, NULL, &tensor))
        return false;
    memcpy(at_data(tensor), tag == AT_SCALAR_REAL ? (void *)&real : (void *)&number,
           sizeof number);
    scalar = T.cpu_scalar(tensor);
    return scalar.tag == tag &&
           (tag == AT_SCALAR_REAL ? scalar.real == real : scalar.number == number);
}

static bool can_read_scalars(void)
{
    enum { UNKNOWN, YES, NO };
    static int known;
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);

    if (now == UNKNOWN) {
        now = T.cpu_scalar && reads_as(AT_DTYPE_F64, 1, 0, AT_SCALAR_REAL) &&
                      reads_as(AT_DTYPE_F64, 3, 0, AT_SCALAR_REAL) &&
                      reads_as(AT_DTYPE_I64, 0, 1, AT_SCALAR_INT) &&
                      reads_as(AT_DTYPE_I64, 0, 3, AT_SCALAR_INT)
                  ? YES
                  : NO;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now == YES;
}

static bool is_one(const at_scalar *alpha)
{
    if (!can_read_scalars())
        return false;
    return (alpha->tag == AT_SCALAR_INT && alpha->number == 1) ||
           (alpha->tag == AT_SCALAR_REAL && alpha->real == 1);
}

/* The bytes that elements of a view lie in. */
static void extent_of(const ptac_view *view, int64_t bytes, char **begin, char **end)
{
    int64_t last = 0;

    for (int i = 0; i < view->n_dims; i++)
        last += (view->sizes[i] - 1) * view->strides[i];
    *begin = view->data;
    *end = *begin + (last + 1) * bytes;
}

/* Stock refuses tables that lie on themselves, or on what is read meanwhile. */
static bool lies_apart(const job *j)
{
    const ptac_view *views = j->call.inputs;
    char *begin, *end;

    if (j->rows.n_rows > 1 && j->rows.stride < j->rows.width)
        return false;
    extent_of(&views[PTAC_ROWS_TABLE], sizeof(float), &begin, &end);
    for (int i = PTAC_ROWS_INDEX; i <= PTAC_ROWS_X; i++) {
        const int bytes = i == PTAC_ROWS_X || j->rows.has_32_bits ? 4 : 8;
        char *other_begin, *other_end;

        extent_of(&views[i], bytes, &other_begin, &other_end);
        if (begin < other_end && other_begin < end)
            return false;
    }
    return true;
}

/* Add to the table itself. False: stock has to; the reason has been counted. */
static bool add_in_place(job *j, ptac_reason why, at_tensor self, at_tensor index,
                         at_tensor x, ptac_stock_in_place stock, const void *context)
{
    const ptac_kernel *row;

    if (!why && !lies_apart(j))
        why = PTAC_OVERLAP;
    if (why) {
        ptac_refuse(j->call.op, why);
        return false;
    }
    j->call.n_inputs = PTAC_ROWS_X + 1;
    row = ptac_admit(&j->call);
    if (!row)
        return false;
    if (index) /* else its first column is dense as it is */
        take(j, PTAC_ROWS_INDEX, index);
    take(j, PTAC_ROWS_X, x);
    j->call.n_outputs = 1;
    j->call.outputs[0] = j->call.inputs[PTAC_ROWS_TABLE];
    return ptac_run_in_place(row, &j->call, self, stock, context);
}

/* A new tensor of these sizes, by a row that has been admitted. */
static bool make(job *j, const ptac_kernel *row, int n_dims, const int64_t *sizes,
                 ptac_stock_fn stock, const void *context, at_tensor *made)
{
    if (ptac_new(PTAC_F32, n_dims, sizes, NULL, made, &j->call.outputs[0])) {
        ptac_refuse(j->call.op, PTAC_MEMORY);
        return false;
    }
    j->call.n_outputs = 1;
    return ptac_run_checked(row, &j->call, 1, made, stock, context);
}

/* x[index] */

typedef struct index_args {
    at_tensor self;
    const at_tensor_list *indices;
} index_args;

static void stock_index(const void *context, at_tensor *out)
{
    const index_args *args = context;

    out[0] = at_adopt(T.cpu_index(args->self, args->indices).words[0]);
}

static bool serve_index(const index_args *args, at_tensor *made)
{
    JOB j;
    const at_tensor index = only_index(args->indices);
    const ptac_kernel *row;
    ptac_reason why;

    begin(&j, PTAC_OP_INDEX, args->self);
    why = read_index(&j, index);
    j.rows.wraps = true;
    if (why) {
        ptac_refuse(j.call.op, why);
        return false;
    }
    j.call.n_inputs = 2;
    row = ptac_admit(&j.call);
    if (!row)
        return false;
    take(&j, PTAC_ROWS_INDEX, index);
    return make(&j, row, j.n_dims, j.sizes, stock_index, args, made);
}

static void *typed_index(void **result, void *functor, uint64_t keys, at_tensor self,
                         const at_tensor_list *indices)
{
    PTAC_IN_FLIGHT;
    const index_args args = {self, indices};
    AT_OWNED at_tensor made = NULL;

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_INDEX) && serve_index(&args, &made))
        *result = at_release(&made);
    else
        *result = T.cpu_index(self, indices).words[0];
    return result;
}

/* index_add, in place or not */

typedef struct add_args {
    at_tensor self;
    int64_t dim;
    at_tensor index, x;
    const at_scalar *alpha;
} add_args;

static void stock_index_add(const void *context, at_tensor *out)
{
    const add_args *a = context;

    out[0] =
        at_adopt(T.cpu_index_add(a->self, a->dim, a->index, a->x, a->alpha).words[0]);
}

static void stock_index_add_(at_tensor self, const void *context)
{
    const add_args *a = context;

    T.cpu_index_add_(self, a->dim, a->index, a->x, a->alpha);
}

static ptac_reason read_addition(job *j, const add_args *a)
{
    begin(j, PTAC_OP_INDEX_ADD, a->self);
    return is_one(a->alpha) ? read_index_add(j, a->dim, a->index, a->x) : PTAC_ARGUMENT;
}

static bool serve_index_add(const add_args *a, at_tensor *made)
{
    JOB j;
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
    take(&j, PTAC_ROWS_INDEX, a->index);
    take(&j, PTAC_ROWS_X, a->x);
    return make(&j, row, table->n_dims, table->sizes, stock_index_add, a, made);
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
    JOB j;
    const ptac_reason why = read_addition(&j, a);

    return add_in_place(&j, why, a->self, a->index, a->x, stock_index_add_, a);
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

static ptac_reason read_scatter(job *j, const add_args *a)
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
    return read_x(j, a->x, index->n_dims, index->sizes);
}

static bool serve_scatter_add_(const add_args *a)
{
    JOB j;
    ptac_reason why;

    begin(&j, PTAC_OP_SCATTER_ADD, a->self);
    why = read_scatter(&j, a);
    return add_in_place(&j, why, a->self, NULL, a->x, stock_scatter_add_, a);
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

/* index_put_ */

typedef struct put_args {
    const at_tensor_list *indices;
    at_tensor values;
    bool accumulate, is_unsafe;
} put_args;

static void stock_index_put(at_tensor self, const void *context)
{
    const put_args *a = context;

    T.cpu_index_put_impl_(self, a->indices, a->values, a->accumulate, a->is_unsafe);
}

static bool serve_index_put(at_tensor self, const put_args *a)
{
    JOB j;
    const at_tensor index = only_index(a->indices);
    ptac_reason why;

    begin(&j, PTAC_OP_INDEX_PUT, self);
    why = read_index(&j, index);
    j.rows.wraps = true;
    if (!why && !a->accumulate)
        why = PTAC_ARGUMENT;
    if (!why)
        why = read_x(&j, a->values, j.n_dims, j.sizes);
    return add_in_place(&j, why, self, index, a->values, stock_index_put, a);
}

static at_tensor typed_index_put(void *functor, uint64_t keys, at_tensor self,
                                 const at_tensor_list *indices, at_tensor values,
                                 bool accumulate, bool is_unsafe)
{
    PTAC_IN_FLIGHT;
    const put_args args = {indices, values, accumulate, is_unsafe};

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_INDEX_PUT) && serve_index_put(self, &args))
        return self;
    return T.cpu_index_put_impl_(self, indices, values, accumulate, is_unsafe);
}

#define DIRECT(in_c, of_name, of_overload, of_op, function)                            \
    static ptac_direct direct_##in_c = {                                               \
        .name = of_name,                                                               \
        .overload = of_overload,                                                       \
        .op = PTAC_OP_##of_op,                                                         \
        .symbol = &T.cpu_##in_c,                                                       \
        .typed = (const void *)(uintptr_t)function,                                    \
    };                                                                                 \
    PTAC_DIRECT(direct_##in_c)

DIRECT(index, "index", "Tensor", INDEX, typed_index)
DIRECT(index_add, "index_add", "", INDEX_ADD, typed_index_add)
DIRECT(index_add_, "index_add_", "", INDEX_ADD, typed_index_add_)
DIRECT(scatter_add_, "scatter_add_", "", SCATTER_ADD, typed_scatter_add_)
DIRECT(index_put_impl_, "_index_put_impl_", "", INDEX_PUT, typed_index_put)
#endif
