/*
 * quantized_chain.c - a layer of model_quantization and what follows it, run as one.
 *
 * As in pai_torchacc/quantization/layers.py, a layer that computes some calls in float
 * is called as ever.
 */
#include "bind/python/callpath/chain/chain.h"
#include "bind/python/quantized/int8.h"

enum {
    WEIGHT,
    SCALE,
    BIAS,
    N_TENSORS,
};

/* Its state, borrowed; NULL where it has none, or with an exception set. */
static PyObject *state_of(const ptac_chain *chain)
{
    return PyDict_GetItemWithError(chain->attributes, ptac_names._int8);
}

/* Whether such a layer computes these rows in float; -1 with an exception set. */
static int is_float(PyObject *state, PyObject *x, PyObject *shape)
{
    PTAC_OWNED PyObject *said = NULL;
    const int has_floats = ptac_truth(state, ptac_names.floats);

    if (has_floats <= 0)
        return has_floats;
    if (!ptac_is_tensor(x))
        return 1;
    said = PyObject_CallMethodObjArgs(state, ptac_names.is_float, x,
                                      PyTuple_GetItem(shape, 1), NULL);
    return said ? said == Py_True : -1;
}

/*
 * The layer's tensors, owned; the weight's name is given. False where the modules have
 * to be called, or with an exception set.
 */
static bool read_layer(const ptac_chain *chain, PyObject *weight,
                       PyObject *tensors[N_TENSORS])
{
    PyObject *attributes = chain->attributes;

    tensors[WEIGHT] = ptac_module_buffer(attributes, weight);
    tensors[SCALE] = ptac_module_buffer(attributes, ptac_names.weight_scale);
    tensors[BIAS] = ptac_module_parameter(attributes, ptac_names.bias);
    return tensors[WEIGHT] && tensors[SCALE] && tensors[BIAS];
}

/* The result, or None where there is none; NULL where an exception is set. */
static PyObject *finish(PyObject *result, PyObject *tensors[N_TENSORS])
{
    for (int i = 0; i < N_TENSORS; i++)
        Py_XDECREF(tensors[i]);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}

static PyObject *linear_chain(const ptac_chain *chain, PyObject *x,
                              const ptac_quantized_op *op, PyObject *weight)
{
    PyObject *tensors[N_TENSORS] = {NULL}, *result = NULL;
    PyObject *state = state_of(chain);
    PTAC_OWNED PyObject *shape =
        state ? PyObject_GetAttr(state, ptac_names.shape) : NULL;
    PTAC_OWNED PyObject *activation = PyLong_FromLong(chain->activation);

    if (activation && shape && PyTuple_Check(shape) && PyTuple_Size(shape) == 2 &&
        is_float(state, x, shape) == 0 && read_layer(chain, weight, tensors)) {
        PyObject *const args[] = {x,
                                  tensors[WEIGHT],
                                  tensors[SCALE],
                                  tensors[BIAS],
                                  PyTuple_GetItem(shape, 0),
                                  PyTuple_GetItem(shape, 1),
                                  activation};

        result = ptac_quantized_call(op, args, 7, false);
    }
    return finish(result, tensors);
}

PyObject *ptac_int8_linear_chain(ptac_chain *chain, PyObject *x)
{
    return linear_chain(chain, x, &ptac_int8_linear_op, ptac_names.weight_packed);
}

PyObject *ptac_fp8_linear_chain(ptac_chain *chain, PyObject *x)
{
    return linear_chain(chain, x, &ptac_fp8_linear_op, ptac_names.weight_fp8);
}

/* (weight, bias, mean, variance, eps), or None without a BatchNorm2d. */
static PyObject *norm_of(const ptac_chain *c)
{
    if (!c->with_norm)
        Py_RETURN_NONE;
    return Py_BuildValue("(OOOOd)", c->norm[PTAC_NORM_WEIGHT], c->norm[PTAC_NORM_BIAS],
                         c->norm[PTAC_NORM_MEAN], c->norm[PTAC_NORM_VARIANCE], c->eps);
}

PyObject *ptac_int8_conv2d_chain(ptac_chain *chain, PyObject *x)
{
    PyObject *tensors[N_TENSORS] = {NULL}, *result = NULL;
    PyObject *state = state_of(chain);
    PTAC_OWNED PyObject *norm = norm_of(chain), *geometry = NULL;
    PTAC_OWNED PyObject *activation = PyLong_FromLong(chain->activation);

    if (norm && activation && state && ptac_truth(state, ptac_names.floats) == 0 &&
        read_layer(chain, ptac_names.weight_packed, tensors))
        geometry = PyObject_CallMethodObjArgs(chain->layer, ptac_names._geometry, NULL);
    if (geometry && geometry != Py_None) {
        PyObject *const args[] = {
            x,   tensors[WEIGHT], tensors[SCALE], tensors[BIAS], geometry, activation,
            norm};

        result = ptac_quantized_call(&ptac_int8_conv2d_op, args, 7, false);
    }
    return finish(result, tensors);
}
