/*
 * rms_norm.c - the call path to RMSNorm on the CPU, and to its gradient.
 *
 * Torch computes it there of seven operators, each behind a node of autograd's. Here it
 * is one row and one node, which keeps x, the weight and a number a row. The row has
 * run before there is a node; its gradient follows it, and asks no table.
 */
#include "bind/python/callpath/lean.h"

#include "bind/torch/rows/norm_rows.h"

#include <float.h>

PTAC_LENT(rms_norm_node)    /* how to apply it */
PTAC_LENT(rms_norm_checked) /* rms_norm_parts() beside stock, for shadow checks */
PTAC_LENT(stock_rms_norm)   /* torch's own function */

typedef struct job {
    ptac_call call;
    ptac_norm params;
    int64_t n_last; /* dimensions that are normalized */
} job;

/* The dimensions that are normalized: a list or tuple of x's last sizes. */
static ptac_reason read_shape(PyObject *shape, const ptac_view *x, int64_t *n_last)
{
    const bool is_tuple = PyTuple_Check(shape);
    ptac_reason why = PTAC_TAKE;

    if (!is_tuple && !PyList_Check(shape))
        return PTAC_ARGUMENT;
    *n_last = is_tuple ? PyTuple_Size(shape) : PyList_Size(shape);
    if (*n_last < 1 || *n_last > x->n_dims)
        return PTAC_ARGUMENT;
    for (int64_t i = 0; i < *n_last && !why; i++) {
        PyObject *size =
            is_tuple ? PyTuple_GetItem(shape, i) : PyList_GetItem(shape, i);

        if (!PyLong_CheckExact(size) ||
            PyLong_AsLongLong(size) != x->sizes[x->n_dims - *n_last + i])
            why = PTAC_ARGUMENT;
    }
    PyErr_Clear(); /* of a number that is too large */
    return why;
}

static ptac_reason read_eps(PyObject *eps, double *value)
{
    if (eps != Py_None && !PyFloat_CheckExact(eps))
        return PTAC_ARGUMENT;
    *value = eps == Py_None ? FLT_EPSILON : PyFloat_AsDouble(eps);
    return PTAC_TAKE;
}

/* x, shape, weight or None, eps or None. */
static ptac_reason read_call(PyObject *const *args, job *j)
{
    ptac_view *in = j->call.inputs, *x = &in[PTAC_NORM_X];
    ptac_reason why;

    ptac_view_of(ptac_borrow(args[0]), x);
    if (args[2] != Py_None)
        ptac_view_of(ptac_borrow(args[2]), &in[PTAC_NORM_WEIGHT]);
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    why = read_shape(args[1], x, &j->n_last);
    if (!why)
        why = ptac_norm_read_rows(&j->call, x, j->n_last, &j->params);
    if (!why)
        why = ptac_norm_weight_reason(&in[PTAC_NORM_WEIGHT], x, j->n_last);
    if (!why)
        why = read_eps(args[3], &j->params.eps);
    if (why)
        return why;
    return ptac_view_is_contiguous(x) &&
                   (!in[PTAC_NORM_WEIGHT].data ||
                    ptac_view_is_contiguous(&in[PTAC_NORM_WEIGHT]))
               ? PTAC_TAKE
               : PTAC_LAYOUT;
}

static void begin(job *j, bool is_trained)
{
    *j = (job){
        .call = {.op = PTAC_OP_RMS_NORM,
                 .n_inputs = PTAC_NORM_N_INPUTS,
                 .n_outputs = PTAC_NORM_N_OUTPUTS,
                 .params = &j->params},
        .params = {.is_rms = true, .is_trained = is_trained},
    };
}

/* The row that serves the call and its gradient; NULL for stock, counted. */
static const ptac_kernel *choose(job *j)
{
    const ptac_op backward = PTAC_OP_RMS_NORM_BACKWARD;
    const ptac_kernel *row, *gradient;
    ptac_reason why = j->params.is_trained ? ptac_chooser_gate(backward) : PTAC_TAKE;

    row = why ? NULL : ptac_probe(&j->call, &why);
    if (row && j->params.is_trained) {
        gradient = ptac_registry_find(backward, row->name);
        if (!gradient || ptac_chooser_is_quarantined(gradient)) {
            why = PTAC_QUARANTINED;
            ptac_refuse(backward, why);
        }
    }
    if (!why)
        return row;
    ptac_refuse(j->call.op, why);
    return NULL;
}

typedef struct outputs {
    at_tensor y, rstd;
} outputs;

static void drop_outputs(outputs *made)
{
    at_drop_tensor(&made->y);
    at_drop_tensor(&made->rstd);
}

/* Without the interpreter's lock. False for stock, counted. */
static bool compute(const ptac_kernel *row, job *j, outputs *made)
{
    const ptac_view *x = &j->call.inputs[PTAC_NORM_X];
    ptac_view *out = j->call.outputs;

    if (ptac_new(PTAC_F32, x->n_dims, x->sizes, NULL, &made->y, &out[PTAC_NORM_Y]) ||
        (j->params.is_trained && ptac_new(PTAC_F32, 1, &j->params.n_rows, NULL,
                                          &made->rstd, &out[PTAC_NORM_RSTD]))) {
        ptac_refuse(j->call.op, PTAC_MEMORY);
        return false;
    }
    return ptac_run(row, &j->call);
}

