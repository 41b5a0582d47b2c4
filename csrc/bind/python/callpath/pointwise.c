/*
 * pointwise.c - the call path to gated_act, add_act, bias_act and their gradients.
 */
#include "bind/python/callpath/lean_call.h"
#include "ops/pointwise/pointwise.h"

/* The input that is a row for all rows, or NULL. */
static const ptac_view *bias_of(const ptac_call *call)
{
    switch (call->op) {
    case PTAC_OP_BIAS_ACT:
        return &call->inputs[PTAC_POINTWISE_B];
    case PTAC_OP_BIAS_ACT_BACKWARD:
        return &call->inputs[PTAC_POINTWISE_GRAD_B];
    default:
        return NULL;
    }
}

static bool make_outputs(ptac_lean_call *m)
{
    const ptac_view *x = &m->call.inputs[0];

    for (int i = 0; i < m->n_results; i++) {
        const ptac_view *like = i > 0 ? bias_of(&m->call) : NULL;

        like = like ? like : x;
        if (!ptac_lean_output(m, i, i, ptac_torch_dtype(x->dtype), like->n_dims,
                              like->sizes))
            return false;
    }
    return true;
}

/* It has the last dimension's elements. */
static ptac_reason check_bias(const ptac_view *bias, const ptac_view *x)
{
    const int64_t *width = x->n_dims > 0 ? &x->sizes[x->n_dims - 1] : NULL;

    return width && ptac_view_has_sizes(bias, 1, width) ? PTAC_TAKE : PTAC_ARGUMENT;
}

/*
 * All have the sizes and the dtype of the first, but for a bias, and
 * add_act_backward's last.
 */
static ptac_reason check(const ptac_call *call)
{
    const ptac_view *first = &call->inputs[0];

    if (first->dtype != PTAC_F32 && first->dtype != PTAC_BF16 &&
        first->dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (first->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    for (int i = 1; i < call->n_inputs; i++) {
        const ptac_view *view = &call->inputs[i];

        if (!view->sizes && call->op == PTAC_OP_ADD_ACT_BACKWARD && i == 2)
            continue;
        if (view->dtype != first->dtype)
            return PTAC_DTYPE;
        if (view == bias_of(call)) {
            ptac_reason why = check_bias(view, first);

            if (why)
                return why;
            continue;
        }
        if (!ptac_view_has_sizes(view, first->n_dims, first->sizes))
            return PTAC_ARGUMENT;
    }
    return PTAC_TAKE;
}

/*
 * pointwise(operator, tensors, activation, from) -> a tuple of its outputs, or None
 * where torch's own operators have to do the call. tensors are the operator's inputs, a
 * tuple of two or three, of which add_act_backward's last may be None.
 */
PTAC_ARGS(pointwise, 4)
{
    static const int places[] = {0, 1, 2};
    PyObject *const tensors = args[1];
    PyObject *given[3];
    ptac_pointwise p;
    ptac_lean_call m = {.call = {.params = &p}};
    const Py_ssize_t n = PyTuple_Check(tensors) ? PyTuple_Size(tensors) : 0;
    const long activation = PyLong_AsLong(args[2]);
    ptac_reason why;

    m.call.op = ptac_op_from(args[0]);
    if (m.call.op == PTAC_N_OPS || PyErr_Occurred())
        return NULL;
    if (n < 2 || n > 3)
        return PyErr_Format(PyExc_TypeError, "tensors are two or three");
    PTAC_IN_FLIGHT;
    if (ptac_is_off(m.call.op))
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < n; i++)
        given[i] = PyTuple_GetItem(tensors, i);
    m.from = ptac_lean_from_of(args[3]);
    p = (ptac_pointwise){(ptac_act)activation, m.from == PTAC_LEAN_TRAINED};
    m.call.n_inputs = (int)n;
    m.n_results = m.call.op == PTAC_OP_GATED_ACT_BACKWARD ||
                          m.call.op == PTAC_OP_BIAS_ACT_BACKWARD
                      ? 2
                      : 1;
    m.call.n_outputs = m.n_results;
    why = ptac_lean_read(given, places, (int)n, &m.call);
    if (!why)
        why = check(&m.call);
    return ptac_lean_finish(&m, why, make_outputs);
}
