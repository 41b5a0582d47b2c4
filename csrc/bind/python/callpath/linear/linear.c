/*
 * linear.c - lean call paths to linear_act: a product, and its activation with it.
 *
 * Each function returns None where stock has to be called, so that its caller calls
 * stock with the arguments as they came.
 */
#include "bind/python/callpath/lean.h"

#include <string.h>

PTAC_LENT(linear_nodes)     /* how to apply them, a tuple in the order of ptac_act */
PTAC_LENT(matmul_precision) /* returns torch's setting for products on the CPU */
PTAC_LENT(full_precisions)  /* the settings by which it keeps float32 */
PTAC_LENT(onednn_enabled)   /* torch._C._get_mkldnn_enabled */

/* The user lets torch round the operands of products on this CPU. */
static bool precision_is_lowered(void)
{
    PTAC_OWNED PyObject *level = PyObject_CallNoArgs(matmul_precision);
    const bool is_full = level && PySequence_Contains(full_precisions, level) == 1;

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

/* A call, and why stock has to do it. */
typedef struct lean {
    ptac_linear_tensors t;
    ptac_linear_act params;
    ptac_call call;
    ptac_reason why;
} lean;

/* y, or (y, z), as the operator's outputs are; None where no row has run. */
static PyObject *run(const ptac_kernel *row, lean *l)
{
    if (!row || !PTAC_UNLOCKED(ptac_run(row, &l->call)))
        Py_RETURN_NONE;
    return ptac_wrap_outputs(at_give(&l->t.y), l->t.z ? at_give(&l->t.z) : NULL);
}

/* Handles of plain tensors x, w, and bias or None; false where they are others. */
static bool borrow(PyObject *const tensors[3], lean *l)
{
    const bool are_plain = ptac_are_plain(tensors, 3, 2);

    l->why = are_plain ? PTAC_TAKE : PTAC_SUBCLASS;
    if (are_plain)
        l->t = (ptac_linear_tensors){
            .x = ptac_borrow(tensors[0]),
            .w = ptac_borrow(tensors[1]),
            .bias = ptac_borrow_or_null(tensors[2]),
        };
    return are_plain;
}

/*
 * The row for borrowed tensors; NULL where stock has to do it. Sizes come first: they
 * send most small calls to stock.
 */
static const ptac_kernel *choose(lean *l, ptac_act activation, bool is_training)
{
    const ptac_kernel *row = NULL;

    l->why = ptac_linear_size(&l->t, activation, is_training, &l->params, &l->call);
    if (!l->why)
        row = ptac_probe(&l->call, &l->why);
    if (row)
        l->why = ptac_linear_read(&l->t, &l->call);
    if (!l->why && precision_is_lowered())
        l->why = PTAC_PRECISION;
    if (!l->why && onednn_is_off(row->name))
        l->why = PTAC_MODE;
    return l->why ? NULL : row;
}

int ptac_linear_wants_gradient(PyObject *const tensors[3])
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
 * The row for a call of the lean path, NULL where stock has to do it: l->why says so,
 * or is PTAC_TAKE with an exception set.
 */
static const ptac_kernel *choose_lean(PyObject *const tensors[3], ptac_act activation,
                                      lean *l, int *is_training)
{
    const ptac_kernel *row;

    if (!borrow(tensors, l))
        return NULL;
    *is_training = ptac_linear_wants_gradient(tensors);
    if (*is_training < 0)
        return NULL;
    row = choose(l, activation, *is_training);
    if (row)
        l->why = ptac_why_not_lean();
    return l->why ? NULL : row;
}

/* By way of the node: apply(x, w, bias, activation, row, is_training). */
PyObject *ptac_linear_node(PyObject *const tensors[3], ptac_act activation,
                           const ptac_kernel *row, bool is_training)
{
    PTAC_OWNED PyObject *code = PyLong_FromLong(activation);
    PTAC_OWNED PyObject *name = PyUnicode_FromString(row->name);
    PTAC_OWNED PyObject *args =
        code && name ? PyTuple_Pack(6, tensors[0], tensors[1], tensors[2], code, name,
                                    is_training ? Py_True : Py_False)
                     : NULL;

    return ptac_node_apply(PTAC_OP_LINEAR_ACT,
                           PyTuple_GetItem(linear_nodes, activation), args);
}

PyObject *ptac_try_linear(PyObject *const tensors[3], ptac_act activation,
                          bool counts_refusals)
{
    const ptac_kernel *row;
    int is_training;
    lean l;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_LINEAR_ACT))
        Py_RETURN_NONE;
    if (ptac_has_function_mode()) { /* which would see what is asked of tensors */
        if (counts_refusals)
            ptac_refuse(PTAC_OP_LINEAR_ACT, PTAC_MODE);
        Py_RETURN_NONE;
    }
    if (ptac_is_plain_on_cuda(tensors[0]))
        return ptac_try_linear_on_cuda(tensors, activation, counts_refusals);
    row = choose_lean(tensors, activation, &l, &is_training);
    if (!row && !l.why)
        return NULL;
    if (l.why && counts_refusals)
        ptac_refuse(PTAC_OP_LINEAR_ACT, l.why);
    if (row && (is_training || ptac_shadow_is_on()))
        return ptac_linear_node(tensors, activation, row, is_training);
    return run(row, &l);
}

