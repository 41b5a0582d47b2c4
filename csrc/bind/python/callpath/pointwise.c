/*
 * pointwise.c - the call path to gated_act, add_act and their gradients, on CUDA.
 */
#include "bind/python/callpath/on_cuda.h"
#include "ops/pointwise/pointwise.h"

static bool make_outputs(ptac_lean_call *m)
{
    const ptac_view *x = &m->call.inputs[0];

    for (int i = 0; i < m->n_results; i++)
        if (!ptac_lean_output(m, i, i, ptac_torch_dtype(x->dtype), x->n_dims, x->sizes))
            return false;
    return true;
}

/* All have the sizes and the dtype of the first, but for add_act_backward's last. */
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
        if (!ptac_view_has_sizes(view, first->n_dims, first->sizes))
            return PTAC_ARGUMENT;
    }
    return PTAC_TAKE;
}

/*
 * pointwise(operator, tensors, activation) -> a tuple of its outputs, or None where
 * torch's own operators have to do the call. tensors are the operator's inputs, a tuple
 * of two or three, of which add_act_backward's last may be None.
 */
PTAC_ARGS(pointwise, 3)
{
    static const int places[] = {0, 1, 2};
    PyObject *const tensors = args[1];
    PyObject *given[3];
    ptac_pointwise p;
    ptac_lean_call m = {.call = {.on = PTAC_ON_CUDA, .params = &p}};
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
    p.activation = (ptac_act)activation;
    m.call.n_inputs = (int)n;
    m.n_results = m.call.op == PTAC_OP_GATED_ACT_BACKWARD ? 2 : 1;
    m.call.n_outputs = m.n_results;
    why = ptac_read_on_cuda(given, places, (int)n, &m.call);
    if (!why)
        why = check(&m.call);
    return ptac_finish_on_cuda(&m, why, make_outputs);
}
