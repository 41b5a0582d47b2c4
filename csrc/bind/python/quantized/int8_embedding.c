/*
 * int8_embedding.c - calls of int8_embedding, as int8.c has those of products.
 */
#include "bind/python/quantized/int8.h"

/* Indices in one piece, copied where they are not. */
static ptac_reason read_indices(at_tensor tensor, ptac_quantized_args *read)
{
    ptac_view *view = &read->call.inputs[0];

    ptac_view_of(tensor, view);
    if (view->dtype != PTAC_I64)
        return PTAC_DTYPE;
    if (view->n_dims >= PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (ptac_view_is_contiguous(view))
        return PTAC_TAKE;
    return ptac_int8_copy(tensor, false, read);
}

static ptac_reason read_embedding(PyObject *const *args, ptac_quantized_args *read)
{
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
    read->params.embedding = (ptac_int8_embedding){
        .n_indices = inputs[0].n_elements,
        .n_rows = inputs[1].sizes[0],
        .width = inputs[1].sizes[1],
    };
    read->call.n_inputs = 3;
    return PTAC_TAKE;
}

/* The sizes of the indices, and the table's width. */
static at_tensor new_result(const ptac_quantized_args *read)
{
    const ptac_view *indices = &read->call.inputs[0];

    return ptac_int8_new_rows(indices, indices->n_dims, read->params.embedding.width);
}

/* int8_embedding(indices, weight_int8, scale) -> y or None */
PTAC_QUANTIZED_OP(int8_embedding, PTAC_OP_INT8_EMBEDDING, 3, 0,
                  "indices, weight_int8, scale", 0, read_embedding, new_result, NULL)
