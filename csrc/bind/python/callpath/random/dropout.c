/*
 * dropout.c - the lean call paths to dropout on the CPU, alone, in place or before a
 * sum, and to its gradient.
 *
 * What torch draws, divides and multiplies by in three passes is done in one. The node
 * in autograd's graph keeps a byte for each element, where torch's keeps a float. In
 * place there is no node of ours: where a gradient is wanted, torch does it.
 */
#include "bind/python/callpath/lean.h"
#include "bind/python/callpath/lean_call.h"

#include "bind/torch/generator.h"
#include "ops/random/dropout.h"

PTAC_LENT(dropout_node)           /* how to apply it */
PTAC_LENT(dropout_checked)        /* dropout_parts() beside stock, for shadow checks */
PTAC_LENT(stock_dropout)          /* torch._VF.dropout */
PTAC_LENT(stock_dropout_in_place) /* torch._VF.dropout_ */

/* Fewer than any row takes, and nothing else sends them to stock. */
static bool is_too_small(PyObject *x)
{
    const ptac_op op = PTAC_OP_DROPOUT;
    int64_t n_elements = 0;

    if (ptac_chooser_gate(op) || ptac_thread_is_disabled() || !ptac_is_plain(x))
        return false;
    T.aoti_torch_get_numel(ptac_borrow(x), &n_elements);
    return n_elements < ptac_chooser_least_work(op);
}

