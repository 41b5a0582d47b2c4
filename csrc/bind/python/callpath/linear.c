/*
 * linear.c - lean call paths to linear_act: a product, and its activation with it.
 *
 * Each function returns None where stock has to be called, so that its caller calls
 * stock with the arguments as they came.
 */
#include "bind/python/callpath/linear.h"

#include "bind/python/callpath/node.h"

#include <string.h>

/* What linear_install() was given. */
static PyObject *applies;          /* of the nodes, in the order of ptac_act */
static PyObject *matmul_precision; /* returns torch's setting for products on the CPU */
static PyObject *full_precisions;  /* the settings by which it keeps float32 */
static PyObject *onednn_enabled;   /* torch._C._get_mkldnn_enabled */

/* The user lets torch round the operands of products on this CPU. */
static bool precision_is_lowered(void)
{
    PyObject *level = PyObject_CallNoArgs(matmul_precision);
    const bool is_full = level && PySequence_Contains(full_precisions, level) == 1;

    Py_XDECREF(level);
    PyErr_Clear();
    return !is_full;
}

/* The user has switched torch's oneDNN off, torch.backends.mkldnn.flags(). */
static bool onednn_is_off(const char *row_name)
{
    PyObject *enabled;

    if (strcmp(row_name, "onednn") != 0 && strcmp(row_name, "bf16") != 0)
        return false;
    enabled = PyObject_CallNoArgs(onednn_enabled);
    Py_XDECREF(enabled);
    PyErr_Clear();
    return enabled != Py_True;
}

/* Whether torch's settings let this row multiply. */
static ptac_reason ask_settings(const ptac_kernel *row)
{
    if (precision_is_lowered())
        return PTAC_PRECISION;
    return onednn_is_off(row->name) ? PTAC_MODE : PTAC_TAKE;
}

static at_tensor borrow_or_null(PyObject *tensor)
{
    return tensor == Py_None ? NULL : ptac_borrow(tensor);
}

/* A result that stands for what the operator's outputs are: y, or (y, z). */
static PyObject *wrap_results(ptac_linear_tensors *t)
{
    return ptac_wrap_outputs(at_give(&t->y), t->z ? at_give(&t->z) : NULL);
}

static bool run_unlocked(const ptac_kernel *row, const ptac_call *call)
{
    PyThreadState *thread = PyEval_SaveThread();
    const bool done = ptac_run(row, call);

    PyEval_RestoreThread(thread);
    return done;
}

/* Handles of plain tensors x, w, and bias or None. */
static ptac_reason borrow(PyObject *const tensors[3], ptac_linear_tensors *t)
{
    for (int i = 0; i < 3; i++)
        if ((i < 2 || tensors[i] != Py_None) && !ptac_is_plain(tensors[i]))
            return PTAC_SUBCLASS;
    t->x = ptac_borrow(tensors[0]);
    t->w = ptac_borrow(tensors[1]);
    t->bias = borrow_or_null(tensors[2]);
    return PTAC_TAKE;
}

/*
 * The row for borrowed tensors, with its call; NULL and why stock has to do it. Sizes
 * come first: they send most small calls to stock.
 */
static const ptac_kernel *choose(ptac_linear_tensors *t, ptac_act activation,
                                 bool is_training, ptac_linear_act *params,
                                 ptac_call *call, ptac_reason *why)
{
    const ptac_kernel *row = NULL;

    *why = ptac_linear_size(t, activation, is_training, params, call);
    if (!*why)
        row = ptac_probe(call, why);
    if (row)
        *why = ptac_linear_read(t, call);
    if (!*why)
        *why = ask_settings(row);
    return *why ? NULL : row;
}

/*
 * Whether a gradient will be asked of x, w or bias; -1 with an exception set. Asks w
 * first: parameters usually want one.
 */
static int wants_gradient(PyObject *const tensors[3])
{
    static const int order[] = {1, 0, 2};
    int wants = 0;

    if (T.aoti_torch_grad_mode_is_enabled())
        for (int i = 0; i < 3 && wants == 0; i++)
            if (tensors[order[i]] != Py_None)
                wants = ptac_requires_grad(tensors[order[i]]);
    return wants;
}

/*
 * The row for a call of the lean path, NULL where stock has to do it: why says so, or
 * PTAC_TAKE with an exception set.
 */
