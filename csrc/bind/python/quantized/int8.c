/*
 * int8.c - calls of int8 operators, from a quantized module and from the dispatcher;
 * int8_linear.
 */
#include "bind/python/quantized/int8.h"

#include "ops/linear/bias_act.h"

ptac_reason ptac_int8_copy(at_tensor tensor, bool channels_last,
                           ptac_quantized_args *read)
{
    at_tensor handle = NULL;

    if (T.aoti_torch_new_tensor_handle(tensor, &handle) ||
        at_contiguous(handle, channels_last, &read->copy))
        return PTAC_MEMORY;
    ptac_view_of(read->copy, &read->call.inputs[0]);
    return PTAC_TAKE;
}

/* A call from a module: no mode, no gradient; -1 with an exception set. */
static int is_lean(const ptac_quantized_op *op, PyObject *const *args)
{
    const int places[] = {0, op->bias};
    int wants = 0;

    if (ptac_why_not_lean())
        return 0;
    if (op->bias && T.aoti_torch_grad_mode_is_enabled())
        for (int i = 0; i < 2 && wants == 0; i++) {
            PyObject *tensor = args[places[i]];

            if (i == 0 || tensor != Py_None)
                wants = ptac_is_plain(tensor) || ptac_is_plain_on_cuda(tensor)
                            ? ptac_requires_grad(tensor)
                            : 1;
        }
    return wants < 0 ? -1 : !wants;
}

/* The row for a call that was read, or NULL. */
static const ptac_kernel *admit(ptac_call *call, ptac_reason why, bool is_kernel)
{
    if (is_kernel && why)
        ptac_refuse(call->op, why);
    if (why)
        return NULL;
    return is_kernel ? ptac_admit(call) : ptac_probe(call, &why);
}

static bool run(const ptac_kernel *row, ptac_call *call, at_tensor y)
{
    if (!y) {
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    ptac_view_of(y, &call->outputs[0]);
    call->n_outputs = 1;
    return PTAC_UNLOCKED(ptac_run(row, call));
}

PyObject *ptac_quantized_call(const ptac_quantized_op *op, PyObject *const *args,
                              Py_ssize_t n_args, bool is_kernel)
{
    ptac_quantized_args read = {.call = {.op = op->op, .params = &read.params},
                                .n_args = n_args};
    const ptac_kernel *row = NULL;
    at_tensor y = NULL;
    ptac_reason why;
    PyObject *result = NULL;
    int is_ours;

    if (n_args > op->n_args || n_args < op->n_args - op->n_optional)
        return PyErr_Format(PyExc_TypeError, "%s", op->args);
    PTAC_IN_FLIGHT;
    is_ours = !ptac_is_off(op->op);
    if (is_ours && !is_kernel)
        is_ours = is_lean(op, args);
    if (is_ours <= 0)
        return is_ours < 0 ? NULL : Py_NewRef(Py_None);
    if (op->on_cuda && ptac_is_plain_on_cuda(args[0]))
        return op->on_cuda(args, n_args, is_kernel);
    why = op->read(args, &read);
    if (!PyErr_Occurred())
        row = admit(&read.call, why, is_kernel);
    if (row)
        y = op->new_output(&read);
    if (row && run(row, &read.call, y))
        result = ptac_wrap(at_give(&y));
    else if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
    at_drop_tensor(&y);
    at_drop_tensor(&read.copy);
    return result;
}

ptac_reason ptac_int8_rows(at_tensor tensor, int64_t k, ptac_view *view, int64_t *m)
{
    ptac_view_of(tensor, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims < 1 || view->n_dims > PTAC_MAX_DIMS ||
        view->sizes[view->n_dims - 1] != k)
        return PTAC_SHAPE;
    *m = view->n_elements / k;
    return PTAC_TAKE;
}

/* The floats as rows of the last dimension, copied where they have gaps. */
static ptac_reason read_rows(at_tensor tensor, ptac_quantized_args *read)
{
    ptac_int8_linear *p = &read->params.linear;
    ptac_view *view = &read->call.inputs[0];
    const ptac_reason why = ptac_int8_rows(tensor, p->k, view, &p->m);

    if (why)
        return why;
    p->x_stride = p->k;
    if (ptac_view_is_contiguous(view))
        return PTAC_TAKE;
    if (view->n_dims == 2 && view->strides[1] == 1 && view->strides[0] >= p->k) {
        p->x_stride = view->strides[0];
        return PTAC_TAKE;
    }
    return ptac_int8_copy(tensor, false, read);
}

bool ptac_int8_activation(PyObject *const *args, const ptac_quantized_args *read,
                          int at, bool *is_relu)
{
    const long activation = at < read->n_args ? PyLong_AsLong(args[at]) : PTAC_ACT_NONE;

    *is_relu = activation == PTAC_ACT_RELU;
    return !PyErr_Occurred() && (*is_relu || activation == PTAC_ACT_NONE);
}

at_tensor ptac_int8_new_rows(const ptac_view *like, int n_dims, int64_t last)
{
    int64_t sizes[PTAC_MAX_DIMS];
    at_tensor made = NULL;

    for (int i = 0; i < n_dims; i++)
        sizes[i] = like->sizes[i];
    sizes[n_dims] = last;
    ptac_new(PTAC_F32, n_dims + 1, sizes, NULL, &made, NULL);
    return made;
}

/* x, packed, scale, bias or None, n, k, activation */
static ptac_reason read_linear(PyObject *const *args, ptac_quantized_args *read)
{
    ptac_int8_linear *p = &read->params.linear;
    ptac_view *inputs = read->call.inputs;

    if (!ptac_int8_size(args[4], 1, &p->n) || !ptac_int8_size(args[5], 1, &p->k) ||
        !ptac_int8_activation(args, read, 6, &p->relu))
        return PTAC_ARGUMENT;

    const ptac_packed_shape shape = {.n = p->n, .c = p->k, .taps = 1, .groups = 1};

    if (!ptac_packed_is_sound(&shape))
        return PTAC_ARGUMENT;
    if (!ptac_is_plain(args[0]))
        return PTAC_SUBCLASS;
    if (!ptac_int8_read(args[1], AT_DTYPE_I8, ptac_packed_bytes(&shape), &inputs[1]) ||
        !ptac_int8_read(args[2], AT_DTYPE_F32, p->n, &inputs[2]))
        return PTAC_ARGUMENT;
    if (args[3] != Py_None && !ptac_int8_read(args[3], AT_DTYPE_F32, p->n, &inputs[3]))
        return PTAC_DTYPE;
    read->call.n_inputs = args[3] == Py_None ? 3 : 4;
    return read_rows(ptac_borrow(args[0]), read);
}

/* y has x's sizes but for the last. */
static at_tensor new_rows(const ptac_quantized_args *read)
{
    const ptac_view *x = &read->call.inputs[0];

    return ptac_int8_new_rows(x, x->n_dims - 1, read->params.linear.n);
}

/* int8_linear(x, packed, scale, bias or None, n, k, activation=0) -> y or None */
PTAC_QUANTIZED_OP(int8_linear, PTAC_OP_INT8_LINEAR, 7, 1,
                  "x, packed, scale, bias, n, k, activation", 3, read_linear, new_rows,
                  ptac_int8_linear_on_cuda)
