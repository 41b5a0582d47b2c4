/*
 * cross_entropy.c - the lean call path to cross_entropy.
 *
 * Except cross_entropy() itself, functions return None where stock has to be called.
 */
#include "bind/torch/rows/cross_entropy.h"
#include "bind/python/callpath/lean.h"

/* How to apply the nodes: the ways with gradients, on the CPU and on CUDA. */
PTAC_LENT(cross_entropy_node)
PTAC_LENT(cross_entropy_node_on_cuda)
PTAC_LENT(stock_cross_entropy) /* torch._C._nn.cross_entropy_loss */

/* x, target, weight or None, reduction, ignore_index, label_smoothing */
enum {
    N_ARGS = 6,
};

/* Of tensors that are not all plain on that device. */
static ptac_reason why_not_plain(PyObject *const *args)
{
    for (int i = 0; i < 3; i++)
        if (args[i] != Py_None && !ptac_is_plain(args[i]) &&
            !ptac_is_plain_on_cuda(args[i]))
            return ptac_why_not_plain(args[i]);
    return args[1] == Py_None ? PTAC_ARGUMENT : PTAC_DEVICE;
}

/* PTAC_TAKE with *read filled, or why stock has to see these arguments. */
static ptac_reason read_args(PyObject *const *args, ptac_cross_entropy_args *read)
{
    if (!ptac_are_plain_on(args, 3, 2, &read->on))
        return why_not_plain(args);
    read->autocasts = ptac_thread_autocasts_on(read->on);
    read->x = ptac_borrow(args[0]);
    read->target = ptac_borrow(args[1]);
    read->weight = ptac_borrow_or_null(args[2]);
    if (!PyLong_CheckExact(args[3]) || !PyLong_CheckExact(args[4]) ||
        !PyFloat_CheckExact(args[5]))
        return PTAC_ARGUMENT;
    read->reduction = PyLong_AsLongLong(args[3]);
    read->ignore_index = PyLong_AsLongLong(args[4]);
    read->label_smoothing = PyFloat_AsDouble(args[5]);
    if (!PyErr_Occurred())
        return PTAC_TAKE;
    PyErr_Clear();
    return PTAC_ARGUMENT;
}

/* The same, and the call that they make. */
static ptac_reason read_call(PyObject *const *args, ptac_cross_entropy_args *read,
                             ptac_cross_entropy *params, ptac_call *call)
{
    const ptac_reason why = read_args(args, read);

    return why ? why : ptac_cross_entropy_read(read, params, call);
}

/* 1: x wants a gradient; 0: none is wanted; -1: of others than x, which is stock's. */
static int wants_gradient(PyObject *const *args)
{
    if (!T.aoti_torch_grad_mode_is_enabled())
        return 0;
    for (int i = 1; i < 3; i++)
        if (args[i] != Py_None && ptac_requires_grad(args[i]) != 0)
            return -1;
    return ptac_requires_grad(args[0]);
}

static PyObject *run(const ptac_kernel *row, ptac_call *call, bool keeps)
{
    at_tensor loss = NULL, kept = NULL;
    const bool done =
        PTAC_UNLOCKED(ptac_cross_entropy_run(row, call, &loss, keeps ? &kept : NULL));

    return done ? ptac_wrap_outputs(loss, kept) : Py_NewRef(Py_None);
}

static PyObject *apply_with_gradient(PyObject *const *args, const ptac_kernel *row)
{
    PyObject *node =
        row->device == PTAC_ON_CUDA ? cross_entropy_node_on_cuda : cross_entropy_node;
    PTAC_OWNED PyObject *name = PyUnicode_FromString(row->name);
    PTAC_OWNED PyObject *all = name
                                   ? PyTuple_Pack(N_ARGS + 1, args[0], args[1], args[2],
                                                  args[3], args[4], args[5], name)
                                   : NULL;

    return ptac_node_apply(PTAC_OP_CROSS_ENTROPY, node, all);
}

/* These logits are fewer than any row takes, and nothing else sends them to stock. */
static bool is_too_small(PyObject *x)
{
    const ptac_op op = PTAC_OP_CROSS_ENTROPY;
    int64_t n_elements = 0;

    if (ptac_chooser_gate(op) || ptac_thread_is_disabled() || !ptac_is_plain(x))
        return false;
    T.aoti_torch_get_numel(ptac_borrow(x), &n_elements);
    return n_elements < ptac_chooser_least_work(op);
}

/*
 * The loss, or None where stock has to compute it. Sizes come first: they send most
 * small calls to stock.
 */
static PyObject *try_cross_entropy(PyObject *const *args)
{
    const ptac_op op = PTAC_OP_CROSS_ENTROPY;
    ptac_cross_entropy_args read;
    ptac_cross_entropy params;
    ptac_call call;
    const ptac_kernel *row;
    ptac_reason why;
    int wants = 0;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    why = is_too_small(args[0]) ? PTAC_NOT_FASTER
                                : read_call(args, &read, &params, &call);
    row = why ? NULL : ptac_probe(&call, &why);
    if (row)
        why = ptac_why_not_lean_on(read.on);
    if (!why)
        wants = wants_gradient(args);
    if (PyErr_Occurred())
        return NULL;
    if (wants < 0)
        why = PTAC_GRAD;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    if (wants || ptac_shadow_is_on())
        return apply_with_gradient(args, row);
    return run(row, &call, false);
}