static const ptac_kernel *choose_lean(PyObject *const tensors[3], ptac_act activation,
                                      ptac_linear_tensors *t, int *is_training,
                                      ptac_linear_act *params, ptac_call *call,
                                      ptac_reason *why)
{
    const ptac_kernel *row;

    *why = borrow(tensors, t);
    if (*why)
        return NULL;
    *is_training = wants_gradient(tensors);
    if (*is_training < 0)
        return NULL;
    row = choose(t, activation, *is_training, params, call, why);
    if (row)
        *why = ptac_why_not_lean();
    return *why ? NULL : row;
}

/* By way of the node: apply(x, w, bias, activation, row, is_training). */
static PyObject *apply_node(PyObject *const tensors[3], ptac_act activation,
                            const ptac_kernel *row, bool is_training)
{
    PyObject *args[] = {
        Py_NewRef(tensors[0]),           Py_NewRef(tensors[1]),
        Py_NewRef(tensors[2]),           PyLong_FromLong(activation),
        PyUnicode_FromString(row->name), PyBool_FromLong(is_training),
    };

    return ptac_node_apply(PTAC_OP_LINEAR_ACT, PyTuple_GetItem(applies, activation),
                           args, 6);
}

PyObject *ptac_try_linear(PyObject *const tensors[3], ptac_act activation,
                          bool counts_refusals)
{
    const ptac_op op = PTAC_OP_LINEAR_ACT;
    ptac_linear_tensors t = {0};
    ptac_linear_act params;
    ptac_call call;
    ptac_reason why;
    const ptac_kernel *row;
    int is_training;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    row = choose_lean(tensors, activation, &t, &is_training, &params, &call, &why);
    if (!row && !why)
        return NULL;
    if (!row) {
        if (counts_refusals)
            ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    if (is_training || ptac_shadow_is_on())
        return apply_node(tensors, activation, row, is_training);
    if (run_unlocked(row, &call))
        return wrap_results(&t);
    Py_RETURN_NONE;
}

/*
 * linear_row(x, w) -> name of the row that linear_act() would use without an
 * activation, or None. Counts nothing.
 */
PTAC_FASTCALL(linear_row)
{
    PyObject *tensors[3] = {NULL, NULL, Py_None};
    ptac_linear_tensors t = {0};
    ptac_linear_act params;
    ptac_call call;
    ptac_reason why;
    const ptac_kernel *row;
    int is_training;

    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "x, w");
    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_LINEAR_ACT))
        Py_RETURN_NONE;
    tensors[0] = args[0];
    tensors[1] = args[1];
    row = choose_lean(tensors, PTAC_ACT_NONE, &t, &is_training, &params, &call, &why);
    if (row)
        return PyUnicode_FromString(row->name);
    return why ? Py_NewRef(Py_None) : NULL;
}

static bool read_activation(PyObject *code, ptac_act *activation)
{
    const long value = PyLong_AsLong(code);

    if (value < 0 || value > PTAC_ACT_SIGMOID) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no such activation");
        return false;
    }
    *activation = (ptac_act)value;
    return true;
}

/*
 * linear_act_forward(x, w, bias, activation, row, is_training) -> y, (y, z), or None
 * where the row failed. Called by LinearAct.forward for what ptac_try_linear() has
 * accepted.
 */
