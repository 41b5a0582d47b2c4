/*
 * index.c - x[index], and index_put_ with accumulate, which is its gradient: with one
 * index of the first dimension, or with one for each dimension behind some.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/indexing/indexing_direct.h"

#include <string.h>

/* The only tensor of a list, which nothing stands before or behind; NULL: others do. */
static at_tensor only_index(const at_tensor_list *list)
{
    const at_tensor_values *values = list->values;
    at_value *first = values->begin;

    return values->end - first == 1 && first->tag == AT_VALUE_TENSOR && first->payload
               ? (at_tensor)first
               : NULL;
}

/*
 * Stock lays its result out as the index lies, dimensions of one element included: row
 * by row, as ours, where the index has the strides of a new tensor.
 */
static bool lies_as_new(const ptac_view *index)
{
    int64_t expected = 1;

    for (int i = index->n_dims - 1; i >= 0 && index->n_dims > 1; i--) {
        if (index->strides[i] != expected)
            return false;
        expected *= index->sizes[i];
    }
    return true;
}

/* x[:, i, j]: how many dimensions come before those that have an index each. */
typedef struct columns {
    int n_before, n_indices;
    at_tensor indices[PTAC_MAX_DIMS];
} columns;

static bool is_none(at_value *value)
{
    bool is_defined = false;

    if (value->tag == AT_VALUE_TENSOR && value->payload)
        T.aoti_torch_is_defined((at_tensor)value, &is_defined);
    return !is_defined;
}

static bool find_columns(const at_tensor_list *list, columns *found)
{
    const at_tensor_values *values = list->values;
    const ptrdiff_t n = values->end - values->begin;
    int i = 0;

    *found = (columns){.n_before = 0};
    if (n > PTAC_MAX_DIMS)
        return false;
    for (; i < n && is_none(&values->begin[i]); i++)
        found->n_before++;
    for (; i < n && !is_none(&values->begin[i]); i++)
        found->indices[found->n_indices++] = (at_tensor)&values->begin[i];
    return i == n && found->n_indices > 0;
}

