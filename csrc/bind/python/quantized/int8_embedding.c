/*
 * int8_embedding.c - calls of int8_embedding, as int8.c has those of products.
 */
#include "bind/python/quantized/int8.h"

#include "ops/int8/embedding/int8_embedding.h"

enum {
    N_ARGS = 3, /* indices, weight_int8, scale */
};

typedef struct embedding_args {
    ptac_int8_embedding params;
    ptac_call call;
    at_tensor copy, y; /* owned, or NULL: indices without gaps, and the result */
} embedding_args;

/* Indices in one piece, copied where they are not. */
static ptac_reason read_indices(at_tensor tensor, embedding_args *read)
{
    ptac_view *view = &read->call.inputs[0];

    ptac_view_of(tensor, view);
    if (view->dtype != PTAC_I64)
        return PTAC_DTYPE;
    if (view->n_dims >= PTAC_INT8_MOST_DIMS)
        return PTAC_SHAPE;
    if (ptac_view_is_contiguous(view))
        return PTAC_TAKE;
    read->copy = ptac_int8_dense(tensor, false);
    if (!read->copy)
        return PTAC_MEMORY;
    T.aoti_torch_get_data_ptr(read->copy, &view->data);
    return PTAC_TAKE;
}

static ptac_reason read_embedding(PyObject *const *args, embedding_args *read)
{
    ptac_int8_embedding *p = &read->params;
    ptac_view *inputs = read->call.inputs;
    ptac_reason why;

    if (!ptac_is_plain(args[0]))
        return PTAC_SUBCLASS;
    if (!ptac_int8_read(args[1], AT_DTYPE_I8, -1, &inputs[1]) ||
        inputs[1].n_dims != 2 ||
        !ptac_int8_read(args[2], AT_DTYPE_F32, inputs[1].sizes[0], &inputs[2]))
        return PTAC_ARGUMENT;
    why = read_indices(ptac_borrow(args[0]), read);
    if (why)
        return why;
    *p = (ptac_int8_embedding){
        .n_indices = inputs[0].n_elements,
        .n_rows = inputs[1].sizes[0],
        .width = inputs[1].sizes[1],
    };
    read->call.op = PTAC_OP_INT8_EMBEDDING;
    read->call.n_inputs = N_ARGS;
    read->call.params = p;
    return PTAC_TAKE;
}

/* The sizes of the indices, and the table's width. */
static at_tensor new_result(const embedding_args *read)
{
    const ptac_view *indices = &read->call.inputs[0];
    int64_t sizes[PTAC_INT8_MOST_DIMS];

    for (int i = 0; i < indices->n_dims; i++)
        sizes[i] = indices->sizes[i];
    sizes[indices->n_dims] = read->params.width;
    return ptac_int8_new(indices->n_dims + 1, sizes, AT_DTYPE_F32);
}

static bool run_embedding(embedding_args *read, const ptac_kernel *row)
{
    read->y = new_result(read);
    return ptac_int8_run(row, &read->call, read->y);
}

static PyObject *try_embedding(PyObject *const *args, Py_ssize_t n_args, bool is_kernel)
{
    embedding_args read = {.call = {.op = PTAC_OP_INT8_EMBEDDING}};
    const ptac_kernel *row;
    ptac_reason why;
    PyObject *result;

    if (n_args != N_ARGS)
        return PyErr_Format(PyExc_TypeError, "indices, weight_int8, scale");
    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_INT8_EMBEDDING) || (!is_kernel && ptac_why_not_lean()))
        Py_RETURN_NONE; /* the kernel counts it */
    why = read_embedding(args, &read);
    row = ptac_int8_admit(&read.call, why, is_kernel);
    if (row && run_embedding(&read, row))
        result = ptac_wrap(at_give(&read.y));
    else
        result = Py_NewRef(Py_None);
    at_drop_tensor(&read.y);
    at_drop_tensor(&read.copy);
    return result;
}

/* int8_embedding(indices, weight_int8, scale) -> y or None */
static PyObject *int8_embedding(PyObject *self, PyObject *const *args,
                                Py_ssize_t n_args)
{
    (void)self;
    return try_embedding(args, n_args, false);
}

static PyObject *int8_embedding_kernel(PyObject *self, PyObject *const *args,
                                       Py_ssize_t n_args)
{
    (void)self;
    return try_embedding(args, n_args, true);
}

PyMethodDef ptac_int8_embedding_methods[] = {
    PTAC_FASTCALL(int8_embedding, NULL),
    PTAC_FASTCALL(int8_embedding_kernel, NULL),
    {NULL, NULL, 0, NULL},
};
