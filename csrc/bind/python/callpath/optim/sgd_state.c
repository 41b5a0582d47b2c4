/*
 * sgd_state.c - the momentum buffers that SGD's first step makes.
 */
#include "bind/python/callpath/optim/optimizer_args.h"

/* Stock clones what it steps by: the gradient, or a sum with it, or its negative. */
static bool steps_by_gradients(const ptac_optimizer_args *g)
{
    const ptac_sgd *sgd = &g->step.sgd;

    return g->step.way == PTAC_STEP_FUSED || (sgd->weight_decay == 0 && !sgd->maximize);
}

/*
 * A new tensor that lies as stock's clone does; owned. Strides of dimensions of size 1
 * are the gradient's, but those that a sum has where it is contiguous.
 */
static PyObject *new_like(const ptac_optimizer_args *g, PyObject *grad)
{
    const at_device device = {
        g->device == PTAC_ON_CUDA ? AT_DEVICE_CUDA : AT_DEVICE_CPU, g->number};
    at_tensor made = NULL;
    ptac_view view;
    bool is_default;

    (g->device == PTAC_ON_CUDA ? ptac_cuda_view_of : ptac_view_of)(ptac_borrow(grad),
                                                                   &view);
    is_default = !steps_by_gradients(g) && ptac_view_is_contiguous(&view);
    if (view.dtype >= PTAC_N_DTYPES ||
        ptac_new_on(device, view.dtype, view.n_dims, view.sizes,
                    is_default ? NULL : view.strides, &made, NULL))
        return PyErr_NoMemory();
    return ptac_wrap(made);
}

/* Make the buffer of item i and put it into its state. */
static bool make_momentum(ptac_optimizer_args *g, PyObject *states, Py_ssize_t i)
{
    PTAC_OWNED PyObject *state = PyObject_GetItem(states, g->owners[i].param);
    PTAC_OWNED PyObject *before = NULL, *buffer = NULL;

    if (!state)
        return false;
    before = PyObject_GetItem(state, ptac_names.momentum_buffer);
    PyErr_Clear();
    g->owners[i].said_none = before == Py_None;
    buffer = new_like(g, g->owners[i].grad);
    if (!buffer)
        return false;
    if (T.aoti_torch_get_data_ptr(ptac_borrow(buffer), &g->items[i].state[0]))
        return PyErr_NoMemory();
    if (PyObject_SetItem(state, ptac_names.momentum_buffer, buffer) < 0)
        return false;
    g->written[g->n_written++] =
        (ptac_written){Py_NewRef(buffer), g->items[i].state[0]};
    g->n_new++;
    return true;
}

bool ptac_sgd_state_create(ptac_optimizer_args *g, PyObject *states)
{
    for (Py_ssize_t i = 0; i < g->n_items; i++)
        if (g->items[i].is_first && !make_momentum(g, states, i))
            return false;
    return true;
}

void ptac_sgd_state_forget(const ptac_optimizer_args *g, PyObject *states)
{
    PyObject *type, *value, *trace;
    Py_ssize_t n_left = g->n_new;

    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = 0; n_left > 0; i++) {
        PyObject *state;

        if (!g->items[i].is_first)
            continue;
        n_left--;
        state = PyObject_GetItem(states, g->owners[i].param);
        if (state && g->owners[i].said_none)
            PyObject_SetItem(state, ptac_names.momentum_buffer, Py_None);
        else if (state)
            PyObject_DelItem(state, ptac_names.momentum_buffer);
        Py_XDECREF(state);
        PyErr_Clear(); /* which leaves the new one */
    }
    PyErr_Restore(type, value, trace);
}
