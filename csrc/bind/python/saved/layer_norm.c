/*
 * layer_norm.c - layer norms computed again, for memory reuse.
 */
#include "bind/python/module/pybind.h"
#include "ops/pack/layer_norm.h"

enum { X, MEAN, RSTD, WEIGHT, BIAS, Y, N_TENSORS };

/* The call that six tensors make; false for what is not there, or not for us. */
static bool call_of(PyObject *args, ptac_layer_norm *norm, float **y)
{
    ptac_view views[N_TENSORS];

    if (!ptac_layer_norm_is_there() || PyTuple_Size(args) != N_TENSORS)
        return false;
    for (int i = 0; i < N_TENSORS; i++) {
        PyObject *tensor = PyTuple_GetItem(args, i);

        if (!ptac_is_plain(tensor))
            return false;
        ptac_view_of(ptac_borrow(tensor), &views[i]);
        if (views[i].dtype != PTAC_F32 || !ptac_view_is_contiguous(&views[i]))
            return false;
    }
    *norm = (ptac_layer_norm){
        .x = views[X].data,
        .mean = views[MEAN].data,
        .rstd = views[RSTD].data,
        .weight = views[WEIGHT].data,
        .bias = views[BIAS].data,
        .n_rows = views[MEAN].n_elements,
        .n_columns = views[WEIGHT].n_elements,
    };
    *y = views[Y].data;
    return views[RSTD].n_elements == norm->n_rows &&
           views[BIAS].n_elements == norm->n_columns &&
           views[X].n_elements == norm->n_rows * norm->n_columns &&
           views[Y].n_elements == views[X].n_elements;
}

/* Whether y is what it gives; computed, where that is wanted. */
static PyObject *run(PyObject *args, bool computes)
{
    ptac_layer_norm norm;
    float *y;

    if (!call_of(args, &norm, &y))
        Py_RETURN_FALSE;
    return PyBool_FromLong(PTAC_UNLOCKED(computes
                                             ? (ptac_layer_norm_apply(&norm, y), true)
                                             : ptac_layer_norm_matches(&norm, y)));
}

/* layer_norm_apply(x, mean, rstd, weight, bias, y) -> whether y was computed */
PTAC_VARARGS(layer_norm_apply)
{
    return run(args, true);
}

/* layer_norm_matches(x, mean, rstd, weight, bias, y) -> whether it would be that y */
PTAC_VARARGS(layer_norm_matches)
{
    return run(args, false);
}
