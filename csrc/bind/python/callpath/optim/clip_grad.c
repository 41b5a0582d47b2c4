/*
 * clip_grad.c - the two halves of torch.nn.utils.clip_grad_norm_: the norm of all
 * gradients together, and their multiplication.
 *
 * As torch/nn/utils/clip_grad.py does for gradients of float32 on the CPU, whether it
 * goes by "foreach" or in a loop.
 */
#include "bind/python/module/names.h"
#include "bind/torch/overrides/foreach/foreach.h"

#include <float.h>
#include <math.h>

/* A number of Python's own types. */
static bool read_number(PyObject *object, double *number)
{
    if (!PyFloat_CheckExact(object) && !PyLong_CheckExact(object))
        return false;
    *number = PyFloat_AsDouble(object);
    if (!PyErr_Occurred())
        return true;
    PyErr_Clear();
    return false;
}

static ptac_reason why_not(PyObject *tensor, bool is_written)
{
    if (is_written ? ptac_is_plain_and_versioned(tensor) : ptac_is_plain(tensor))
        return PTAC_TAKE;
    return ptac_is_plain(tensor) ? PTAC_ARGUMENT : ptac_why_not_plain(tensor);
}

static ptac_reason admit(ptac_tensors *l, ptac_reason why, const ptac_kernel **row)
{
    if (!why)
        why = ptac_tensors_ready(l);
    if (why)
        ptac_refuse(l->call.op, why);
    else
        *row = ptac_admit(&l->call);
    return why;
}

/* For arrays, the interpreter's lock is kept. */
static bool run(const ptac_kernel *row, const ptac_call *call)
{
    PyThreadState *thread =
        call->inputs[0].n_elements < 4096 ? NULL : PyEval_SaveThread();
    const bool is_done = ptac_run(row, call);

    if (thread)
        PyEval_RestoreThread(thread);
    return is_done;
}

/* The norm of the norms, as a tensor. */
static PyObject *total_of(const ptac_tensors *l)
{
    at_tensor made = NULL;

    if (ptac_new(PTAC_F32, 0, NULL, NULL, &made, NULL))
        return PyErr_NoMemory();
    *(float *)at_data(made) = ptac_foreach_norm_of(l->params.norms, l->params.n_items);
    return ptac_wrap(made);
}

/* clip_total_norm(gradients, norm_type) -> a tensor; None: stock has to do it. */
PTAC_ARGS(clip_total_norm, 2)
{
    const ptac_op op = PTAC_OP_CLIP_GRAD_NORM;
    PTAC_TENSORS l = {.call.op = op, .params.way = PTAC_FOREACH_NORM};
    PTAC_FREED float *norms = NULL;
    PTAC_OWNED PyObject *held = NULL; /* a list of its own, which nobody changes */
    const ptac_kernel *row = NULL;
    ptac_reason why = ptac_why_not_lean();
    double order;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    if (!why &&
        (!PyList_CheckExact(args[0]) || !read_number(args[1], &order) || order != 2))
        why = PTAC_ARGUMENT;
    if (!why && !(held = PyList_GetSlice(args[0], 0, PyList_Size(args[0]))))
        return NULL;
    for (Py_ssize_t i = 0; !why && i < PyList_Size(held); i++) {
        PyObject *tensor = PyList_GetItem(held, i);

        why = why_not(tensor, false);
        if (!why)
            why = ptac_tensors_add(&l, ptac_borrow(tensor), NULL);
    }
    if (!why && l.call.inputs[0].dtype != PTAC_F32)
        why = PTAC_DTYPE;
    norms = PyMem_Malloc((size_t)(l.params.n_items + 1) * sizeof *norms);
    if (!norms)
        return PyErr_NoMemory();
    l.params.norms = norms;
    if (admit(&l, why, &row) || !row || !run(row, &l.call))
        Py_RETURN_NONE;
    return total_of(&l);
}

/* What torch multiplies by, as its float32 operations round it: at most 1, or NaN. */
static ptac_reason read_factor(PyObject *total, double most, double *factor)
{
    ptac_view view;
    float number;

    if (!ptac_is_plain(total))
        return ptac_why_not_plain(total);
    ptac_view_of(ptac_borrow(total), &view);
    if (view.dtype != PTAC_F32 || view.n_dims != 0)
        return PTAC_ARGUMENT;
    if (!(fabs(most) <= FLT_MAX))
        return PTAC_ARGUMENT;
    number = 1 / (*(const float *)view.data + 1e-6f) * (float)most;
    *factor = number > 1 ? 1 : number;
    return PTAC_TAKE;
}

/* The gradient of a parameter among those that are written, which held keeps. */
static ptac_reason add_grad(ptac_tensors *l, PyObject *param, PyObject *held)
{
    PTAC_OWNED PyObject *grad =
        ptac_is_tensor(param) ? PyObject_GetAttr(param, ptac_names.grad) : NULL;
    ptac_reason why;

    if (!grad) {
        PyErr_Clear(); /* stock meets it again */
        return PTAC_ARGUMENT;
    }
    if (grad == Py_None)
        return PTAC_TAKE;
    why = why_not(grad, true);
    if (!why && PyList_Append(held, grad) < 0) {
        PyErr_Clear();
        why = PTAC_MEMORY;
    }
    return why ? why : ptac_tensors_add(l, ptac_borrow(grad), NULL);
}

/* clip_scale(parameters, max_norm, total_norm) -> whether the gradients are scaled. */
PTAC_ARGS(clip_scale, 3)
{
    const ptac_op op = PTAC_OP_CLIP_GRAD_NORM;
    PTAC_TENSORS l = {.call.op = op};
    PTAC_OWNED PyObject *held = PyList_New(0);
    const ptac_kernel *row = NULL;
    ptac_reason why = ptac_why_not_lean();
    double most;

    PTAC_IN_FLIGHT;
    if (!held)
        return NULL;
    if (ptac_is_off(op))
        Py_RETURN_FALSE;
    if (!why && (!PyList_CheckExact(args[0]) || !read_number(args[1], &most)))
        why = PTAC_ARGUMENT;
    if (!why)
        why = read_factor(args[2], most, &l.params.number);
    for (Py_ssize_t i = 0; !why && i < PyList_Size(args[0]); i++) {
        PTAC_OWNED PyObject *param = Py_NewRef(PyList_GetItem(args[0], i));

        why = add_grad(&l, param, held);
    }
    if (admit(&l, why, &row) || !row || !run(row, &l.call))
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_Size(held); i++)
        ptac_bump_version(PyList_GetItem(held, i));
    Py_RETURN_TRUE;
}
