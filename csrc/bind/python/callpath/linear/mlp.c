/*
 * mlp.c - two layers with an activation between them as one node, on CUDA.
 */
#include "bind/python/callpath/linear/mlp.h"

#include "bind/python/callpath/linear/autocast.h"
#include "bind/python/callpath/linear/cuda_products.h"
#include "bind/python/callpath/lean.h"
#include "bind/torch/rows/cuda/mlp_cuda.h"

PTAC_LENT(mlp_node) /* how to apply it */

static bool is_bias(int i)
{
    return i == PTAC_MLP_B1 || i == PTAC_MLP_B2;
}

/* Handles of the tensors, all on CUDA devices. */
static ptac_reason borrow(PyObject *const tensors[PTAC_MLP_INPUTS], ptac_mlp_cuda *m)
{
    for (int i = 0; i < PTAC_MLP_INPUTS; i++) {
        PyObject *t = tensors[i];
        const bool is_none = is_bias(i) && t == Py_None;

        if (!is_none && !ptac_is_plain_on_cuda(t))
            return ptac_is_plain(t) ? PTAC_DEVICE : PTAC_SUBCLASS;
        m->in[i] = is_none ? NULL : ptac_borrow(t);
    }
    return PTAC_TAKE;
}

static ptac_reason read_call(PyObject *const tensors[PTAC_MLP_INPUTS],
                             ptac_act activation, ptac_mlp_cuda *m)
{
    const ptac_reason why = borrow(tensors, m);

    return why ? why : ptac_mlp_cuda_read(m, activation);
}

static ptac_reason ask_settings(ptac_mlp_cuda *m)
{
    return ptac_cuda_products(m->call.inputs[0].dtype, &m->params.products.allows_tf32);
}

/* Before torch's settings are asked: float32 may be either, of which one is enough. */
static ptac_reason why_worth_nothing(ptac_mlp_cuda *m)
{
    bool *allows_tf32 = &m->params.products.allows_tf32;
    ptac_reason why = ptac_mlp_cuda_worth(m);

    if (why && m->call.inputs[0].dtype == PTAC_F32) {
        *allows_tf32 = true;
        why = ptac_mlp_cuda_worth(m);
        *allows_tf32 = false;
    }
    return why;
}

/* The row, or NULL and why. What costs least to ask comes first. */
static const ptac_kernel *choose(PyObject *const tensors[PTAC_MLP_INPUTS],
                                 ptac_act activation, ptac_mlp_cuda *m,
                                 ptac_reason *why)
{
    *why = read_call(tensors, activation, m);
    if (!*why && ptac_thread_autocasts_on(PTAC_ON_CUDA))
        ptac_autocast_see(&m->call);
    if (!*why)
        *why = why_worth_nothing(m);
    if (!*why)
        *why = ptac_why_not_lean_on(PTAC_ON_CUDA);
    if (!*why)
        *why = ask_settings(m);
    if (!*why)
        *why = ptac_mlp_cuda_worth(m);
    return *why ? NULL : ptac_mlp_cuda_choose(m, why);
}

/* Which of them want a gradient: bits; -1 with an exception set. */
static int wanted(PyObject *const tensors[PTAC_MLP_INPUTS])
{
    int bits = 0;

    for (int i = 0; i < PTAC_MLP_INPUTS; i++) {
        const int wants = tensors[i] == Py_None ? 0 : ptac_requires_grad(tensors[i]);

        if (wants < 0)
            return -1;
        bits |= wants << i;
    }
    return bits;
}

/* apply(x, w1, b1, w2, b2, activation, row). */
static PyObject *apply(PyObject *const t[PTAC_MLP_INPUTS], ptac_act activation,
                       const ptac_kernel *row)
{
    PTAC_OWNED PyObject *args =
        Py_BuildValue("(OOOOOis)", t[0], t[1], t[2], t[3], t[4], activation, row->name);

    return ptac_node_apply(PTAC_OP_MLP, mlp_node, args);
}

/* The call of what autocast makes of its tensors. */
static PyObject *apply_cast(PyObject *const tensors[PTAC_MLP_INPUTS],
                            ptac_act activation, const ptac_kernel *row)
{
    PTAC_CASTS casts = {{NULL}};

    if (!ptac_cast_all(PTAC_OP_MLP, tensors, PTAC_MLP_INPUTS, true, &casts))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return apply(casts.of, activation, row);
}

PyObject *ptac_try_mlp(PyObject *const tensors[PTAC_MLP_INPUTS], ptac_act activation)
{
    const int b2_alone = 1 << PTAC_MLP_B2;
    const ptac_kernel *row = NULL;
    ptac_mlp_cuda m = {0};
    ptac_reason why;
    int wants;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_MLP) || !T.aoti_torch_grad_mode_is_enabled())
        Py_RETURN_NONE;
    wants = wanted(tensors);
    if (wants <= 0)
        return wants < 0 ? NULL : Py_NewRef(Py_None);
    why = ptac_cuda_why_shut(PTAC_OP_MLP);
    /* The product for the gradient of w2 sums that of b2. */
    if (!why && (wants & b2_alone) && !(wants & 1 << PTAC_MLP_W2))
        why = PTAC_GRAD;
    if (!why)
        row = choose(tensors, activation, &m, &why);
    if (why)
        ptac_refuse(PTAC_OP_MLP, why);
    if (row && ptac_thread_autocasts_on(PTAC_ON_CUDA))
        return apply_cast(tensors, activation, row);
    return row ? apply(tensors, activation, row) : Py_NewRef(Py_None);
}