PTAC_FASTCALL(linear_act_forward)
{
    ptac_act activation;
    ptac_linear_tensors t = {0};
    ptac_linear_act params;
    ptac_call call;
    const char *name;
    const ptac_kernel *row;
    ptac_reason why;

    if (n_args != 6)
        return PyErr_Format(PyExc_TypeError,
                            "x, w, bias, activation, row, is_training");
    name = PyUnicode_AsUTF8AndSize(args[4], NULL);
    if (!name || !read_activation(args[3], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    row = ptac_registry_find(PTAC_OP_LINEAR_ACT, name);
    why = borrow(args, &t);
    if (!why)
        why = ptac_linear_size(&t, activation, args[5] == Py_True, &params, &call);
    if (!why)
        why = ptac_linear_read(&t, &call);
    if (why || !row)
        ptac_refuse(PTAC_OP_LINEAR_ACT, why ? why : PTAC_ARGUMENT);
    else if (run_unlocked(row, &call))
        return wrap_results(&t);
    Py_RETURN_NONE;
}

/*
 * linear_act(x, w, bias, activation) -> y, or None for stock: what ptac_try_linear()
 * does for nn.Sequential, for callers in Python.
 */
PTAC_FASTCALL(linear_act)
{
    ptac_act activation;

    if (n_args != 4)
        return PyErr_Format(PyExc_TypeError, "x, w, bias, activation");
    if (!read_activation(args[3], &activation))
        return NULL;
    return ptac_try_linear(args, activation, true);
}

/*
 * linear_act_kernel(x, w, bias, activation) -> y, (y, z), or None for stock: the kernel
 * of our own operator, called by the dispatcher below autograd.
 */
PTAC_FASTCALL(linear_act_kernel)
{
    ptac_linear_tensors t = {0};
    ptac_linear_act params;
    ptac_act activation;
    ptac_reason why;
    ptac_call call;
    const ptac_kernel *row;

    if (n_args != 4)
        return PyErr_Format(PyExc_TypeError, "x, w, bias, activation");
    if (!read_activation(args[3], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_LINEAR_ACT))
        Py_RETURN_NONE;
    why = borrow(args, &t);
    row = why ? NULL : choose(&t, activation, true, &params, &call, &why);
    if (why)
        ptac_refuse(PTAC_OP_LINEAR_ACT, why);
    else if (run_unlocked(row, &call))
        return wrap_results(&t);
    Py_RETURN_NONE;
}

static PyObject *wrap_or_none(at_tensor *owned)
{
    return *owned ? ptac_wrap(at_give(owned)) : Py_NewRef(Py_None);
}

/*
 * linear_act_backward(row, activation, grad, x, w, saved, wants) -> (gx, gw, gbias), or
 * None for stock. x, w and saved may be None where not needed; wants is three bools.
 */
PTAC_FASTCALL(linear_act_backward)
{
    const ptac_op op = PTAC_OP_LINEAR_ACT_BACKWARD;
    ptac_linear_gradients g = {0};
    ptac_act activation;
    const char *row;
    ptac_reason why = PTAC_TAKE;
    bool done;

    if (n_args != 7 || !PyTuple_Check(args[6]) || PyTuple_Size(args[6]) != 3)
        return PyErr_Format(PyExc_TypeError,
                            "row, activation, grad, x, w, saved, wants");
    row = PyUnicode_AsUTF8AndSize(args[0], NULL);
    if (!row || !read_activation(args[1], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    for (int i = 2; i < 6; i++)
        if ((i == 2 || args[i] != Py_None) && !ptac_is_plain(args[i]))
            why = PTAC_SUBCLASS;
    if (!ptac_thread_is_plain() || onednn_is_off(row))
        why = PTAC_MODE;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    g.grad = ptac_borrow(args[2]);
    g.x = borrow_or_null(args[3]);
    g.w = borrow_or_null(args[4]);
    g.saved = borrow_or_null(args[5]);
    g.wants_x = PyTuple_GetItem(args[6], 0) == Py_True;
    g.wants_w = PyTuple_GetItem(args[6], 1) == Py_True;
    g.wants_bias = PyTuple_GetItem(args[6], 2) == Py_True;

    PyThreadState *thread = PyEval_SaveThread();

    done = ptac_linear_backward(row, activation, &g);
    PyEval_RestoreThread(thread);
    if (!done)
        Py_RETURN_NONE;
    return Py_BuildValue("(NNN)", wrap_or_none(&g.grad_x), wrap_or_none(&g.grad_w),
                         wrap_or_none(&g.grad_bias));
}

/*
 * linear_install(an apply for each activation, matmul_precision, full_precisions,
 * torch._C._get_mkldnn_enabled). Calls go to stock unless matmul_precision() gives one
 * of full_precisions.
 */
PTAC_VARARGS(linear_install)
{
    PyObject *functions, *precision, *full, *onednn;

    if (!PyArg_ParseTuple(args, "O!OOO", &PyTuple_Type, &functions, &precision, &full,
                          &onednn))
        return NULL;
    if (PyTuple_Size(functions) != PTAC_N_ACTS) {
        PyErr_SetString(PyExc_ValueError, "each activation has a node");
        return NULL;
    }
    ptac_keep(&applies, functions);
    ptac_keep(&matmul_precision, precision);
    ptac_keep(&full_precisions, full);
    ptac_keep(&onednn_enabled, onednn);
    Py_RETURN_NONE;
}