/* The table as rows, whose columns are picked; and the sizes of what is picked. */
static ptac_reason read_columns(ptac_rows_job *j, const columns *found)
{
    ptac_view *table = &j->call.inputs[PTAC_ROWS_TABLE], index;
    ptac_rows *p = &j->rows;

    if (table->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (table->n_dims != found->n_before + found->n_indices)
        return PTAC_ARGUMENT;
    if (table->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_view_is_contiguous(table))
        return PTAC_LAYOUT;
    *p = (ptac_rows){.width = 1, .padding = PTAC_NO_ROW, .of_columns = true};
    for (int i = found->n_before; i < table->n_dims; i++)
        p->width *= table->sizes[i];
    p->stride = p->x_stride = p->width;
    p->n_rows = table->n_elements / p->width;
    for (int i = 0; i < found->n_indices; i++) {
        ptac_reason why;

        ptac_view_of(found->indices[i], &index);
        why = ptac_read_index(found->indices[i], index.n_elements, p);
        if (why)
            return why;
        if (index.n_dims != 1 || (i > 0 && index.n_elements != j->sizes[0]))
            return PTAC_SHAPE;
        if (!ptac_view_is_contiguous(&index))
            return PTAC_LAYOUT;
        j->sizes[0] = index.n_elements;
    }
    j->n_dims = found->n_before + 1;
    memcpy(j->sizes, table->sizes, (size_t)found->n_before * sizeof *j->sizes);
    j->sizes[found->n_before] = p->n;
    return PTAC_TAKE;
}

/* Places in a row by all indices: the job's index. */
static ptac_reason find_places(ptac_rows_job *j, const columns *found)
{
    const ptac_view *table = &j->call.inputs[PTAC_ROWS_TABLE];
    ptac_view *places = &j->call.inputs[PTAC_ROWS_INDEX];
    bool has_all = true;

    if (ptac_new(PTAC_I64, 1, &j->rows.n, NULL, &j->owned.at[PTAC_ROWS_INDEX], places))
        return PTAC_MEMORY;
    memset(places->data, 0, (size_t)j->rows.n * sizeof(int64_t));
    for (int i = 0; i < found->n_indices; i++) {
        ptac_rows of_dim = {.n_rows = table->sizes[found->n_before + i], .wraps = true};
        const void *index = at_data(found->indices[i]);

        if (ptac_read_index(found->indices[i], j->rows.n, &of_dim))
            return PTAC_DTYPE;
        for (int64_t k = 0; k < j->rows.n; k++) {
            const int64_t row = ptac_rows_row(&of_dim, index, k);
            int64_t *place = (int64_t *)places->data + k;

            has_all &= row != PTAC_NO_ROW;
            *place = *place * of_dim.n_rows + row;
        }
    }
    j->rows.has_32_bits = false;
    return has_all ? PTAC_TAKE : PTAC_ARGUMENT;
}

typedef struct index_args {
    at_tensor self;
    const at_tensor_list *indices;
} index_args;

static void stock_index(const void *context, at_tensor *out)
{
    const index_args *args = context;

    out[0] = at_adopt(T.cpu_index(args->self, args->indices).words[0]);
}

static bool serve_columns(const index_args *args, const columns *found, at_tensor *made)
{
    PTAC_ROWS_JOB j;
    const ptac_kernel *row = NULL;
    ptac_reason why;

    ptac_rows_begin(&j, PTAC_OP_INDEX, args->self);
    why = read_columns(&j, found);
    j.call.n_inputs = 2;
    if (!why)
        row = ptac_probe(&j.call, &why);
    if (row)
        why = find_places(&j, found);
    if (!why)
        return ptac_rows_make(&j, row, j.n_dims, j.sizes, stock_index, args, made);
    ptac_refuse(j.call.op, why);
    return false;
}

static bool serve_index(const index_args *args, at_tensor *made)
{
    PTAC_ROWS_JOB j;
    const at_tensor index = only_index(args->indices);
    const ptac_kernel *row;
    columns found;
    ptac_reason why;

    if (!index && find_columns(args->indices, &found))
        return serve_columns(args, &found, made);
    ptac_rows_begin(&j, PTAC_OP_INDEX, args->self);
    why = ptac_rows_read_index(&j, index);
    j.rows.wraps = true;
    if (!why && !lies_as_new(&j.call.inputs[PTAC_ROWS_INDEX]))
        why = PTAC_LAYOUT;
    if (why) {
        ptac_refuse(j.call.op, why);
        return false;
    }
    j.call.n_inputs = 2;
    row = ptac_admit(&j.call);
    if (!row)
        return false;
    ptac_rows_take(&j, PTAC_ROWS_INDEX, index);
    return ptac_rows_make(&j, row, j.n_dims, j.sizes, stock_index, args, made);
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

static bool put_columns(at_tensor self, const put_args *a, const columns *found)
{
    PTAC_ROWS_JOB j;
    ptac_reason why;

    ptac_rows_begin(&j, PTAC_OP_INDEX_PUT, self);
    why = a->accumulate ? read_columns(&j, found) : PTAC_ARGUMENT;
    if (!why)
        why = ptac_rows_read_x(&j, a->values, j.n_dims, j.sizes);
    j.call.n_inputs = PTAC_ROWS_X + 1;
    if (!why && ptac_probe(&j.call, &why))
        why = find_places(&j, found);
    return ptac_rows_add_in_place(&j, why, self, NULL, a->values, stock_index_put, a);
}

static bool serve_index_put(at_tensor self, const put_args *a)
{
    PTAC_ROWS_JOB j;
    const at_tensor index = only_index(a->indices);
    columns found;
    ptac_reason why;

    if (!index && find_columns(a->indices, &found))
        return put_columns(self, a, &found);
    ptac_rows_begin(&j, PTAC_OP_INDEX_PUT, self);
    why = ptac_rows_read_index(&j, index);
    j.rows.wraps = true;
    if (!why && !a->accumulate)
        why = PTAC_ARGUMENT;
    if (!why)
        why = ptac_rows_read_x(&j, a->values, j.n_dims, j.sizes);
    return ptac_rows_add_in_place(&j, why, self, index, a->values, stock_index_put, a);
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

PTAC_ROWS_DIRECT(index, "index", "Tensor", INDEX, typed_index)
PTAC_ROWS_DIRECT(index_put_impl_, "_index_put_impl_", "", INDEX_PUT, typed_index_put)
#endif
