/*
 * embedding.c - the call path of nn.Embedding.forward.
 *
 * A row of a table is found in less time than torch takes to get there. Where no
 * gradient is asked for, index_select's row is called at once; else torch.embedding,
 * past what F.embedding asks of options that the module does not use.
 */
#include "bind/python/callpath/embedding.h"

#include "ops/indexing/indexing.h"

PTAC_LENT(stock_embedding) /* torch.embedding */

bool ptac_attribute_is(PyObject *attributes, PyObject *name, PyObject *value)
{
    return PyDict_GetItemWithError(attributes, name) == value;
}

PyObject *ptac_embedding_table(PyObject *attributes, PyObject *index, bool *wants)
{
    PTAC_OWNED PyObject *weight = ptac_module_parameter(attributes, ptac_names.weight);
    int asked = 0;

    if (!weight || !ptac_is_plain(weight) || !ptac_is_plain(index) ||
        ptac_why_not_lean())
        return NULL;
    if (T.aoti_torch_grad_mode_is_enabled())
        asked = ptac_requires_grad(weight);
    *wants = asked > 0;
    return asked < 0 ? NULL : Py_NewRef(weight);
}

/* A dense table of its rows as they are, with gradients as they come. */
static bool has_no_options(PyObject *attributes)
{
    return ptac_attribute_is(attributes, ptac_names.padding_idx, Py_None) &&
           ptac_attribute_is(attributes, ptac_names.max_norm, Py_None) &&
           ptac_attribute_is(attributes, ptac_names.scale_grad_by_freq, Py_False) &&
           ptac_attribute_is(attributes, ptac_names.sparse, Py_False);
}

/* table[index], or why torch has to do it. */
typedef struct lookup {
    ptac_call call;
    ptac_rows rows;
    at_tensor dense; /* a column of indices, one behind the other, or NULL */
    int64_t sizes[PTAC_MAX_DIMS];
    int n_dims;
} lookup;

static ptac_reason read_call(PyObject *weight, PyObject *index, lookup *l)
{
    ptac_view *table = &l->call.inputs[PTAC_ROWS_TABLE];
    ptac_view *at = &l->call.inputs[PTAC_ROWS_INDEX];
    int32_t dtype = -1;

    ptac_view_of(ptac_borrow(weight), table);
    ptac_view_of(ptac_borrow(index), at);
    T.aoti_torch_get_dtype(ptac_borrow(index), &dtype);
    if (table->dtype != PTAC_F32 || (dtype != AT_DTYPE_I64 && dtype != AT_DTYPE_I32))
        return PTAC_DTYPE;
    if (table->n_dims != 2 || at->n_dims >= PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (table->n_elements == 0 || at->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_view_is_contiguous(table) ||
        (at->n_dims > 1 && !ptac_view_is_contiguous(at)))
        return PTAC_LAYOUT;
    l->rows = (ptac_rows){
        .n_rows = table->sizes[0],
        .width = table->sizes[1],
        .stride = table->sizes[1],
        .x_stride = table->sizes[1],
        .n = at->n_elements,
        .padding = PTAC_NO_ROW,
        .has_32_bits = dtype == AT_DTYPE_I32,
    };
    l->n_dims = at->n_dims + 1;
    for (int i = 0; i < at->n_dims; i++)
        l->sizes[i] = at->sizes[i];
    l->sizes[at->n_dims] = l->rows.width;
    return PTAC_TAKE;
}

/* A column of a matrix of indices, as of features of a batch. */
static at_error take_column(lookup *l)
{
    ptac_view *at = &l->call.inputs[PTAC_ROWS_INDEX];
    const ptac_view column = *at;
    int64_t *to;

    if (ptac_view_is_contiguous(at))
        return 0;
    if (ptac_new(PTAC_I64, 1, column.sizes, NULL, &l->dense, at))
        return 1;
    to = at->data;
    for (int64_t i = 0; i < l->rows.n; i++)
        to[i] = ptac_rows_index(&l->rows, column.data, i * column.strides[0]);
    l->rows.has_32_bits = false;
    return 0;
}

/* Without the interpreter's lock. */
static bool compute(const ptac_kernel *row, lookup *l, at_tensor *made)
{
    return !take_column(l) &&
           !ptac_new(PTAC_F32, l->n_dims, l->sizes, NULL, made, &l->call.outputs[0]) &&
           ptac_run(row, &l->call);
}

/* None where torch has to do it, which is counted there. */
static PyObject *look_up(PyObject *weight, PyObject *index)
{
    AT_OWNED at_tensor made = NULL;
    lookup l = {.call = {.op = PTAC_OP_INDEX_SELECT,
                         .n_inputs = 2,
                         .n_outputs = 1,
                         .params = &l.rows}};
    const ptac_kernel *row;
    ptac_reason why = read_call(weight, index, &l);
    bool is_done;

    row = why ? NULL : ptac_probe(&l.call, &why);
    is_done = row && PTAC_UNLOCKED(compute(row, &l, &made));
    if (l.dense)
        at_drop_tensor(&l.dense);
    return is_done ? ptac_wrap(at_give(&made)) : Py_NewRef(Py_None);
}

/*
 * embedding_module(module, index) -> what nn.Embedding.forward gives; None where that
 * has to be called.
 */
PTAC_ARGS(embedding_module, 2)
{
    const ptac_module_kind kind = PTAC_MODULE_EMBEDDING;
    PTAC_OWNED PyObject *attributes = NULL, *weight = NULL, *result = NULL;
    bool wants = false;

    PTAC_IN_FLIGHT;
    if (ptac_module_kind_of(args[0]) == kind && !ptac_is_off(PTAC_OP_INDEX_SELECT))
        attributes = ptac_module_attributes(args[0], kind);
    if (attributes && has_no_options(attributes))
        weight = ptac_embedding_table(attributes, args[1], &wants);
    if (!weight) {
        PyErr_Clear(); /* the module meets it again */
        Py_RETURN_NONE;
    }
    result =
        wants || ptac_shadow_is_on() ? Py_NewRef(Py_None) : look_up(weight, args[1]);
    if (!result || result != Py_None)
        return Py_XNewRef(result);
    return PyObject_CallFunctionObjArgs(stock_embedding, weight, args[1], NULL);
}
