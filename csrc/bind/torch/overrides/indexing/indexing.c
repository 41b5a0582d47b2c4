/*
 * indexing.c - aten::index_select, aten::gather and aten::scatter_add by rows, and the
 * dense gradient of an embedding.
 */
#include "bind/torch/overrides/indexing/indexing.h"

#include "bind/torch/overrides/override.h"

ptac_reason ptac_read_table(const ptac_view *table, ptac_rows *p)
{
    int64_t expected = 1;

    if (table->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (table->n_dims < 1 || table->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (table->n_elements == 0)
        return PTAC_EMPTY;
    for (int i = table->n_dims - 1; i > 0; i--) {
        if (table->sizes[i] != 1 && table->strides[i] != expected)
            return PTAC_LAYOUT;
        expected *= table->sizes[i];
    }
    *p = (ptac_rows){
        .n_rows = table->sizes[0],
        .width = expected,
        .stride = table->sizes[0] == 1 ? expected : table->strides[0],
        .x_stride = expected,
        .padding = PTAC_NO_ROW,
    };
    return PTAC_TAKE;
}

ptac_reason ptac_read_index(at_tensor index, int64_t n, ptac_rows *p)
{
    int32_t dtype = -1;

    T.aoti_torch_get_dtype(index, &dtype);
    if (dtype != AT_DTYPE_I64 && dtype != AT_DTYPE_I32)
        return PTAC_DTYPE;
    p->has_32_bits = dtype == AT_DTYPE_I32;
    p->n = n;
    return n == 0 ? PTAC_EMPTY : PTAC_TAKE;
}

ptac_reason ptac_read_expanded(at_tensor index, const ptac_view *view,
                               const ptac_view *table, ptac_rows *p)
{
    if (view->n_dims != table->n_dims)
        return PTAC_SHAPE;
    if (view->n_elements == 0)
        return PTAC_EMPTY;
    if (view->sizes[0] > 1 && view->strides[0] != 1)
        return PTAC_LAYOUT;
    for (int i = 1; i < view->n_dims; i++) {
        if (view->sizes[i] != table->sizes[i])
            return PTAC_SHAPE;
        if (view->sizes[i] > 1 && view->strides[i] != 0)
            return PTAC_LAYOUT;
    }
    return ptac_read_index(index, view->sizes[0], p);
}

/* The sizes of n rows like the table's. */
static void set_rows(const ptac_view *table, int64_t n, ptac_outputs *outputs)
{
    memcpy(outputs->own_sizes, table->sizes,
           (size_t)table->n_dims * sizeof *table->sizes);
    outputs->own_sizes[0] = n;
    ptac_outputs_are(outputs, table->n_dims, outputs->own_sizes);
}

static ptac_reason read_index_select(const ptac_arguments *args, const ptac_call *call,
                                     void *params, ptac_outputs *outputs)
{
    const ptac_view *table = &call->inputs[PTAC_ROWS_TABLE];
    const ptac_view *index = &call->inputs[PTAC_ROWS_INDEX];
    ptac_reason why = ptac_read_table(table, params);

    if (!why)
        why = ptac_read_index(args->at[2].tensor, index->n_elements, params);
    if (why)
        return why;
    if (!ptac_is_first_dim(args->at[1].number, table->n_dims) || index->n_dims > 1)
        return PTAC_ARGUMENT;
    outputs->dense = 1 << PTAC_ROWS_INDEX;
    set_rows(table, index->n_elements, outputs);
    return PTAC_TAKE;
}

static ptac_reason read_gather(const ptac_arguments *args, const ptac_call *call,
                               void *params, ptac_outputs *outputs)
{
    const ptac_view *table = &call->inputs[PTAC_ROWS_TABLE];
    const ptac_view *index = &call->inputs[PTAC_ROWS_INDEX];
    ptac_reason why = ptac_read_table(table, params);

    if (!why)
        why = ptac_read_expanded(args->at[2].tensor, index, table, params);
    if (why)
        return why;
    if (!ptac_is_first_dim(args->at[1].number, table->n_dims) ||
        args->at[2].view.dtype != PTAC_I64) /* torch wants that */
        return PTAC_ARGUMENT;
    outputs->dense = 0;
    set_rows(table, index->sizes[0], outputs);
    return PTAC_TAKE;
}

static ptac_reason read_scatter_add(const ptac_arguments *args, const ptac_call *call,
                                    void *params, ptac_outputs *outputs)
{
    const ptac_view *table = &call->inputs[PTAC_ROWS_TABLE];
    const ptac_view *index = &call->inputs[PTAC_ROWS_INDEX];
    const ptac_view *x = &call->inputs[PTAC_ROWS_X];
    ptac_reason why = ptac_read_table(table, params);

    if (!why)
        why = ptac_read_expanded(args->at[2].tensor, index, table, params);
    if (why)
        return why;
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!ptac_is_first_dim(args->at[1].number, table->n_dims) ||
        args->at[2].view.dtype != PTAC_I64 ||
        !ptac_view_has_sizes(x, index->n_dims, index->sizes))
        return PTAC_ARGUMENT;
    outputs->dense = 1 << PTAC_ROWS_X;
    set_rows(table, table->sizes[0], outputs);
    return PTAC_TAKE;
}

ptac_reason ptac_read_gradient(const ptac_view *x, int64_t n_rows, ptac_rows *p)
{
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_dims < 1)
        return PTAC_SHAPE;
    if (x->n_elements == 0 || n_rows < 1)
        return PTAC_EMPTY;
    *p = (ptac_rows){
        .n_rows = n_rows,
        .width = x->sizes[x->n_dims - 1],
    };
    p->stride = p->x_stride = p->width;
    p->x_rows = x->n_elements / p->width;
    return PTAC_TAKE;
}

