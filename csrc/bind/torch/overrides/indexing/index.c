/*
 * index.c - x[index] with one index, and index_put_ with accumulate, which is its
 * gradient.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/indexing/indexing_direct.h"

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
    PTAC_ROWS_JOB j;
    const at_tensor index = only_index(args->indices);
    const ptac_kernel *row;
    ptac_reason why;

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

static bool serve_index_put(at_tensor self, const put_args *a)
{
    PTAC_ROWS_JOB j;
    const at_tensor index = only_index(a->indices);
    ptac_reason why;

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
