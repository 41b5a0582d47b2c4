/*
 * embedding_bag.c - the call path of nn.EmbeddingBag.forward, of sums and means of bags
 * that lie as a matrix of indices. Where a gradient is asked for torch has to do it.
 */
#include "bind/python/callpath/embedding.h"

#include "ops/indexing/bag.h"

/* A call, and the offsets of bags of one size. */
typedef struct job {
    ptac_call call;
    ptac_bag bag;
    at_tensor offsets; /* or NULL */
} job;

static void drop_offsets(job *j)
{
    at_drop_tensor(&j->offsets);
}

/* A table of rows as they are, of which sums or means are wanted. */
static bool read_options(PyObject *attributes, ptac_bag_mode *mode)
{
    PyObject *given = PyDict_GetItemWithError(attributes, ptac_names.mode);

    if (!given || !PyUnicode_Check(given) ||
        !ptac_attribute_is(attributes, ptac_names.padding_idx, Py_None) ||
        !ptac_attribute_is(attributes, ptac_names.max_norm, Py_None) ||
        !ptac_attribute_is(attributes, ptac_names.include_last_offset, Py_False) ||
        !ptac_attribute_is(attributes, ptac_names.scale_grad_by_freq, Py_False))
        return false;
    *mode = PTAC_BAG_MEAN;
    if (PyUnicode_CompareWithASCIIString(given, "mean") == 0)
        return true;
    *mode = PTAC_BAG_SUM;
    return PyUnicode_CompareWithASCIIString(given, "sum") == 0;
}

static ptac_reason read_call(PyObject *weight, PyObject *index, job *j)
{
    ptac_view *table = &j->call.inputs[PTAC_BAG_TABLE];
    ptac_view *at = &j->call.inputs[PTAC_BAG_INDEX];

    ptac_view_of(ptac_borrow(weight), table);
    ptac_view_of(ptac_borrow(index), at);
    if (table->dtype != PTAC_F32 || at->dtype != PTAC_I64)
        return PTAC_DTYPE;
    if (table->n_dims != 2 || at->n_dims != 2)
        return PTAC_SHAPE;
    if (table->n_elements == 0 || at->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_view_is_contiguous(table) || !ptac_view_is_contiguous(at))
        return PTAC_LAYOUT;
    j->bag.rows = (ptac_rows){
        .n_rows = table->sizes[0],
        .width = table->sizes[1],
        .stride = table->sizes[1],
        .n = at->n_elements,
        .padding = PTAC_NO_ROW,
    };
    j->bag.n_bags = j->bag.n_offsets = at->sizes[0];
    return PTAC_TAKE;
}

/* Without the interpreter's lock. */
static bool compute(const ptac_kernel *row, job *j, at_tensor *made)
{
    const int64_t sizes[] = {j->bag.n_bags, j->bag.rows.width};
    const int64_t n_of_each = j->bag.rows.n / j->bag.n_bags;
    ptac_view *offsets = &j->call.inputs[PTAC_BAG_OFFSETS];

    if (ptac_new(PTAC_I64, 1, &j->bag.n_bags, NULL, &j->offsets, offsets) ||
        ptac_new(PTAC_F32, 2, sizes, NULL, made, &j->call.outputs[PTAC_BAG_Y]))
        return false;
    for (int64_t b = 0; b < j->bag.n_bags; b++)
        ((int64_t *)offsets->data)[b] = b * n_of_each;
    return ptac_run(row, &j->call);
}

/*
 * embedding_bag_module(module, index) -> what nn.EmbeddingBag.forward gives; None where
 * that has to be called.
 */
PTAC_ARGS(embedding_bag_module, 2)
{
    const ptac_module_kind kind = PTAC_MODULE_EMBEDDING_BAG;
    PTAC_OWNED PyObject *attributes = NULL, *weight = NULL;
    AT_OWNED at_tensor made = NULL;
    __attribute__((cleanup(drop_offsets))) job j = {
        .call = {.op = PTAC_OP_EMBEDDING_BAG,
                 .n_inputs = PTAC_BAG_N_INPUTS,
                 .n_outputs = PTAC_BAG_N_OUTPUTS,
                 .params = &j.bag},
    };
    const ptac_kernel *row = NULL;
    ptac_reason why;
    bool wants = false;

    PTAC_IN_FLIGHT;
    if (ptac_module_kind_of(args[0]) == kind && !ptac_is_off(j.call.op) &&
        !ptac_shadow_is_on())
        attributes = ptac_module_attributes(args[0], kind);
    if (attributes && read_options(attributes, &j.bag.mode))
        weight = ptac_embedding_table(attributes, args[1], &wants);
    PyErr_Clear(); /* the module meets it again */
    if (weight && !wants && !read_call(weight, args[1], &j))
        row = ptac_probe(&j.call, &why); /* torch asks again, and is counted there */
    if (!row || !PTAC_UNLOCKED(compute(row, &j, &made)))
        Py_RETURN_NONE;
    return ptac_wrap(at_give(&made));
}
