/*
 * optimizer_args.c - reading parameters and gradients.
 *
 * Everything is looked at in each step, since all of it may change between steps in any
 * way. What is missing or unusual sends the group to stock.
 */
#include "bind/python/callpath/optim/optimizer_args.h"

#include <stddef.h>
#include <string.h>

void ptac_optimizer_args_release(ptac_optimizer_args *g)
{
    for (Py_ssize_t i = 0; i < g->n_written; i++)
        Py_DECREF(g->written[i].tensor);
    for (Py_ssize_t i = 0; i < g->n_items; i++)
        Py_DECREF(g->owners[i].grad);
    Py_XDECREF(g->lr_tensor);
    PyMem_Free(g->items);
    PyMem_Free(g->owners);
    PyMem_Free(g->written);
}

/* Room for another item and the five tensors that it may write. */
static bool make_room(ptac_optimizer_args *g)
{
    if (g->n_items < g->capacity)
        return true;

    const Py_ssize_t more = g->capacity ? 2 * g->capacity : 64;
    ptac_step_item *items = PyMem_Realloc(g->items, (size_t)more * sizeof *items);
    ptac_item_owner *owners = PyMem_Realloc(g->owners, (size_t)more * sizeof *owners);
    ptac_written *written =
        PyMem_Realloc(g->written, 5 * (size_t)more * sizeof *written);

    g->items = items ? items : g->items;
    g->owners = owners ? owners : g->owners;
    g->written = written ? written : g->written;
    if (!items || !owners || !written) {
        PyErr_NoMemory();
        return false;
    }
    g->capacity = more;
    return true;
}

void ptac_optimizer_args_write(ptac_optimizer_args *g, PyObject *tensor,
                               const void *data)
{
    g->written[g->n_written++] = (ptac_written){Py_NewRef(tensor), data};
}

bool ptac_optimizer_args_look(const ptac_optimizer_args *g, PyObject *tensor,
                              ptac_view *view)
{
    if (g->device == PTAC_ON_CPU) {
        if (!ptac_is_plain_and_versioned(tensor))
            return false;
        ptac_view_of(ptac_borrow(tensor), view);
        return true;
    }
    if (!ptac_is_plain_and_versioned_on_cuda(tensor))
        return false;
    ptac_cuda_view_of(ptac_borrow(tensor), view);
    return view->device == g->number;
}

static bool takes_dtype(ptac_device device, ptac_dtype dtype)
{
    return dtype == PTAC_F32 || dtype == PTAC_F64 ||
           (device == PTAC_ON_CUDA && (dtype == PTAC_F16 || dtype == PTAC_BF16));
}

/* Whether a plain tensor of CUDA lies on the group's device. */
static bool lies_there(const ptac_optimizer_args *g, PyObject *tensor)
{
    ptac_view view;

    ptac_cuda_view_of(ptac_borrow(tensor), &view);
    return g->device == PTAC_ON_CUDA && view.device == g->number;
}

static ptac_reason why_not(const ptac_optimizer_args *g, PyObject *tensor)
{
    const ptac_reason why = ptac_why_not_plain(tensor);

    if (g->device == PTAC_ON_CPU || why == PTAC_SPARSE)
        return why;
    return ptac_is_plain(tensor) || ptac_is_plain_on_cuda(tensor) ? PTAC_DEVICE
                                                                  : PTAC_SUBCLASS;
}

static bool is_capturable(const ptac_optimizer_args *g)
{
    return g->kind == PTAC_OPTIM_ADAM && g->step.adam.is_capturable;
}

/* A parameter and its gradient, of which the group's first tell its device. */
static ptac_verdict view_pair(ptac_optimizer_args *g, PyObject *param, PyObject *grad,
                              ptac_view *view, ptac_view *grad_view)
{
    if (g->n_items == 0 && ptac_is_plain_and_versioned_on_cuda(param)) {
        ptac_cuda_view_of(ptac_borrow(param), view);
        g->device = PTAC_ON_CUDA;
        g->number = view->device;
    }
    if (!ptac_optimizer_args_look(g, param, view))
        return why_not(g, param);
    if (g->device == PTAC_ON_CPU) {
        if (!ptac_is_plain(grad))
            return ptac_why_not_plain(grad);
        ptac_view_of(ptac_borrow(grad), grad_view);
        return is_capturable(g) ? PTAC_CAPTURABLE : PTAC_TAKE;
    }
    if (g->kind > PTAC_OPTIM_ADAM)
        return PTAC_DEVICE;
    if (g->step.way != PTAC_STEP_LOOP)
        return g->step.way == PTAC_STEP_FUSED ? PTAC_FUSED : PTAC_FOREACH;
    if (!ptac_is_plain_on_cuda(grad))
        return why_not(g, grad);
    ptac_cuda_view_of(ptac_borrow(grad), grad_view);
    return grad_view->device == g->number ? PTAC_TAKE : PTAC_DEVICE;
}

