/*
 * int8.c - calls of int8 operators: from a quantized module, and from the dispatcher.
 *
 * Each function returns None where the caller has to do it by dequantized weights. The
 * functions named _kernel are those of our operators in the dispatcher, from which the
 * others are not called: they leave threads with modes and transforms to them.
 */
#include "bind/python/quantized/int8.h"

#include "bind/python/callpath/node.h"

#include "ops/int8/int8_linear.h"
#include "ops/linear/bias_act.h"

/* A tensor's floats as rows of its last dimension, copied where they have gaps. */
typedef struct float_rows {
    ptac_view view;
    at_tensor copy; /* owned, or NULL */
    int64_t m, k, stride;
} float_rows;

at_tensor ptac_int8_dense(at_tensor tensor, bool channels_last)
{
    at_tensor handle = NULL;

    if (T.aoti_torch_new_tensor_handle(tensor, &handle))
        return NULL;

    stable_ivalue stack[2] = {(stable_ivalue)(uintptr_t)handle,
                              channels_last ? AT_MEMORY_FORMAT_CHANNELS_LAST
                                            : AT_MEMORY_FORMAT_CONTIGUOUS};

    if (T.torch_call_dispatcher("aten::contiguous", "", stack, PTAC_TORCH_ABI_VERSION))
        return NULL;
    return at_take_tensor(stack, 0);
}

int ptac_int8_is_lean(ptac_op op, PyObject *x, PyObject *bias)
{
    int wants = 0;

    if (ptac_is_off(op) || ptac_why_not_lean())
        return 0;
    if (T.aoti_torch_grad_mode_is_enabled()) {
        wants = ptac_is_plain(x) ? ptac_requires_grad(x) : 1;
        if (wants == 0 && bias != Py_None)
            wants = ptac_is_plain(bias) ? ptac_requires_grad(bias) : 1;
    }
    return wants < 0 ? -1 : !wants;
}

static ptac_reason read_rows(at_tensor tensor, float_rows *rows)
{
    ptac_view *view = &rows->view;
    int64_t last;

    ptac_view_of(tensor, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims < 1 || view->n_dims > PTAC_INT8_MOST_DIMS)
        return PTAC_SHAPE;
    last = view->n_dims - 1;
    rows->k = view->sizes[last];
    rows->m = rows->k ? view->n_elements / rows->k : 0;
    rows->stride = rows->k;
    if (ptac_view_is_contiguous(view))
        return PTAC_TAKE;
    if (view->n_dims == 2 && view->strides[1] == 1 && view->strides[0] >= rows->k) {
        rows->stride = view->strides[0];
        return PTAC_TAKE;
    }
    rows->copy = ptac_int8_dense(tensor, false);
    if (!rows->copy)
        return PTAC_MEMORY;
    T.aoti_torch_get_data_ptr(rows->copy, &view->data);
    return PTAC_TAKE;
}

bool ptac_int8_run(const ptac_kernel *row, ptac_call *call, at_tensor y)
{
    PyThreadState *thread;
    bool done;

    if (!y) {
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    ptac_view_of(y, &call->outputs[0]);
    call->n_outputs = 1;
    thread = PyEval_SaveThread();
    done = ptac_run(row, call);
    PyEval_RestoreThread(thread);
    return done;
}

/* y has x's sizes but for the last. */
static at_tensor result_like(const ptac_view *x, int64_t n)
{
    int64_t sizes[PTAC_INT8_MOST_DIMS];

    for (int i = 0; i < x->n_dims - 1; i++)
        sizes[i] = x->sizes[i];
    sizes[x->n_dims - 1] = n;
    return ptac_int8_new(x->n_dims, sizes, AT_DTYPE_F32);
}

/* x, packed, scale, bias or None, n, k, activation */
enum {
    LINEAR_ARGS = 7,
};

typedef struct linear_args {
    float_rows rows;
    ptac_int8_linear params;
    ptac_call call;
    at_tensor y;
} linear_args;

static ptac_reason read_linear(PyObject *const *args, linear_args *read)
{
    ptac_int8_linear *p = &read->params;
    const long activation = PyLong_AsLong(args[6]);
    ptac_view *inputs = read->call.inputs;
    ptac_reason why;

    if (!ptac_int8_size(args[4], 1, &p->n) || !ptac_int8_size(args[5], 1, &p->k) ||
        (activation != PTAC_ACT_NONE && activation != PTAC_ACT_RELU))
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
    why = read_rows(ptac_borrow(args[0]), &read->rows);
    if (why)
        return why;
    if (read->rows.k != p->k)
        return PTAC_SHAPE;
    p->m = read->rows.m;
    p->x_stride = read->rows.stride;
    p->relu = activation == PTAC_ACT_RELU;
    inputs[0] = read->rows.view;
    read->call.op = PTAC_OP_INT8_LINEAR;
    read->call.n_inputs = args[3] == Py_None ? 3 : 4;
    read->call.params = p;
    return PTAC_TAKE;
}

static bool run_linear(linear_args *read, const ptac_kernel *row)
{
    read->y = result_like(&read->rows.view, read->params.n);
    return ptac_int8_run(row, &read->call, read->y);
}

const ptac_kernel *ptac_int8_admit(ptac_call *call, ptac_reason why, bool is_kernel)
{
    if (is_kernel && why)
        ptac_refuse(call->op, why);
    if (why)
        return NULL;
    return is_kernel ? ptac_admit(call) : ptac_probe(call, &why);
}

static PyObject *try_linear(PyObject *const *args, Py_ssize_t n_args, bool is_kernel)
{
    linear_args read = {.call = {.op = PTAC_OP_INT8_LINEAR}};
    const ptac_kernel *row;
    ptac_reason why;
    int is_ours;
    PyObject *result;

    if (n_args != LINEAR_ARGS)
        return PyErr_Format(PyExc_TypeError,
                            "x, packed, scale, bias, n, k, activation");
    PTAC_IN_FLIGHT;
    is_ours = is_kernel ? !ptac_is_off(PTAC_OP_INT8_LINEAR)
                        : ptac_int8_is_lean(PTAC_OP_INT8_LINEAR, args[0], args[3]);
    if (is_ours <= 0)
        return is_ours < 0 ? NULL : Py_NewRef(Py_None);
    why = read_linear(args, &read);
    row = PyErr_Occurred() ? NULL : ptac_int8_admit(&read.call, why, is_kernel);
    if (row && run_linear(&read, row))
        result = ptac_wrap(at_give(&read.y));
    else
        result = PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    at_drop_tensor(&read.y);
    at_drop_tensor(&read.rows.copy);
    return result;
}

/* int8_linear(x, packed, scale, bias or None, n, k, activation) -> y or None */
static PyObject *int8_linear(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    (void)self;
    return try_linear(args, n_args, false);
}

static PyObject *int8_linear_kernel(PyObject *self, PyObject *const *args,
                                    Py_ssize_t n_args)
{
    (void)self;
    return try_linear(args, n_args, true);
}

PyMethodDef ptac_int8_methods[] = {
    PTAC_FASTCALL(int8_linear, NULL),
    PTAC_FASTCALL(int8_linear_kernel, NULL),
    {NULL, NULL, 0, NULL},
};