/* Whether x or the weight asks for a gradient; -1 with an exception set. */
static int wants_gradient(PyObject *x, PyObject *weight)
{
    int wants = 0;

    if (!T.aoti_torch_grad_mode_is_enabled())
        return 0;
    if (weight != Py_None)
        wants = ptac_requires_grad(weight);
    return wants ? wants : ptac_requires_grad(x);
}

/* By way of the node: apply(x, weight, (y, rstd), row, n_last, eps). */
static PyObject *make_node(PyObject *const *args, const job *j, const char *row,
                           PyObject *parts)
{
    PTAC_OWNED PyObject *of_node = Py_BuildValue(
        "(OOOsLd)", args[0], args[2], parts, row, (long long)j->n_last, j->params.eps);

    return ptac_node_make(rms_norm_node, of_node);
}

static PyObject *compute_checked(PyObject *const *args, const job *j)
{
    const bool is_trained = j->params.is_trained;
    PTAC_OWNED PyObject *found =
        PyObject_CallFunctionObjArgs(rms_norm_checked, args[0], args[1], args[2],
                                     args[3], is_trained ? Py_True : Py_False, NULL);
    const char *row;
    PyObject *parts;

    if (!found || found == Py_None || !is_trained)
        return Py_XNewRef(found);
    if (!PyArg_ParseTuple(found, "Os", &parts, &row))
        return NULL;
    return make_node(args, j, row, parts);
}

static PyObject *run(PyObject *const *args, job *j)
{
    __attribute__((cleanup(drop_outputs))) outputs made = {NULL};
    PTAC_OWNED PyObject *parts = NULL;
    const ptac_kernel *row;

    if (ptac_shadow_is_on())
        return compute_checked(args, j);
    row = choose(j);
    if (!row || !PTAC_UNLOCKED(compute(row, j, &made)))
        Py_RETURN_NONE;
    if (!j->params.is_trained)
        return ptac_wrap(at_give(&made.y));
    parts = ptac_wrap_outputs(at_give(&made.y), at_give(&made.rstd));
    return parts ? make_node(args, j, row->name, parts) : NULL;
}

/* Whether these are what an ordinary program gives. Those on a device are not counted:
 * an override will see them. */
static bool is_ordinary(PyObject *const *args, ptac_reason *why)
{
    *why = PTAC_TAKE;
    if (ptac_is_plain(args[0]) && (args[2] == Py_None || ptac_is_plain(args[2])))
        return true;
    if (!ptac_is_plain_on_cuda(args[0]))
        *why = PTAC_SUBCLASS;
    return false;
}

/* None where torch has to do it. */
static PyObject *try_rms_norm(PyObject *const *args)
{
    const ptac_op op = PTAC_OP_RMS_NORM;
    int wants = 0, is_hooked = 0;
    ptac_reason why;
    job j;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    if (is_ordinary(args, &why)) {
        begin(&j, false);
        why = read_call(args, &j);
        if (!why)
            why = ptac_why_not_lean();
        if (!why)
            wants = wants_gradient(args[0], args[2]);
        if (!why && wants > 0)
            is_hooked = ptac_saving_is_hooked();
        if (wants < 0 || is_hooked < 0)
            return NULL;
        if (is_hooked)
            why = PTAC_HOOKS;
        j.params.is_trained = wants;
        if (!why)
            return run(args, &j);
    }
    if (why)
        ptac_refuse(op, why);
    Py_RETURN_NONE;
}

/* rms_norm(x, shape, weight, eps) -> y, by stock where no row takes the call */
PTAC_ARGS(rms_norm, 4)
{
    PyObject *found = try_rms_norm(args);

    if (found != Py_None)
        return found;
    Py_DECREF(found);
    return PyObject_CallFunctionObjArgs(stock_rms_norm, args[0], args[1], args[2],
                                        args[3], NULL);
}

/*
 * rms_norm_parts(x, shape, weight, eps, is_trained) -> ((y, rstd), row), or y of what
 * is not trained, or None; without a node: for shadow checks
 */
PTAC_ARGS(rms_norm_parts, 5)
{
    __attribute__((cleanup(drop_outputs))) outputs made = {NULL};
    PTAC_OWNED PyObject *parts = NULL;
    const ptac_kernel *row;
    ptac_reason why;
    job j;

    PTAC_IN_FLIGHT;
    begin(&j, args[4] == Py_True);
    if (ptac_is_off(j.call.op) || !is_ordinary(args, &why) || read_call(args, &j))
        Py_RETURN_NONE;
    row = choose(&j);
    if (!row || !PTAC_UNLOCKED(compute(row, &j, &made)))
        Py_RETURN_NONE;
    if (!j.params.is_trained)
        return ptac_wrap(at_give(&made.y));
    parts = ptac_wrap_outputs(at_give(&made.y), at_give(&made.rstd));
    return parts ? Py_BuildValue("(Os)", parts, row->name) : NULL;
}

