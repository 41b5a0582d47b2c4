/*
 * indexing_direct.c - what calls from C++ that add rows, or find them, have in common.
 */
#include "bind/torch/overrides/indexing/indexing_direct.h"

#include <string.h>

void ptac_rows_begin(ptac_rows_job *j, ptac_op op, at_tensor table)
{
    j->call = (ptac_call){.op = op, .on = PTAC_ON_CPU, .params = &j->rows};
    j->owned = (at_tensors){{NULL}};
    ptac_view_of(table, &j->call.inputs[PTAC_ROWS_TABLE]);
}

void ptac_rows_take(ptac_rows_job *j, int i, at_tensor tensor)
{
    ptac_view *view = &j->call.inputs[i];

    if (!ptac_view_is_contiguous(view)) {
        j->owned.at[i] = at_dense(tensor, view, false);
        ptac_view_of(j->owned.at[i], view);
    }
    j->call.n_inputs = i + 1;
}

/* Sizes of what table[index] is. */
static ptac_reason size_up(ptac_rows_job *j)
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

ptac_reason ptac_rows_read_index(ptac_rows_job *j, at_tensor index)
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

ptac_reason ptac_rows_read_x(ptac_rows_job *j, at_tensor x, int n_dims,
                             const int64_t *sizes)
{
    ptac_view *view = &j->call.inputs[PTAC_ROWS_X];

    ptac_view_of(x, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    return ptac_view_has_sizes(view, n_dims, sizes) ? PTAC_TAKE : PTAC_ARGUMENT;
}

/* Stock refuses tables that lie on themselves, or on what is read meanwhile. */
static bool lies_apart(const ptac_rows_job *j)
{
    const ptac_view *views = j->call.inputs;

    if (j->rows.n_rows > 1 && j->rows.stride < j->rows.width)
        return false;
    return ptac_views_are_apart(&views[PTAC_ROWS_TABLE], sizeof(float),
                                &views[PTAC_ROWS_X], sizeof(float)) &&
           ptac_views_are_apart(&views[PTAC_ROWS_TABLE], sizeof(float),
                                &views[PTAC_ROWS_INDEX], j->rows.has_32_bits ? 4 : 8);
}

bool ptac_rows_add_in_place(ptac_rows_job *j, ptac_reason why, at_tensor self,
                            at_tensor index, at_tensor x, ptac_stock_in_place stock,
                            const void *context)
{
    const ptac_kernel *row;

    if (!why && !lies_apart(j))
        why = PTAC_OVERLAP;
    if (why) {
        ptac_refuse(j->call.op, why);
        return false;
    }
    j->call.n_inputs = x ? PTAC_ROWS_X + 1 : PTAC_ROWS_X;
    row = ptac_admit(&j->call);
    if (!row)
        return false;
    if (index)
        ptac_rows_take(j, PTAC_ROWS_INDEX, index);
    if (x)
        ptac_rows_take(j, PTAC_ROWS_X, x);
    j->call.n_outputs = 1;
    j->call.outputs[0] = j->call.inputs[PTAC_ROWS_TABLE];
    return ptac_run_in_place(row, &j->call, self, stock, context);
}

bool ptac_rows_make(ptac_rows_job *j, const ptac_kernel *row, int n_dims,
                    const int64_t *sizes, ptac_stock_fn stock, const void *context,
                    at_tensor *made)
{
    if (ptac_new(PTAC_F32, n_dims, sizes, NULL, made, &j->call.outputs[0])) {
        ptac_refuse(j->call.op, PTAC_MEMORY);
        return false;
    }
    j->call.n_outputs = 1;
    return ptac_run_checked(row, &j->call, 1, made, stock, context);
}
