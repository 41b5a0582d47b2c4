/*
 * lean_call.c - reading, making and running for operators that are called by name.
 */
#include "bind/python/callpath/lean_call.h"

#include "bind/torch/cuda.h"

ptac_reason ptac_view_on_cuda(PyObject *tensor, ptac_view *view)
{
    if (!ptac_is_plain_on_cuda(tensor))
        return ptac_is_plain(tensor) ? PTAC_DEVICE : PTAC_SUBCLASS;
    ptac_cuda_view_of(ptac_borrow(tensor), view);
    return PTAC_TAKE;
}

static ptac_reason view_on_cpu(PyObject *tensor, ptac_view *view)
{
    if (!ptac_is_plain(tensor))
        return ptac_is_plain_on_cuda(tensor) ? PTAC_DEVICE : PTAC_SUBCLASS;
    ptac_view_of(ptac_borrow(tensor), view);
    return PTAC_TAKE;
}

ptac_reason ptac_lean_read(PyObject *const *tensors, const int *places, int n,
                           ptac_call *call)
{
    const bool is_on_cuda = ptac_is_plain_on_cuda(tensors[0]);

    call->on = is_on_cuda ? PTAC_ON_CUDA : PTAC_ON_CPU;
    for (int i = 0; i < n; i++) {
        ptac_view *view = &call->inputs[places[i]];
        ptac_reason why;

        *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (tensors[i] == Py_None)
            continue;
        why = (is_on_cuda ? ptac_view_on_cuda : view_on_cpu)(tensors[i], view);
        if (why)
            return why;
        if (!ptac_view_is_contiguous(view))
            return PTAC_LAYOUT;
    }
    return is_on_cuda ? ptac_call_place(call) : PTAC_TAKE;
}

static bool make_output(ptac_lean_call *m, int i, int place, int32_t dtype, int n_dims,
                        const int64_t *sizes, const int64_t *strides)
{
    const bool is_on_cuda = m->call.on == PTAC_ON_CUDA;
    const at_device device = {is_on_cuda ? AT_DEVICE_CUDA : AT_DEVICE_CPU,
                              is_on_cuda ? m->call.device : 0};

    if (at_new_on(device, dtype, n_dims, sizes, strides, &m->made.at[i]))
        return false;
    (is_on_cuda ? ptac_cuda_view_of : ptac_view_of)(m->made.at[i],
                                                    &m->call.outputs[place]);
    return true;
}

bool ptac_lean_output(ptac_lean_call *m, int i, int place, int32_t dtype, int n_dims,
                      const int64_t *sizes)
{
    return make_output(m, i, place, dtype, n_dims, sizes, NULL);
}

bool ptac_lean_images(ptac_lean_call *m, int i, int place, int32_t dtype, int n_dims,
                      const int64_t *sizes, bool channels_last)
{
    int64_t strides[4];

    ptac_image_strides(n_dims, sizes, channels_last, strides);
    return make_output(m, i, place, dtype, n_dims, sizes, strides);
}

/* Wrapped, and no more ours; None for a tensor that was not made. */
static PyObject *take(at_tensor *made)
{
    return *made ? ptac_wrap(at_give(made)) : Py_NewRef(Py_None);
}

PyObject *ptac_lean_results(ptac_lean_call *m)
{
    PyObject *tuple = PyTuple_New(m->n_results);

    for (int i = 0; tuple && i < m->n_results; i++) {
        PyObject *result = take(&m->made.at[i]);

        if (!result || PyTuple_SetItem(tuple, i, result) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

bool ptac_lean_make_and_run(const ptac_kernel *row, ptac_lean_call *m,
                            ptac_lean_maker make_outputs)
{
    PTAC_CUDA_SCOPE scope = {false};

    if (m->call.on == PTAC_ON_CUDA && !ptac_cuda_begin(&m->call, &scope)) {
        ptac_refuse(m->call.op, PTAC_DEVICE);
        return false;
    }
    if (!make_outputs(m)) {
        ptac_refuse(m->call.op, PTAC_MEMORY);
        return false;
    }
    return ptac_run(row, &m->call);
}

ptac_lean_from ptac_lean_from_of(PyObject *number)
{
    const long from = PyLong_AsLong(number);

    return from == PTAC_LEAN_TRAINED || from == PTAC_LEAN_KERNEL ? (ptac_lean_from)from
                                                                 : PTAC_LEAN_ALONE;
}

const ptac_kernel *ptac_lean_admit(ptac_call *call, ptac_lean_from from,
                                   ptac_reason why)
{
    if (!why && from != PTAC_LEAN_KERNEL)
        why = ptac_why_not_lean();
    if (!why && from == PTAC_LEAN_KERNEL && ptac_shadow_is_on())
        why = PTAC_MODE; /* there is nobody here who could repeat the call */
    if (!why)
        return ptac_admit(call);
    ptac_refuse(call->op, why);
    return NULL;
}

PyObject *ptac_lean_run(ptac_lean_call *m, const ptac_kernel *row,
                        ptac_lean_maker make_outputs)
{
    PyObject *found = NULL;

    if (row && PTAC_UNLOCKED(ptac_lean_make_and_run(row, m, make_outputs)))
        found = ptac_lean_results(m);
    else if (!PyErr_Occurred())
        found = Py_NewRef(Py_None);
    at_drop_tensors(&m->made);
    return found;
}

PyObject *ptac_lean_finish(ptac_lean_call *m, ptac_reason why,
                           ptac_lean_maker make_outputs)
{
    const ptac_kernel *row =
        PyErr_Occurred() ? NULL : ptac_lean_admit(&m->call, m->from, why);

    return ptac_lean_run(m, row, make_outputs);
}
