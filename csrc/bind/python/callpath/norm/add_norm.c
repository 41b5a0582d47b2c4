/*
 * add_norm.c - the call path to add_norm and to its gradients.
 *
 * Each function returns None where torch's own operators have to do the call.
 */
#include "bind/python/callpath/lean_call.h"

#include "bind/torch/rows/norm_rows.h"

/* y, the sum, and mean and rstd of its rows; RMSNorm has no mean. */
static bool make_add_norm(ptac_lean_call *m)
{
    const ptac_norm *p = m->call.params;
    const ptac_view *x = &m->call.inputs[PTAC_NORM_X];
    const int32_t dtype = ptac_torch_dtype(x->dtype);

    return ptac_lean_output(m, 0, PTAC_NORM_Y, dtype, x->n_dims, x->sizes) &&
           ptac_lean_output(m, 1, PTAC_NORM_SUM, dtype, x->n_dims, x->sizes) &&
           (p->is_rms ||
            ptac_lean_output(m, 2, PTAC_NORM_MEAN, AT_DTYPE_F32, 1, &p->n_rows)) &&
           ptac_lean_output(m, 3, PTAC_NORM_RSTD, AT_DTYPE_F32, 1, &p->n_rows);
}

/*
 * add_norm(x, residual, weight, bias, n_last, eps, is_rms, from) -> (y, sum, mean,
 * rstd) or None. weight, bias and, of RMSNorm, mean may be None.
 */
PTAC_ARGS(add_norm, 8)
{
    static const int places[] = {PTAC_NORM_X, PTAC_NORM_RESIDUAL, PTAC_NORM_WEIGHT,
                                 PTAC_NORM_BIAS};
    ptac_norm p = {.eps = PyFloat_AsDouble(args[5]), .is_rms = args[6] == Py_True};
    ptac_lean_call m = {.call = {.op = PTAC_OP_ADD_NORM,
                                 .n_inputs = PTAC_NORM_N_INPUTS,
                                 .n_outputs = PTAC_NORM_N_OUTPUTS,
                                 .params = &p},
                        .n_results = 4};
    const ptac_view *in = m.call.inputs;
    const long n_last = PyLong_AsLong(args[4]);
    ptac_reason why;

    m.from = ptac_lean_from_of(args[7]);
    p.is_trained = m.from == PTAC_LEAN_TRAINED;
    PTAC_IN_FLIGHT;
    if (PyErr_Occurred() || ptac_is_off(m.call.op))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    why = ptac_lean_read(args, places, 4, &m.call);
    if (!why)
        why = ptac_norm_read_rows(&m.call, &in[PTAC_NORM_X], n_last, &p);
    if (!why && (in[PTAC_NORM_RESIDUAL].dtype != in[PTAC_NORM_X].dtype ||
                 !ptac_view_has_sizes(&in[PTAC_NORM_RESIDUAL], in[PTAC_NORM_X].n_dims,
                                      in[PTAC_NORM_X].sizes)))
        why = PTAC_ARGUMENT;
    for (int i = PTAC_NORM_WEIGHT; !why && i <= PTAC_NORM_BIAS; i++)
        why = ptac_norm_weight_reason(&in[i], &in[PTAC_NORM_X], n_last);
    return ptac_lean_finish(&m, why, make_add_norm);
}

/* Of what is asked for, and room for parts of the weights' gradients. */
static bool make_gradients(ptac_lean_call *m)
{
    const ptac_norm *p = m->call.params;
    const ptac_view *x = &m->call.inputs[PTAC_NORM_GRAD_X_OF];
    const int32_t dtype = ptac_torch_dtype(x->dtype);
    const bool has_parts = m->call.on == PTAC_ON_CUDA;
    const int64_t n_parts = has_parts ? ptac_norm_parts(p, true) : 0;

    return ptac_lean_output(m, 0, PTAC_NORM_GRAD_X, dtype, x->n_dims, x->sizes) &&
           ptac_lean_output(m, 1, PTAC_NORM_GRAD_WEIGHT, dtype, 1, &p->width) &&
           (p->is_rms ||
            ptac_lean_output(m, 2, PTAC_NORM_GRAD_BIAS, dtype, 1, &p->width)) &&
           (!has_parts ||
            ptac_lean_output(m, 3, PTAC_NORM_GRAD_PARTS, AT_DTYPE_F32, 1, &n_parts));
}

/* Where nothing is learnt: of x alone. */
static bool make_gradient_of_x(ptac_lean_call *m)
{
    const ptac_view *x = &m->call.inputs[PTAC_NORM_GRAD_X_OF];

    return ptac_lean_output(m, 0, PTAC_NORM_GRAD_X, ptac_torch_dtype(x->dtype),
                            x->n_dims, x->sizes);
}

/*
 * add_norm_backward(grad_y, sum, rstd, mean, weight, grad_sum, n_last, with_weights)
 * -> (grad of x and residual, of weight, of bias) or None. mean of RMSNorm, weight and
 * grad_sum may be None; without with_weights the last two are, and the last of RMSNorm.
 * The weights' have the width's elements in one dimension.
 */
PTAC_ARGS(add_norm_backward, 8)
{
    static const int places[] = {PTAC_NORM_GRAD_Y,         PTAC_NORM_GRAD_X_OF,
                                 PTAC_NORM_GRAD_RSTD,      PTAC_NORM_GRAD_MEAN,
                                 PTAC_NORM_GRAD_WEIGHT_OF, PTAC_NORM_GRAD_SUM};
    ptac_norm p = {.is_rms = args[3] == Py_None};
    ptac_lean_call m = {.call = {.op = PTAC_OP_ADD_NORM_BACKWARD,
                                 .n_inputs = PTAC_NORM_GRAD_N_INPUTS,
                                 .n_outputs = PTAC_NORM_GRAD_N_OUTPUTS,
                                 .params = &p},
                        .n_results = 3};
    const ptac_view *in = m.call.inputs, *x = &in[PTAC_NORM_GRAD_X_OF];
    const long n_last = PyLong_AsLong(args[6]);
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (PyErr_Occurred() || ptac_is_off(m.call.op))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    why = ptac_lean_read(args, places, 6, &m.call);
    if (!why)
        why = ptac_norm_read_rows(&m.call, x, n_last, &p);
    if (!why)
        why = ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_Y], x->dtype, x->n_elements);
    if (!why)
        why =
            ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_SUM], x->dtype, x->n_elements);
    if (!why)
        why = ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_RSTD], PTAC_F32, p.n_rows);
    if (!why)
        why = ptac_norm_elements_reason(&in[PTAC_NORM_GRAD_MEAN], PTAC_F32, p.n_rows);
    if (!why)
        why = ptac_norm_weight_reason(&in[PTAC_NORM_GRAD_WEIGHT_OF], x, n_last);
    if (!why && (!in[PTAC_NORM_GRAD_Y].data || !in[PTAC_NORM_GRAD_RSTD].data))
        why = PTAC_ARGUMENT;
    return ptac_lean_finish(&m, why,
                            args[7] == Py_True ? make_gradients : make_gradient_of_x);
}