static bool read_activation(PyObject *code, ptac_act *activation)
{
    const long value = PyLong_AsLong(code);

    if (value <= PTAC_ACT_NONE || value >= PTAC_N_ACTS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no such activation");
        return false;
    }
    *activation = (ptac_act)value;
    return true;
}

/* A tuple of what these handles hold, which are taken over; None for those that hold
 * nothing. */
static PyObject *wrap_all(at_tensor *owned, Py_ssize_t n)
{
    PyObject *all = PyTuple_New(n);

    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = owned[i] ? ptac_wrap(at_give(&owned[i])) : Py_NewRef(Py_None);

        if (!all || !one || PyTuple_SetItem(all, i, one))
            Py_CLEAR(all);
    }
    return all;
}

/*
 * mlp_forward(x, w1, b1, w2, b2, activation, row, keeps_saved) -> (y, h, saved), or
 * None where the row failed. Called by the node for what ptac_try_mlp() has accepted.
 */
PTAC_ARGS(mlp_forward, 8)
{
    ptac_mlp_cuda m = {.keeps_saved = args[7] == Py_True};
    const char *name = PyUnicode_AsUTF8AndSize(args[6], NULL);
    const ptac_kernel *row;
    ptac_act activation;
    ptac_reason why;

    if (!name || !read_activation(args[5], &activation))
        return NULL;
    PTAC_IN_FLIGHT;
    row = ptac_registry_find_on(PTAC_ON_CUDA, PTAC_OP_MLP, name);
    why = row ? read_call(args, activation, &m) : PTAC_ARGUMENT;
    if (!why)
        why = ask_settings(&m);
    if (why)
        ptac_refuse(PTAC_OP_MLP, why);
    if (why || !PTAC_UNLOCKED(ptac_mlp_cuda_run(row, &m)))
        Py_RETURN_NONE;
    return wrap_all(m.out, PTAC_MLP_OUTPUTS);
}

/* What has to be a tuple of a bool for each input. */
static bool read_wants(PyObject *wants, ptac_mlp_gradients *g)
{
    if (!PyTuple_Check(wants) || PyTuple_Size(wants) != PTAC_MLP_INPUTS) {
        PyErr_SetString(PyExc_TypeError, "wants are five bools");
        return false;
    }
    for (int i = 0; i < PTAC_MLP_INPUTS; i++)
        g->wants[i] = PyTuple_GetItem(wants, i) == Py_True;
    return true;
}

static ptac_reason borrow_backward(PyObject *const *tensors, ptac_mlp_gradients *g,
                                   ptac_dtype *dtype)
{
    ptac_device on;
    ptac_view grad;

    if (!ptac_are_plain_on(tensors, PTAC_MLP_GRAD_INPUTS, 1, &on))
        return PTAC_SUBCLASS;
    if (on != PTAC_ON_CUDA)
        return PTAC_DEVICE;
    if (!ptac_thread_is_plain_on(on))
        return PTAC_MODE;
    for (int i = 0; i < PTAC_MLP_GRAD_INPUTS; i++)
        g->in[i] = ptac_borrow_or_null(tensors[i]);
    ptac_cuda_view_of(g->in[PTAC_MLP_GRAD], &grad);
    *dtype = grad.dtype;
    return PTAC_TAKE;
}

/*
 * mlp_backward(row, activation, grad, x, w1, w2, h, saved, wants) -> gradients of x,
 * w1, b1, w2 and b2, or None for stock. All but grad may be None where not needed;
 * wants is five bools.
 */
PTAC_ARGS(mlp_backward, 9)
{
    ptac_mlp_gradients g = {0};
    ptac_act activation;
    const char *row = PyUnicode_AsUTF8AndSize(args[0], NULL);
    ptac_dtype dtype = PTAC_OTHER_DTYPE;
    bool allows_tf32 = false;
    ptac_reason why;

    if (!row || !read_activation(args[1], &activation) || !read_wants(args[8], &g))
        return NULL;
    PTAC_IN_FLIGHT;
    why = borrow_backward(&args[2], &g, &dtype);
    if (!why)
        why = ptac_cuda_products(dtype, &allows_tf32);
    if (why)
        ptac_refuse(PTAC_OP_MLP_BACKWARD, why);
    if (why || !PTAC_UNLOCKED(ptac_mlp_cuda_backward(row, activation, allows_tf32, &g)))
        Py_RETURN_NONE;
    return wrap_all(g.out, PTAC_MLP_INPUTS);
}
