/*
 * linear_cuda.c - the lean call path to linear_act of tensors on CUDA devices.
 *
 * Forward and backward ask torch's settings of products, each for itself as stock's
 * products do.
 */
#include "bind/python/callpath/linear/autocast.h"
#include "bind/python/callpath/linear/cuda_products.h"
#include "bind/python/callpath/lean.h"
#include "bind/torch/rows/cuda/linear_cuda.h"

PTAC_LENT(linear_stock) /* stock_forward of pai_torchacc/fusion/linear/__init__.py */

/* Handles of x, w, and bias or None, all on one device. */
static ptac_reason borrow(PyObject *const tensors[3], ptac_linear_cuda *l)
{
    for (int i = 0; i < 3; i++)
        if ((i < 2 || tensors[i] != Py_None) && !ptac_is_plain_on_cuda(tensors[i]))
            return ptac_is_plain(tensors[i]) ? PTAC_DEVICE : PTAC_SUBCLASS;
    l->t = (ptac_linear_tensors){
        .x = ptac_borrow(tensors[0]),
        .w = ptac_borrow(tensors[1]),
        .bias = ptac_borrow_or_null(tensors[2]),
    };
    return PTAC_TAKE;
}

static ptac_reason read_call(PyObject *const tensors[3], ptac_act activation,
                             bool is_training, ptac_linear_cuda *l)
{
    const ptac_reason why = borrow(tensors, l);

    return why ? why : ptac_linear_cuda_read(l, activation, is_training);
}

static ptac_reason ask_settings_of(ptac_linear_cuda *l)
{
    return ptac_cuda_products(l->call.inputs[0].dtype, &l->params.products.allows_tf32);
}

/* y, or (y, z); None where no row has run. */
static PyObject *run(const ptac_kernel *row, ptac_linear_cuda *l)
{
    if (!row || !PTAC_UNLOCKED(ptac_linear_cuda_run(row, l)))
        Py_RETURN_NONE;
    return ptac_wrap_outputs(at_give(&l->t.y), l->t.z ? at_give(&l->t.z) : NULL);
}

/* Before torch's settings are asked: float32 may be either, of which one is enough. */
static ptac_reason why_worth_nothing(ptac_linear_cuda *l)
{
    bool *allows_tf32 = &l->params.products.allows_tf32;
    ptac_reason why = ptac_linear_cuda_worth(l);

    if (why && l->call.inputs[0].dtype == PTAC_F32) {
        *allows_tf32 = true;
        why = ptac_linear_cuda_worth(l);
        *allows_tf32 = false;
    }
    return why;
}

/*
 * The row, or NULL and why. What costs least to ask comes first: most layers that are
 * trained are small, and most that are called stand by themselves.
 */
static const ptac_kernel *choose(PyObject *const tensors[3], ptac_act activation,
                                 bool is_training, ptac_linear_cuda *l,
                                 ptac_reason *why)
{
    *why = read_call(tensors, activation, is_training, l);
    if (!*why && ptac_thread_autocasts_on(PTAC_ON_CUDA))
        ptac_autocast_see(&l->call);
    if (!*why)
        *why = why_worth_nothing(l);
    if (!*why)
        *why = ptac_why_not_lean_on(PTAC_ON_CUDA);
    if (!*why)
        *why = ask_settings_of(l);
    if (!*why)
        *why = ptac_linear_cuda_worth(l);
    return *why ? NULL : ptac_linear_cuda_choose(l, why);
}

/*
 * The call of what autocast makes of its tensors. What has been cast goes to stock too,
 * where no row has run: it would cast x again.
 */
static PyObject *run_cast(PyObject *const tensors[3], ptac_act activation,
                          const ptac_kernel *row, bool is_training)
{
    const bool by_node = is_training || ptac_shadow_is_on();
    PTAC_CASTS casts = {{NULL}};
    PyObject *const *t = casts.of;
    PyObject *y;

    if (!ptac_cast_all(PTAC_OP_LINEAR_ACT, tensors, 3, by_node, &casts))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (by_node)
        return ptac_linear_node(t, activation, row, is_training);
    y = ptac_linear_forward_on_cuda(t, activation, row, false);
    if (y != Py_None)
        return y;
    Py_DECREF(y);
    return PyObject_CallFunction(linear_stock, "OOOiO", t[0], t[1], t[2], activation,
                                 Py_False);
}

PyObject *ptac_try_linear_on_cuda(PyObject *const tensors[3], ptac_act activation,
                                  bool counts_refusals)
{
    ptac_reason why = ptac_cuda_why_shut(PTAC_OP_LINEAR_ACT);
    const ptac_kernel *row = NULL;
    ptac_linear_cuda l;
    int is_training = 0;

    if (!why && activation == PTAC_ACT_NONE)
        why = PTAC_NOT_FASTER;
    if (!why)
        is_training = ptac_linear_wants_gradient(tensors);
    if (is_training < 0)
        return NULL;
    if (!why)
        row = choose(tensors, activation, is_training, &l, &why);
    if (why && counts_refusals)
        ptac_refuse(PTAC_OP_LINEAR_ACT, why);
    if (row && ptac_thread_autocasts_on(PTAC_ON_CUDA))
        return run_cast(tensors, activation, row, is_training);
    if (row && (is_training || ptac_shadow_is_on()))
        return ptac_linear_node(tensors, activation, row, is_training);
    return run(row, &l);
}

PyObject *ptac_linear_forward_on_cuda(PyObject *const tensors[3], ptac_act activation,
                                      const ptac_kernel *row, bool is_training)
{
    ptac_linear_cuda l;
    ptac_reason why =
        row ? read_call(tensors, activation, is_training, &l) : PTAC_ARGUMENT;

    if (!why)
        why = ask_settings_of(&l);
    if (why)
        ptac_refuse(PTAC_OP_LINEAR_ACT, why);
    return run(why ? NULL : row, &l);
}

bool ptac_linear_backward_on_cuda(const char *row, ptac_act activation,
                                  ptac_linear_gradients *gradients)
{
    bool allows_tf32;
    ptac_view grad;
    ptac_reason why;

    ptac_cuda_view_of(gradients->grad, &grad);
    why = ptac_cuda_products(grad.dtype, &allows_tf32);
    if (why)
        ptac_refuse(PTAC_OP_LINEAR_ACT_BACKWARD, why);
    return !why && PTAC_UNLOCKED(ptac_linear_cuda_backward(row, activation, allows_tf32,
                                                           gradients));
}
