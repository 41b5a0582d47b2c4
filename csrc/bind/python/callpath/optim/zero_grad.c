/*
 * zero_grad.c - the gradients of an optimizer's parameters: none any more, or zero.
 */
#include "bind/python/module/names.h"
#include "bind/torch/cuda.h"
#include "ops/optim/zero_grad.h"

/* The parameters of a group, borrowed; NULL where it is not as torch makes them. */
static PyObject *params_of(PyObject *groups, Py_ssize_t i)
{
    PyObject *group = PyList_GetItem(groups, i), *params = NULL;

    if (PyDict_CheckExact(group))
        params = PyDict_GetItemWithError(group, ptac_names.params);
    return params && PyList_CheckExact(params) ? params : NULL;
}

static bool are_usual(PyObject *groups)
{
    if (!PyList_CheckExact(groups))
        return false;
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        PyObject *params = params_of(groups, i);

        if (!params)
            return false;
        for (Py_ssize_t j = 0; j < PyList_Size(params); j++)
            if (!ptac_is_tensor(PyList_GetItem(params, j)))
                return false;
    }
    return true;
}

/* Freeing a gradient may run code of the user's, which may do anything to the lists. */
static bool zero_group(PyObject *borrowed)
{
    PTAC_OWNED PyObject *params = Py_NewRef(borrowed);

    for (Py_ssize_t i = 0; i < PyList_Size(params); i++) {
        PTAC_OWNED PyObject *param = Py_NewRef(PyList_GetItem(params, i));

        if (PyObject_SetAttr(param, ptac_names.grad, Py_None) < 0)
            return false;
    }
    return true;
}

/* zero_grads(param_groups) -> whether all gradients are None now. */
PTAC_O(zero_grads, groups)
{
    const ptac_op op = PTAC_OP_ZERO_GRAD;
    ptac_reason why = ptac_chooser_gate(op);

    if (!why && ptac_thread_is_disabled())
        why = PTAC_DISABLED;
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (!why && !are_usual(groups))
        why = PTAC_ARGUMENT;
    for (Py_ssize_t i = 0; !why && i < PyList_Size(groups); i++) {
        PyObject *params = params_of(groups, i);

        if (!params)
            why = PTAC_ARGUMENT;
        else if (!zero_group(params))
            return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_FALSE;
    }
    ptac_count_accelerated(op);
    Py_RETURN_TRUE;
}

/* Gradients to set to zero, owned, and where they lie; all on one CUDA device. */
typedef struct zeros {
    PyObject **grads;
    ptac_zero_item *items;
    int64_t n, capacity;
    ptac_call call;
} zeros;

static void release(zeros *z)
{
    for (int64_t i = 0; i < z->n; i++)
        Py_DECREF(z->grads[i]);
    PyMem_Free(z->grads);
    PyMem_Free(z->items);
}

static bool make_room(zeros *z)
{
    const int64_t more = z->capacity ? 2 * z->capacity : 64;
    PyObject **grads;
    ptac_zero_item *items;

    if (z->n < z->capacity)
        return true;
    grads = PyMem_Realloc(z->grads, (size_t)more * sizeof *grads);
    z->grads = grads ? grads : z->grads;
    items = PyMem_Realloc(z->items, (size_t)more * sizeof *items);
    z->items = items ? items : z->items;
    z->capacity = grads && items ? more : z->capacity;
    return grads && items;
}

/* A gradient that torch would only fill with zeros; others lose their graph first. */
static bool is_alone(PyObject *grad)
{
    PTAC_OWNED PyObject *node = PyObject_GetAttr(grad, ptac_names.grad_fn);

    return node == Py_None && ptac_requires_grad(grad) == 0;
}

static ptac_reason add_grad(zeros *z, PyObject *grad)
{
    static const int64_t sizes[PTAC_N_DTYPES] = {
        [PTAC_F32] = 4, [PTAC_F64] = 8, [PTAC_F16] = 2, [PTAC_BF16] = 2};
    ptac_view view;

    if (!ptac_is_plain_and_versioned_on_cuda(grad))
        return ptac_why_not_plain(grad) == PTAC_SPARSE ? PTAC_SPARSE : PTAC_DEVICE;
    if (!is_alone(grad))
        return PTAC_GRAD;
    ptac_cuda_view_of(ptac_borrow(grad), &view);
    if (view.dtype >= PTAC_N_DTYPES || !sizes[view.dtype])
        return PTAC_DTYPE;
    if (!ptac_view_is_dense(&view))
        return PTAC_LAYOUT;
    if (z->n && view.device != z->call.device)
        return PTAC_DEVICE;
    if (!make_room(z))
        return PTAC_MEMORY;
    z->call.device = view.device;
    z->call.inputs[0].dtype = view.dtype;
    z->call.inputs[0].n_elements += view.n_elements;
    z->items[z->n] = (ptac_zero_item){view.data, view.n_elements * sizes[view.dtype]};
    z->grads[z->n++] = Py_NewRef(grad);
    return PTAC_TAKE;
}

/* Those of a group, which is as torch makes them. */
static ptac_reason add_group(zeros *z, PyObject *borrowed)
{
    PTAC_OWNED PyObject *params = Py_NewRef(borrowed);
    ptac_reason why = PTAC_TAKE;

    for (Py_ssize_t i = 0; !why && i < PyList_Size(params); i++) {
        PTAC_OWNED PyObject *param = Py_NewRef(PyList_GetItem(params, i));
        PTAC_OWNED PyObject *grad = PyObject_GetAttr(param, ptac_names.grad);

        if (!grad)
            return PTAC_ARGUMENT;
        if (grad != Py_None)
            why = add_grad(z, grad);
    }
    return why;
}

static ptac_reason add_all(zeros *z, PyObject *groups)
{
    ptac_reason why = are_usual(groups) ? PTAC_TAKE : PTAC_ARGUMENT;

    for (Py_ssize_t i = 0; !why && i < PyList_Size(groups); i++) {
        PyObject *params = params_of(groups, i);

        why = params ? add_group(z, params) : PTAC_ARGUMENT;
    }
    return why;
}

/* Write the zeros, and tell autograd. */
static bool zero(zeros *z, const ptac_kernel *row)
{
    PTAC_CUDA_SCOPE scope = {false};

    if (!ptac_cuda_begin(&z->call, &scope)) {
        ptac_refuse(z->call.op, PTAC_DEVICE);
        return false;
    }
    if (!ptac_run(row, &z->call))
        return false;
    for (int64_t i = 0; i < z->n; i++)
        ptac_bump_version(z->grads[i]);
    return true;
}

/*
 * zeros_on_cuda(param_groups) -> whether all gradients are zero now: they lie on one
 * CUDA device. What lies on the CPU is stock's, which is not counted.
 */
PTAC_O(zeros_on_cuda, groups)
{
    ptac_zero_grad params = {0};
    zeros z = {.call = {.op = PTAC_OP_ZERO_GRAD,
                        .on = PTAC_ON_CUDA,
                        .n_inputs = 1,
                        .params = &params}};
    const ptac_kernel *row = NULL;
    bool is_done = false;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(z.call.op))
        Py_RETURN_FALSE;
    why = ptac_thread_is_plain() ? add_all(&z, groups) : PTAC_MODE;
    PyErr_Clear(); /* stock meets it again */
    params = (ptac_zero_grad){z.items, z.n};
    if (!why)
        row = ptac_probe(&z.call, &why);
    if (row)
        is_done = zero(&z, row);
    else if (z.n)
        ptac_refuse(z.call.op, why);
    release(&z);
    return PyBool_FromLong(is_done);
}