/*
 * linear_row(x, w) -> name of the row that linear_act() would use without an
 * activation, or None. Counts nothing.
 */
PTAC_ARGS(linear_row, 2)
{
    PyObject *const tensors[3] = {args[0], args[1], Py_None};
    const ptac_kernel *row;
    int is_training;
    lean l;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_LINEAR_ACT))
        Py_RETURN_NONE;
    row = choose_lean(tensors, PTAC_ACT_NONE, &l, &is_training);
    if (row)
        return PyUnicode_FromString(row->name);
    return l.why ? Py_NewRef(Py_None) : NULL;
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
PTAC_ARGS(linear_act_forward, 6)
{
    const ptac_kernel *row;
    const char *name;
    ptac_act activation;
    lean l;

    name = PyUnicode_AsUTF8AndSize(args[4], NULL);
    if (!name || !read_activation(args[3], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_plain_on_cuda(args[0])) {
        row = ptac_registry_find_on(PTAC_ON_CUDA, PTAC_OP_LINEAR_ACT, name);
        return ptac_linear_forward_on_cuda(args, activation, row, args[5] == Py_True);
    }
    row = ptac_registry_find(PTAC_OP_LINEAR_ACT, name);
    if (borrow(args, &l))
        l.why =
            ptac_linear_size(&l.t, activation, args[5] == Py_True, &l.params, &l.call);
    if (!l.why)
        l.why = ptac_linear_read(&l.t, &l.call);
    if (!l.why && !row)
        l.why = PTAC_ARGUMENT;
    if (l.why)
        ptac_refuse(PTAC_OP_LINEAR_ACT, l.why);
    return run(l.why ? NULL : row, &l);
}

/*
 * linear_act(x, w, bias, activation) -> y, or None for stock: what ptac_try_linear()
 * does for nn.Sequential, for callers in Python.
 */
PTAC_ARGS(linear_act, 4)
{
    ptac_act activation;

    return read_activation(args[3], &activation)
               ? ptac_try_linear(args, activation, true)
               : NULL;
}

/*
 * linear_act_kernel(x, w, bias, activation) -> y, (y, z), or None for stock: the kernel
 * of our own operator, called by the dispatcher below autograd.
 */
PTAC_ARGS(linear_act_kernel, 4)
{
    const ptac_kernel *row;
    ptac_act activation;
    lean l;

    if (!read_activation(args[3], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_LINEAR_ACT))
        Py_RETURN_NONE;
    row = borrow(args, &l) ? choose(&l, activation, true) : NULL;
    if (l.why)
        ptac_refuse(PTAC_OP_LINEAR_ACT, l.why);
    return run(row, &l);
}

static PyObject *wrap_or_none(at_tensor *owned)
{
    return *owned ? ptac_wrap(at_give(owned)) : Py_NewRef(Py_None);
}

/*
 * linear_act_backward(row, activation, grad, x, w, saved, wants) -> (gx, gw, gbias), or
 * None for stock. x, w and saved may be None where not needed; wants is three bools.
 */
PTAC_ARGS(linear_act_backward, 7)
{
    const ptac_op op = PTAC_OP_LINEAR_ACT_BACKWARD;
    ptac_linear_gradients g = {0};
    ptac_act activation;
    ptac_device on;
    const char *row;
    ptac_reason why;
    bool is_done;

    if (!PyTuple_Check(args[6]) || PyTuple_Size(args[6]) != 3)
        return PyErr_Format(PyExc_TypeError, "wants are three bools");
    row = PyUnicode_AsUTF8AndSize(args[0], NULL);
    if (!row || !read_activation(args[1], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    why = ptac_are_plain_on(&args[2], 4, 1, &on) ? PTAC_TAKE : PTAC_SUBCLASS;
    if (!why && (!ptac_thread_is_plain_on(on) || onednn_is_off(row)))
        why = PTAC_MODE;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    g.grad = ptac_borrow(args[2]);
    g.x = ptac_borrow_or_null(args[3]);
    g.w = ptac_borrow_or_null(args[4]);
    g.saved = ptac_borrow_or_null(args[5]);
    g.wants_x = PyTuple_GetItem(args[6], 0) == Py_True;
    g.wants_w = PyTuple_GetItem(args[6], 1) == Py_True;
    g.wants_bias = PyTuple_GetItem(args[6], 2) == Py_True;
    is_done = on == PTAC_ON_CUDA
                  ? ptac_linear_backward_on_cuda(row, activation, &g)
                  : PTAC_UNLOCKED(ptac_linear_backward(row, activation, &g));
    if (!is_done)
        Py_RETURN_NONE;
    return Py_BuildValue("(NNN)", wrap_or_none(&g.grad_x), wrap_or_none(&g.grad_w),
                         wrap_or_none(&g.grad_bias));
}