/* grad, x, rstd, and weight or None, which may have other data by now. */
static ptac_reason read_gradient(PyObject *const *tensors, job *j)
{
    ptac_view *in = j->call.inputs, *x = &in[PTAC_NORM_GRAD_X_OF];
    ptac_reason why;

    ptac_view_of(ptac_borrow(tensors[0]), &in[PTAC_NORM_GRAD_Y]);
    ptac_view_of(ptac_borrow(tensors[1]), x);
    ptac_view_of(ptac_borrow(tensors[2]), &in[PTAC_NORM_GRAD_RSTD]);
    if (tensors[3] != Py_None)
        ptac_view_of(ptac_borrow(tensors[3]), &in[PTAC_NORM_GRAD_WEIGHT_OF]);
    if (x->dtype != PTAC_F32 || in[PTAC_NORM_GRAD_Y].dtype != PTAC_F32)
        return PTAC_DTYPE;
    why = ptac_norm_read_rows(&j->call, x, j->n_last, &j->params);
    if (!why)
        why = ptac_norm_weight_reason(&in[PTAC_NORM_GRAD_WEIGHT_OF], x, j->n_last);
    if (!why)
        why = ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_RSTD], PTAC_F32,
                                        j->params.n_rows);
    if (why)
        return why;
    if (!ptac_view_has_sizes(&in[PTAC_NORM_GRAD_Y], x->n_dims, x->sizes))
        return PTAC_ARGUMENT;
    return ptac_view_is_contiguous(x) &&
                   (!in[PTAC_NORM_GRAD_WEIGHT_OF].data ||
                    ptac_view_is_contiguous(&in[PTAC_NORM_GRAD_WEIGHT_OF]))
               ? PTAC_TAKE
               : PTAC_LAYOUT;
}

/* The gradients that are wanted; false where stock has to compute them, counted. */
static bool compute_gradients(const ptac_kernel *row, job *j, at_tensor grad,
                              const bool wants[2], at_tensors *made)
{
    const ptac_view *x = &j->call.inputs[PTAC_NORM_GRAD_X_OF];
    ptac_view *in = &j->call.inputs[PTAC_NORM_GRAD_Y], *out = j->call.outputs;
    AT_OWNED at_tensor dense = NULL;
    at_tensor given = NULL;
    at_error failed = 0;

    if (!ptac_view_is_contiguous(in)) {
        failed = T.aoti_torch_new_tensor_handle(grad, &given) ||
                 at_contiguous(given, false, &dense);
        if (!failed)
            ptac_view_of(dense, in);
    }
    if (!failed && wants[0])
        failed = ptac_new(PTAC_F32, x->n_dims, x->sizes, NULL, &made->at[0],
                          &out[PTAC_NORM_GRAD_X]);
    if (!failed && wants[1])
        failed = ptac_new(PTAC_F32, (int)j->n_last, x->sizes + x->n_dims - j->n_last,
                          NULL, &made->at[1], &out[PTAC_NORM_GRAD_WEIGHT]);
    if (failed) {
        ptac_refuse(j->call.op, PTAC_MEMORY);
        return false;
    }
    return ptac_run(row, &j->call);
}

static PyObject *wrap_or_none(at_tensor *owned)
{
    return *owned ? ptac_wrap(at_give(owned)) : Py_NewRef(Py_None);
}

/*
 * rms_norm_gradient(row, grad, x, rstd, weight, n_last, of_x, of_weight) -> (of x, of
 * weight), or None for stock. The weight may be None; the last two say what is wanted.
 */
PTAC_ARGS(rms_norm_gradient, 8)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};
    const char *row_name = PyUnicode_AsUTF8AndSize(args[0], NULL);
    const bool wants[] = {args[6] == Py_True, args[7] == Py_True};
    const ptac_kernel *row = NULL;
    ptac_reason why;
    job j = {
        .call = {.op = PTAC_OP_RMS_NORM_BACKWARD,
                 .n_inputs = PTAC_NORM_GRAD_N_INPUTS,
                 .n_outputs = PTAC_NORM_GRAD_PARTS,
                 .params = &j.params},
        .params = {.is_rms = true},
        .n_last = PyLong_AsLongLong(args[5]),
    };

    if (!row_name || PyErr_Occurred())
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(j.call.op))
        Py_RETURN_NONE;
    why = ptac_are_plain(&args[1], 4, 3) ? PTAC_TAKE : PTAC_SUBCLASS;
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (!why)
        why = read_gradient(&args[1], &j);
    if (why)
        ptac_refuse(j.call.op, why);
    else
        row = ptac_admit_row(&j.call, row_name);
    if (!row ||
        !PTAC_UNLOCKED(compute_gradients(row, &j, ptac_borrow(args[1]), wants, &made)))
        Py_RETURN_NONE;
    return Py_BuildValue("(NN)", wrap_or_none(&made.at[0]), wrap_or_none(&made.at[1]));
}
