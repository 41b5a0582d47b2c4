/*
 * embedding_bag.c - aten::_embedding_bag_dense_backward of sums.
 *
 * Stock sorts the indices and adds up in that order. Its sort leaves equal ones in any
 * order, on which the sums' bits depend: the same sort is called here.
 */
#include "bind/torch/overrides/indexing/indexing.h"

#include "bind/torch/overrides/override.h"

enum {
    SUM = 0,
    GRAD = 0,
    INDICES,
    OFFSET2BAG,
    N_WEIGHTS = 5,
    BY_FREQUENCY,
    MODE,
    WEIGHTS,
    PADDING,
};

/* Means and weighted sums round as the BLAS that torch calls does. */
static ptac_reason read(const ptac_arguments *args, ptac_rows *p)
{
    const ptac_view *grad = &args->at[GRAD].view;
    const ptac_view *index = &args->at[INDICES].view;
    const ptac_view *source = &args->at[OFFSET2BAG].view;
    ptac_reason why = ptac_read_gradient(grad, args->at[N_WEIGHTS].number, p);
    bool has_32_bits;

    if (!why)
        why = ptac_read_index(args->at[OFFSET2BAG].tensor, source->n_elements, p);
    if (why)
        return why;
    has_32_bits = p->has_32_bits;
    why = ptac_read_index(args->at[INDICES].tensor, index->n_elements, p);
    if (why)
        return why;
    p->padding = args->at[PADDING].number;
    return args->at[BY_FREQUENCY].truth || args->at[MODE].number != SUM ||
                   args->at[WEIGHTS].is_given || grad->n_dims != 2 ||
                   index->n_dims != 1 || source->n_elements != p->n ||
                   has_32_bits != p->has_32_bits
               ? PTAC_ARGUMENT
               : PTAC_TAKE;
}

static void take(const ptac_arguments *args, int which, int i, ptac_call *call,
                 at_tensors *owned)
{
    owned->at[i] = at_dense(args->at[which].tensor, &args->at[which].view, false);
    ptac_view_of(owned->at[i], &call->inputs[i]);
}

static bool serve(const ptac_arguments *args, at_tensor *out)
{
    AT_OWNED_ALL at_tensors owned = {{NULL}};
    ptac_rows rows;
    ptac_call call = {.op = PTAC_OP_EMBEDDING_BAG_BACKWARD, .params = &rows};
    const ptac_reason why = read(args, &rows);
    const int64_t sizes[] = {rows.n_rows, rows.width};
    const ptac_kernel *row;
    at_tensor sorted[2];

    call.inputs[GRAD] = args->at[GRAD].view;
    call.n_inputs = 1;
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    row = ptac_admit(&call);
    if (!row)
        return false;
    take(args, GRAD, PTAC_ROWS_TABLE, &call, &owned);
    take(args, OFFSET2BAG, PTAC_ROWS_X, &call, &owned);
    at_adopt_all(T.cpu_sort(args->at[INDICES].tensor, (at_optional_bool){false, true},
                            -1, false),
                 2, sorted);
    owned.at[PTAC_ROWS_INDEX] = sorted[0];
    owned.at[PTAC_ROWS_ORDER] = sorted[1];
    ptac_view_of(sorted[0], &call.inputs[PTAC_ROWS_INDEX]);
    ptac_view_of(sorted[1], &call.inputs[PTAC_ROWS_ORDER]);
    call.n_inputs = PTAC_ROWS_ORDER + 1;
    if (ptac_new(PTAC_F32, 2, sizes, NULL, out, &call.outputs[0])) {
        ptac_refuse(call.op, PTAC_MEMORY);
        return false;
    }
    call.n_outputs = 1;
    if (ptac_run_checked(row, &call, 1, out, ptac_override_stock, args))
        return true;
    at_drop_tensor(out);
    return false;
}

static ptac_override embedding_bag_backward = {
    .schema = "_embedding_bag_dense_backward(Tensor grad, Tensor indices, "
              "Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, "
              "SymInt num_weights, bool scale_grad_by_freq, int mode, "
              "Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
    .op = PTAC_OP_EMBEDDING_BAG_BACKWARD,
    .out = "aten::_embedding_bag_dense_backward.out",
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .needs = &T.cpu_sort,
    .serve = serve,
};
PTAC_OVERRIDE(embedding_bag_backward, cpu_embedding_bag_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), TENSOR(3), TENSOR(4), INT(5), BOOL(6), INT(7),
              OPTIONAL_TENSOR(8), INT(9))