/* p where it is a float between 0 and 1, which is dropped by; else torch does it. */
static ptac_reason read_p(PyObject *number, PyObject *training, ptac_dropout *params)
{
    const double p = PyFloat_CheckExact(number) ? PyFloat_AsDouble(number) : 0;

    params->keep = 1 - p;
    return training == Py_True && p > 0 && p < 1 && params->keep > 0 && params->keep < 1
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

/* The views of x, and of what comes to lie as it does. */
static ptac_reason read_x(PyObject *x, bool in_place, ptac_view *view)
{
    if (in_place ? !ptac_is_plain_and_versioned(x) : !ptac_is_plain(x))
        return PTAC_SUBCLASS;
    ptac_view_of(ptac_borrow(x), view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (view->n_elements == 0)
        return PTAC_EMPTY;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

typedef struct outputs {
    at_tensor y, mask;
} outputs;

static void drop_outputs(outputs *made)
{
    at_drop_tensor(&made->y);
    at_drop_tensor(&made->mask);
}

/* Without the interpreter's lock. False for stock, counted; then nothing is drawn. */
static bool compute(const ptac_kernel *row, ptac_call *call, ptac_dropout *params,
                    bool in_place, bool keeps, outputs *made)
{
    const ptac_view *x = &call->inputs[PTAC_DROPOUT_X];
    ptac_view *out = call->outputs;
    PTAC_HELD ptac_held_engine held = {NULL, NULL};

    out[PTAC_DROPOUT_Y] = *x;
    out[PTAC_DROPOUT_MASK] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    if ((!in_place && ptac_new(PTAC_F32, x->n_dims, x->sizes, NULL, &made->y,
                               &out[PTAC_DROPOUT_Y])) ||
        (keeps && at_new(AT_DTYPE_BOOL, x->n_dims, x->sizes, &made->mask))) {
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    if (keeps)
        ptac_view_of(made->mask, &out[PTAC_DROPOUT_MASK]);
    held = ptac_generator_hold(NULL);
    if (!held.engine) {
        ptac_refuse(call->op, PTAC_ARGUMENT);
        return false;
    }
    params->engine = held.engine;
    return ptac_run(row, call);
}

/* The same by the table's row, before a sum where there is a residual; or counted. */
static bool drop(PyObject *x, PyObject *residual, ptac_dropout *params, bool in_place,
                 bool keeps, outputs *made)
{
    ptac_call call = {.op = residual ? PTAC_OP_DROPOUT_ADD : PTAC_OP_DROPOUT,
                      .n_inputs = PTAC_DROPOUT_N_INPUTS,
                      .n_outputs = keeps ? PTAC_DROPOUT_N_OUTPUTS : 1,
                      .params = params};
    const ptac_kernel *row;

    call.inputs[PTAC_DROPOUT_RESIDUAL] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    if (residual)
        ptac_view_of(ptac_borrow(residual), &call.inputs[PTAC_DROPOUT_RESIDUAL]);
    ptac_view_of(ptac_borrow(x), &call.inputs[PTAC_DROPOUT_X]);
    row = ptac_admit(&call);
    return row && PTAC_UNLOCKED(compute(row, &call, params, in_place, keeps, made));
}

/* y, behind a node where x wants a gradient. None for stock, counted. */
static PyObject *out_of_place(PyObject *x, PyObject *p, ptac_dropout *params,
                              bool wants)
{
    __attribute__((cleanup(drop_outputs))) outputs made = {NULL};
    PTAC_OWNED PyObject *parts = NULL, *keep = NULL, *args = NULL;

    if (ptac_shadow_is_on()) {
        parts = PyObject_CallFunctionObjArgs(dropout_checked, x, p,
                                             wants ? Py_True : Py_False, NULL);
    } else {
        if (!drop(x, NULL, params, false, wants, &made))
            Py_RETURN_NONE;
        if (!wants)
            return ptac_wrap(at_give(&made.y));
        parts = ptac_wrap_outputs(at_give(&made.y), at_give(&made.mask));
    }
    if (!parts || parts == Py_None)
        return Py_XNewRef(parts);
    if (!wants)
        return Py_NewRef(parts);
    keep = PyFloat_FromDouble(params->keep);
    args = keep ? PyTuple_Pack(3, x, parts, keep) : NULL;
    return ptac_node_make(dropout_node, args);
}

static PyObject *in_place_of(PyObject *x, ptac_dropout *params)
{
    outputs made = {NULL};

    if (!drop(x, NULL, params, true, false, &made))
        Py_RETURN_NONE;
    ptac_bump_version(x);
    return Py_NewRef(x);
}

/* None where torch has to do it. Sizes come first: they send small calls to stock. */
static PyObject *try_dropout(PyObject *const *args, bool in_place)
{
    const ptac_op op = PTAC_OP_DROPOUT;
    ptac_dropout params = {.keep = 0};
    int wants = 0, is_hooked = 0;
    ptac_view unused;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    if (args[2] != Py_True) /* nothing is dropped: no call of the operator */
        Py_RETURN_NONE;
    why = is_too_small(args[0]) ? PTAC_NOT_FASTER : read_p(args[1], args[2], &params);
    if (!why)
        why = read_x(args[0], in_place, &unused);
    if (!why)
        why = ptac_why_not_lean();
    if (!why && T.aoti_torch_grad_mode_is_enabled())
        wants = ptac_requires_grad(args[0]);
    if (!why && wants > 0 && in_place)
        why = PTAC_GRAD;
    if (!why && wants > 0)
        is_hooked = ptac_saving_is_hooked();
    if (wants < 0 || is_hooked < 0 || PyErr_Occurred())
        return NULL;
    if (!why && is_hooked)
        why = PTAC_HOOKS;
    if (!why && in_place && ptac_shadow_is_on())
        why = PTAC_ARGUMENT;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    return in_place ? in_place_of(args[0], &params)
                    : out_of_place(args[0], args[1], &params, wants);
}

static PyObject *or_stock(PyObject *found, PyObject *stock, PyObject *const *args)
{
    if (found != Py_None)
        return found;
    Py_DECREF(found);
    return PyObject_CallFunctionObjArgs(stock, args[0], args[1], args[2], NULL);
}

/* dropout(x, p, train) -> y, by stock where no row takes the call */
PTAC_ARGS(dropout, 3)
{
    return or_stock(try_dropout(args, false), stock_dropout, args);
}

/* dropout_in_place(x, p, train) -> x, likewise */
PTAC_ARGS(dropout_in_place, 3)
{
    return or_stock(try_dropout(args, true), stock_dropout_in_place, args);
}

/*
 * dropout_parts(x, p, keeps) -> (y, mask), or y without the mask, or None; without a
 * node: for shadow checks
 */
PTAC_ARGS(dropout_parts, 3)
{
    __attribute__((cleanup(drop_outputs))) outputs made = {NULL};
    ptac_dropout params = {.keep = 0};
    ptac_view unused;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_DROPOUT) || read_p(args[1], Py_True, &params) ||
        read_x(args[0], false, &unused) ||
        !drop(args[0], NULL, &params, false, args[2] == Py_True, &made))
        Py_RETURN_NONE;
    return ptac_wrap_outputs(at_give(&made.y), at_give(&made.mask));
}

/*
 * dropout_add_on_cpu(x, residual, p, from) -> (y, mask), or y without the mask where
 * there is no gradient, or None; without a node
 */
PTAC_ARGS(dropout_add_on_cpu, 4)
{
    __attribute__((cleanup(drop_outputs))) outputs made = {NULL};
    ptac_dropout params = {.keep = 0};
    const ptac_lean_from from = ptac_lean_from_of(args[3]);
    ptac_view x, residual;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_DROPOUT_ADD))
        Py_RETURN_NONE;
    why = read_p(args[2], Py_True, &params);
    if (!why)
        why = read_x(args[0], false, &x);
    if (!why)
        why = read_x(args[1], false, &residual);
    if (!why && !ptac_view_has_sizes(&residual, x.n_dims, x.sizes))
        why = PTAC_ARGUMENT;
    if (!why && from != PTAC_LEAN_KERNEL)
        why = ptac_why_not_lean();
    if (!why && ptac_shadow_is_on()) /* stock would draw other numbers */
        why = PTAC_ARGUMENT;
    if (why) {
        ptac_refuse(PTAC_OP_DROPOUT_ADD, why);
        Py_RETURN_NONE;
    }
    if (!drop(args[0], args[1], &params, false, from != PTAC_LEAN_ALONE, &made))
        Py_RETURN_NONE;
    return ptac_wrap_outputs(at_give(&made.y), at_give(&made.mask));
}