static ptac_reason read_embedding(const ptac_arguments *args, const ptac_call *call,
                                  void *params, ptac_outputs *outputs)
{
    const ptac_view *index = &call->inputs[PTAC_ROWS_INDEX];
    ptac_rows *p = params;
    ptac_reason why = ptac_read_gradient(&call->inputs[0], args->at[2].number, params);

    if (!why)
        why = ptac_read_index(args->at[1].tensor, index->n_elements, params);
    if (why)
        return why;
    p->padding = args->at[3].number;
    outputs->own_sizes[0] = p->n_rows;
    outputs->own_sizes[1] = p->width;
    ptac_outputs_are(outputs, 2, outputs->own_sizes);
    return args->at[4].truth || p->n != p->x_rows ? PTAC_ARGUMENT : PTAC_TAKE;
}

static ptac_override index_select = {
    .schema = "index_select(Tensor self, int dim, Tensor index) -> Tensor",
    .op = PTAC_OP_INDEX_SELECT,
    .out = "aten::index_select.out",
    .n_inputs = 2,
    .inputs = {0, 2},
    .read = read_index_select,
    .by_handles = true,
};
PTAC_OVERRIDE(index_select, cpu_index_select, TENSOR(0), INT(1), TENSOR(2))

static ptac_override gather = {
    .schema = "gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) "
              "-> Tensor",
    .op = PTAC_OP_GATHER,
    .out = "aten::gather.out",
    .n_inputs = 2,
    .inputs = {0, 2},
    .read = read_gather,
    .by_handles = true,
};
PTAC_OVERRIDE(gather, cpu_gather, TENSOR(0), INT(1), TENSOR(2), BOOL(3))

static ptac_override scatter_add = {
    .schema = "scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
    .op = PTAC_OP_SCATTER_ADD,
    .out = "aten::scatter_add.out",
    .n_inputs = 3,
    .inputs = {0, 2, 3},
    .read = read_scatter_add,
    .by_handles = true,
};
PTAC_OVERRIDE(scatter_add, cpu_scatter_add, TENSOR(0), INT(1), TENSOR(2), TENSOR(3))

static ptac_override embedding_backward = {
    .schema = "embedding_dense_backward(Tensor grad_output, Tensor indices, "
              "SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) "
              "-> Tensor",
    .op = PTAC_OP_EMBEDDING_BACKWARD,
    .out = "aten::embedding_dense_backward.out",
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_embedding,
    .by_handles = true,
};
PTAC_OVERRIDE(embedding_backward, cpu_embedding_backward, TENSOR(0), TENSOR(1), INT(2),
              INT(3), BOOL(4))