/* One parameter with its gradient and state. */
static ptac_verdict gather_pair(ptac_optimizer_args *g, PyObject *states,
                                PyObject *param, PyObject *grad, Py_ssize_t *position)
{
    ptac_step_item item = {.begin = g->n_elements};
    ptac_view view, grad_view;
    ptac_verdict result = view_pair(g, param, grad, &view, &grad_view);

    if (result)
        return result;
    if (g->n_items == 0)
        g->dtype = view.dtype;
    if (view.dtype != g->dtype || grad_view.dtype != g->dtype ||
        !takes_dtype(g->device, g->dtype))
        return PTAC_DTYPE;
    if (!ptac_view_is_dense(&view) || !ptac_view_is_alike(&view, &grad_view))
        return PTAC_LAYOUT;
    if (!make_room(g))
        return PTAC_RAISED;
    item.n = view.n_elements;
    item.param = view.data;
    item.grad = grad_view.data;
    ptac_optimizer_args_write(g, param, item.n ? item.param : NULL);
    g->owners[g->n_items] = (ptac_item_owner){.param = param, .grad = grad};
    result = ptac_optimizer_args_state(g, states, param, position, &view, &item);
    if (result)
        return result;
    Py_INCREF(grad);
    g->items[g->n_items++] = item;
    g->n_elements += item.n;
    return PTAC_TAKE;
}

static ptac_verdict gather_param(ptac_optimizer_args *g, PyObject *states,
                                 PyObject *borrowed, Py_ssize_t *position)
{
    PTAC_OWNED PyObject *param = Py_NewRef(borrowed);
    PTAC_OWNED PyObject *grad = PyObject_GetAttr(param, ptac_names.grad);

    if (!grad)
        return PTAC_RAISED;
    return grad == Py_None ? PTAC_TAKE : gather_pair(g, states, param, grad, position);
}

/* Torch's fused kernel makes momentum buffers for all parameters or for none. */
static bool has_some_new(const ptac_optimizer_args *g)
{
    Py_ssize_t n_first = 0;

    for (Py_ssize_t i = 0; i < g->n_items; i++)
        n_first += g->items[i].is_first;
    return n_first != 0 && n_first != g->n_items;
}

/* The parameters of a group that is held, with its options. */
static ptac_verdict gather_group(ptac_optimizer_args *g, PyObject *group,
                                 PyObject *states, double multiplier)
{
    PTAC_OWNED PyObject *params = NULL;
    Py_ssize_t position = 0;
    ptac_verdict result;

    result = ptac_optimizer_options_read(g, group, multiplier);
    if (result)
        return result;
    params = Py_XNewRef(PyDict_GetItemWithError(group, ptac_names.params));
    if (!params || !PyList_CheckExact(params))
        return PyErr_Occurred() ? PTAC_RAISED : PTAC_ARGUMENT;
    for (Py_ssize_t i = 0; !result && i < PyList_Size(params); i++)
        result = gather_param(g, states, PyList_GetItem(params, i), &position);
    if (!result && g->lr_tensor && g->n_items && !lies_there(g, g->lr_tensor))
        result = PTAC_DEVICE;
    if (!result && g->step.way == PTAC_STEP_FUSED && has_some_new(g))
        result = PTAC_FUSED;
    return result ? result : ptac_optimizer_args_overlap(g);
}

ptac_verdict ptac_optimizer_args_read(ptac_optimizer_args *g, PyObject *group,
                                      PyObject *states, ptac_optim_kind kind,
                                      double multiplier)
{
    ptac_verdict result = PTAC_ARGUMENT;

    memset(g, 0, offsetof(ptac_optimizer_args, call));
    /* Reading an option or a gradient may run code of the user's, which may do anything
       to the lists that hold them. */
    Py_INCREF(group);
    g->kind = kind;
    g->op = ptac_optim_op(group, kind);
    if (PyDict_CheckExact(group) && PyDict_Check(states))
        result = gather_group(g, group, states, multiplier);
    Py_DECREF(group);
    return result;
}