static bool compute_gradient(const ptac_kernel *row, ptac_call *call, at_tensor *made)
{
    const ptac_view *grad = &call->inputs[0];

    if (ptac_new(PTAC_F32, grad->n_dims, grad->sizes, NULL, made, &call->outputs[0])) {
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    return ptac_run(row, call);
}

/* dropout_gradient(grad, mask, keep) -> the gradient of x, or None for stock */
PTAC_ARGS(dropout_gradient, 3)
{
    AT_OWNED at_tensor made = NULL;
    ptac_dropout_backward params = {.scale = 1 / (float)PyFloat_AsDouble(args[2])};
    ptac_call call = {.op = PTAC_OP_DROPOUT_BACKWARD,
                      .n_inputs = 2,
                      .n_outputs = 1,
                      .params = &params};
    const ptac_kernel *row = NULL;
    int32_t dtype = -1;
    ptac_reason why;

    if (PyErr_Occurred())
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(call.op))
        Py_RETURN_NONE;
    why = ptac_are_plain(args, 2, 2) ? read_x(args[0], false, &call.inputs[0])
                                     : PTAC_SUBCLASS;
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (!why) {
        T.aoti_torch_get_dtype(ptac_borrow(args[1]), &dtype);
        ptac_view_of(ptac_borrow(args[1]), &call.inputs[1]);
        if (dtype != AT_DTYPE_BOOL || !ptac_view_is_contiguous(&call.inputs[1]) ||
            !ptac_view_has_sizes(&call.inputs[1], call.inputs[0].n_dims,
                                 call.inputs[0].sizes))
            why = PTAC_ARGUMENT;
    }
    if (why)
        ptac_refuse(call.op, why);
    else
        row = ptac_admit(&call);
    if (!row || !PTAC_UNLOCKED(compute_gradient(row, &call, &made)))
        Py_RETURN_NONE;
    return ptac_wrap(at_give(&made));
}