/*
 * cross_entropy(x, target, weight, reduction, ignore_index, smoothing) -> loss, by
 * stock where no row takes the call
 */
PTAC_ARGS(cross_entropy, N_ARGS)
{
    PyObject *loss = try_cross_entropy(args);
    PTAC_OWNED PyObject *packed = NULL;

    if (loss != Py_None)
        return loss;
    Py_DECREF(loss);
    packed = PyTuple_Pack(N_ARGS, args[0], args[1], args[2], args[3], args[4], args[5]);
    return packed ? PyObject_CallObject(stock_cross_entropy, packed) : NULL;
}

/*
 * The loss and what backward needs, by the row of that name, or by the chooser's where
 * there is none. autocasts: see ptac_cross_entropy_args, or NULL: as the thread does.
 */
static PyObject *run_keeping(PyObject *const *args, const char *row_name,
                             PyObject *autocasts)
{
    ptac_cross_entropy_args read;
    ptac_cross_entropy params;
    ptac_call call;
    const ptac_kernel *row;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (!row_name && ptac_is_off(PTAC_OP_CROSS_ENTROPY))
        Py_RETURN_NONE;
    why = read_args(args, &read);
    if (autocasts)
        read.autocasts = autocasts == Py_True;
    if (!why)
        why = ptac_cross_entropy_read(&read, &params, &call);
    if (why) {
        ptac_refuse(PTAC_OP_CROSS_ENTROPY, why);
        Py_RETURN_NONE;
    }
    row = row_name ? ptac_admit_row(&call, row_name) : ptac_admit(&call);
    return row ? run(row, &call, true) : Py_NewRef(Py_None);
}

/*
 * cross_entropy_forward(the same six, row) -> (loss, p), or on CUDA (loss, saved), or
 * None where the row failed. Called by nodes for what cross_entropy() has accepted.
 */
PTAC_ARGS(cross_entropy_forward, N_ARGS + 1)
{
    const char *row_name = PyUnicode_AsUTF8AndSize(args[N_ARGS], NULL);

    return row_name ? run_keeping(args, row_name, NULL) : NULL;
}

/*
 * cross_entropy_kernel(the same six, autocasts) -> the same, or None for stock: the
 * kernel of our own operator, called by the dispatcher below autograd and autocast.
 */
PTAC_ARGS(cross_entropy_kernel, N_ARGS + 1)
{
    return run_keeping(args, NULL, args[N_ARGS]);
}

/* The gradient of x, or None; saved: on CUDA; over_p: p may be written over. */
static PyObject *gradient(PyObject *const *args, PyObject *saved, bool over_p)
{
    const ptac_op op = PTAC_OP_CROSS_ENTROPY_BACKWARD;
    const char *row_name = PyUnicode_AsUTF8AndSize(args[N_ARGS], NULL);
    PyObject *const others[2] = {args[N_ARGS + 1], saved};
    ptac_device on = PTAC_ON_CPU;
    ptac_cross_entropy_args read;
    at_tensor grad_x = NULL;
    ptac_reason why;

    if (!row_name)
        return NULL;
    why = read_args(args, &read);
    if (!why && (!ptac_are_plain_on(others, 2, 1, &on) || on != read.on))
        why = PTAC_SUBCLASS;
    if (!why && (on == PTAC_ON_CUDA) != (saved != Py_None))
        why = PTAC_ARGUMENT;
    if (!why && !ptac_thread_is_plain_on(on))
        why = PTAC_MODE;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }

    const bool done = PTAC_UNLOCKED(
        ptac_cross_entropy_gradient(row_name, &read, ptac_borrow(others[0]),
                                    ptac_borrow_or_null(saved), over_p, &grad_x));

    return done ? ptac_wrap(grad_x) : Py_NewRef(Py_None);
}

/*
 * cross_entropy_backward(p, target, weight, reduction, ignore_index, smoothing, row,
 * grad, over_p) -> gradient of x, or None; over_p: p may be overwritten
 */
PTAC_ARGS(cross_entropy_backward, N_ARGS + 3)
{
    PyObject *grad_x;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_CROSS_ENTROPY_BACKWARD))
        Py_RETURN_NONE;

    /* Nobody should look at p again; whoever does learns that it has changed. */
    const bool over_p =
        args[N_ARGS + 2] == Py_True && ptac_is_plain_and_versioned(args[0]);

    grad_x = gradient(args, Py_None, over_p);
    if (over_p && grad_x && grad_x != Py_None)
        ptac_bump_version(args[0]);
    return grad_x;
}

/*
 * cross_entropy_backward_from_logits(x, target, weight, reduction, ignore_index,
 * smoothing, row, grad, saved) -> gradient of x, or None: on CUDA
 */
PTAC_ARGS(cross_entropy_backward_from_logits, N_ARGS + 3)
{
    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_CROSS_ENTROPY_BACKWARD))
        Py_RETURN_NONE;
    return gradient(args, args[N_ARGS + 2], false);
}
