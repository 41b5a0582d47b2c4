/*
 * chain.c - reading a layer and what follows it.
 */
#include "bind/python/callpath/chain/chain.h"

#include <math.h>

enum {
    NORMS = PTAC_KIND_BIT(BATCH_NORM2D),
    POOLS = PTAC_KIND_BIT(MAX_POOL2D),
};

static bool read_int(PyObject *object, int64_t *value)
{
    if (!object || !PyLong_CheckExact(object))
        return false;
    *value = PyLong_AsLongLong(object);
    if (*value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

bool ptac_module_int(PyObject *attributes, PyObject *name, int64_t *value)
{
    return read_int(PyDict_GetItemWithError(attributes, name), value);
}

bool ptac_module_pair(PyObject *attributes, PyObject *name, int64_t pair[2])
{
    PyObject *value = PyDict_GetItemWithError(attributes, name);

    if (value && PyTuple_CheckExact(value) && PyTuple_Size(value) == 2)
        return read_int(PyTuple_GetItem(value, 0), &pair[0]) &&
               read_int(PyTuple_GetItem(value, 1), &pair[1]);
    if (!read_int(value, &pair[0]))
        return false;
    pair[1] = pair[0];
    return true;
}

bool ptac_module_pair_is(PyObject *attributes, PyObject *name, int64_t value)
{
    int64_t pair[2];

    return ptac_module_pair(attributes, name, pair) && pair[0] == value &&
           pair[1] == value;
}

int ptac_is_constant(PyObject *tensor, bool may_be_none)
{
    int wants = 0;

    if (may_be_none && tensor == Py_None)
        return 1;
    if (!ptac_is_plain(tensor))
        return 0;
    if (T.aoti_torch_grad_mode_is_enabled())
        wants = ptac_requires_grad(tensor);
    return wants < 0 ? -1 : !wants;
}

static bool is_exactly(PyObject *attributes, PyObject *name, PyObject *value)
{
    return PyDict_GetItemWithError(attributes, name) == value;
}

static bool read_float(PyObject *attributes, PyObject *name, double *value)
{
    PyObject *object = PyDict_GetItemWithError(attributes, name);

    if (!object || !PyFloat_CheckExact(object))
        return false;
    *value = PyFloat_AsDouble(object);
    return true;
}

/* Some versions of torch raise where it is not positive. */
static bool read_eps(PyObject *attributes, ptac_chain *c)
{
    return read_float(attributes, ptac_names.eps, &c->eps) && c->eps > 0;
}

static void drop_norm(ptac_chain *c)
{
    for (int i = 0; i < PTAC_NORM_TENSORS; i++)
        Py_CLEAR(c->norm[i]);
}

/* One that normalises by its running statistics and writes nothing. */
static bool read_norm(PyObject *attributes, ptac_chain *c)
{
    if (!is_exactly(attributes, ptac_names.training, Py_False) ||
        !is_exactly(attributes, ptac_names.track_running_stats, Py_True) ||
        !read_eps(attributes, c))
        return false;
    c->norm[PTAC_NORM_WEIGHT] = ptac_module_parameter(attributes, ptac_names.weight);
    c->norm[PTAC_NORM_BIAS] = ptac_module_parameter(attributes, ptac_names.bias);
    c->norm[PTAC_NORM_MEAN] = ptac_module_buffer(attributes, ptac_names.running_mean);
    c->norm[PTAC_NORM_VARIANCE] =
        ptac_module_buffer(attributes, ptac_names.running_var);
    for (int i = 0; i < PTAC_NORM_TENSORS; i++)
        if (!c->norm[i] || ptac_is_constant(c->norm[i], i < PTAC_NORM_MEAN) <= 0)
            return false;
    c->with_norm = true;
    return true;
}

/* The share of a batch in the running statistics; NAN: that of all batches alike. */
static bool read_momentum(PyObject *attributes, ptac_chain *c)
{
    c->momentum = NAN;
    return is_exactly(attributes, ptac_names.momentum, Py_None) ||
           (read_float(attributes, ptac_names.momentum, &c->momentum) &&
            !isnan(c->momentum));
}

/* In eval mode a norm goes by the batch where it has no statistics of its own. */
static bool lacks_statistics(PyObject *attributes)
{
    PyObject *mean = ptac_module_buffer(attributes, ptac_names.running_mean);
    PyObject *variance = ptac_module_buffer(attributes, ptac_names.running_var);
    const bool lacks = mean == Py_None && variance == Py_None;

    Py_XDECREF(mean);
    Py_XDECREF(variance);
    return lacks;
}

/*
 * One that normalises by the statistics of the batch, of which its running ones take a
 * share, if it has any. Whether its tensors are plain is not asked here.
 */
static bool read_training_norm(PyObject *attributes, ptac_chain *c)
{
    const bool trains = is_exactly(attributes, ptac_names.training, Py_True);
    const bool is_tracking =
        is_exactly(attributes, ptac_names.track_running_stats, Py_True);
    const bool tracks = trains && is_tracking;

    if (!trains && (!is_exactly(attributes, ptac_names.training, Py_False) ||
                    !lacks_statistics(attributes)))
        return false;
    if ((!is_tracking &&
         !is_exactly(attributes, ptac_names.track_running_stats, Py_False)) ||
        !read_eps(attributes, c) || !read_momentum(attributes, c))
        return false;
    drop_norm(c); /* what read_norm() left, which it was not */
    c->norm[PTAC_NORM_WEIGHT] = ptac_module_parameter(attributes, ptac_names.weight);
    c->norm[PTAC_NORM_BIAS] = ptac_module_parameter(attributes, ptac_names.bias);
    if (tracks) {
        c->norm[PTAC_NORM_MEAN] =
            ptac_module_buffer(attributes, ptac_names.running_mean);
        c->norm[PTAC_NORM_VARIANCE] =
            ptac_module_buffer(attributes, ptac_names.running_var);
        c->n_batches = ptac_module_buffer(attributes, ptac_names.num_batches_tracked);
    } else {
        c->norm[PTAC_NORM_MEAN] = Py_NewRef(Py_None);
        c->norm[PTAC_NORM_VARIANCE] = Py_NewRef(Py_None);
        c->n_batches = Py_NewRef(Py_None);
    }
    c->with_norm = c->by_batch = true;
    return c->norm[PTAC_NORM_WEIGHT] && c->norm[PTAC_NORM_BIAS] &&
           c->norm[PTAC_NORM_MEAN] && c->norm[PTAC_NORM_VARIANCE] && c->n_batches;
}

static bool is_half(const ptac_window *axis)
{
    return axis->kernel == 2 && axis->stride == 2 && axis->padding == 0 &&
           axis->dilation == 1;
}

bool ptac_module_window(PyObject *attributes, ptac_window2d *window)
{
    ptac_window *axes[2] = {&window->h, &window->w};
    int64_t kernel[2], stride[2], padding[2], dilation[2];

    window->ceil_mode = is_exactly(attributes, ptac_names.ceil_mode, Py_True);
    if (!is_exactly(attributes, ptac_names.return_indices, Py_False) ||
        (!window->ceil_mode &&
         !is_exactly(attributes, ptac_names.ceil_mode, Py_False)) ||
        !ptac_module_pair(attributes, ptac_names.kernel_size, kernel) ||
        !ptac_module_pair(attributes, ptac_names.stride, stride) ||
        !ptac_module_pair(attributes, ptac_names.padding, padding) ||
        !ptac_module_pair(attributes, ptac_names.dilation, dilation))
        return false;
    for (int i = 0; i < 2; i++)
        *axes[i] = (ptac_window){kernel[i], stride[i], padding[i], dilation[i]};
    return true;
}

/* One of 2x2 windows side by side. */
static bool read_pool(PyObject *attributes, ptac_chain *c)
{
    ptac_window2d window;

    c->with_pool = ptac_chooser_gate(PTAC_OP_MAX_POOL2D) == PTAC_TAKE &&
                   ptac_module_window(attributes, &window) && !window.ceil_mode &&
                   is_half(&window.h) && is_half(&window.w);
    return c->with_pool;
}

/* GELU's kind; PTAC_ACT_NONE where torch would raise. */
static ptac_act gelu_of(PyObject *attributes)
{
    PyObject *kind = PyDict_GetItemWithError(attributes, ptac_names.approximate);

    if (!kind || !PyUnicode_Check(kind))
        return PTAC_ACT_NONE;
    if (PyUnicode_CompareWithASCIIString(kind, "none") == 0)
        return PTAC_ACT_GELU;
    return PyUnicode_CompareWithASCIIString(kind, "tanh") == 0 ? PTAC_ACT_GELU_TANH
                                                               : PTAC_ACT_NONE;
}

/* A clamp's bounds are attributes, which somebody may have changed. */
static ptac_act relu6_of(PyObject *attributes)
{
    PyObject *least = PyDict_GetItemWithError(attributes, ptac_names.min_val);
    PyObject *most = PyDict_GetItemWithError(attributes, ptac_names.max_val);

    return least && most && PyFloat_CheckExact(least) && PyFloat_CheckExact(most) &&
                   PyFloat_AsDouble(least) == 0 && PyFloat_AsDouble(most) == 6
               ? PTAC_ACT_RELU6
               : PTAC_ACT_NONE;
}

ptac_act ptac_module_activation(ptac_module_kind kind, PyObject *attributes)
{
    static const ptac_act activations[PTAC_N_MODULES + 1] = {
        [PTAC_MODULE_RELU] = PTAC_ACT_RELU,
        [PTAC_MODULE_SILU] = PTAC_ACT_SILU,
        [PTAC_MODULE_TANH] = PTAC_ACT_TANH,
        [PTAC_MODULE_GELU] = PTAC_ACT_GELU,
        [PTAC_MODULE_SIGMOID] = PTAC_ACT_SIGMOID,
        [PTAC_MODULE_HARDSWISH] = PTAC_ACT_HARDSWISH,
    };

    switch (kind) {
    case PTAC_MODULE_GELU:
        return gelu_of(attributes);
    case PTAC_MODULE_RELU6:
        return relu6_of(attributes);
    default:
        return activations[kind];
    }
}

/* Read the module behind those that were read, if it is of these kinds. */
static void read_next(PyObject *modules, Py_ssize_t at, uint64_t kinds, ptac_chain *c)
{
    PyObject *module, *attributes;
    ptac_module_kind kind;

    if (at + c->n >= PyList_Size(modules))
        return;
    module = PyList_GetItem(modules, at + c->n);
    kind = ptac_module_kind_of(module);
    attributes = kinds >> kind & 1 ? ptac_module_attributes(module, kind) : NULL;
    if (!attributes)
        return;
    if (kind == PTAC_MODULE_BATCH_NORM2D)
        c->n += read_norm(attributes, c);
    else if (kind == PTAC_MODULE_MAX_POOL2D)
        c->n += read_pool(attributes, c);
    else {
        c->activation = ptac_module_activation(kind, attributes);
        c->n += c->activation != PTAC_ACT_NONE;
    }
    Py_DECREF(attributes);
    PyErr_Clear();
}

bool ptac_chain_read(PyObject *modules, Py_ssize_t at, uint64_t followers,
                     ptac_chain *chain)
{
    PyObject *layer = PyList_GetItem(modules, at);

    *chain = (ptac_chain){.layer = layer, .n = 1};
    chain->attributes = ptac_module_attributes(layer, ptac_module_kind_of(layer));
    if (!chain->attributes)
        return false;
    read_next(modules, at, followers & NORMS, chain);
    read_next(modules, at, followers & ~(NORMS | POOLS), chain);
    read_next(modules, at, followers & POOLS, chain);
    return chain->n > 1;
}

bool ptac_dropout_is_idle(PyObject *attributes)
{
    PyObject *training = PyDict_GetItemWithError(attributes, ptac_names.training);
    PyObject *p = PyDict_GetItemWithError(attributes, ptac_names.p);
    double share;

    if (!p || !(PyFloat_CheckExact(p) || PyLong_CheckExact(p)))
        return false;
    share = PyFloat_AsDouble(p);
    PyErr_Clear(); /* of an int beyond all floats, which gives -1 */
    return training == Py_False ? share >= 0 && share <= 1
                                : training == Py_True && share == 0;
}

static bool is_idle_dropout(PyObject *modules, Py_ssize_t at)
{
    PyObject *module = at < PyList_Size(modules) ? PyList_GetItem(modules, at) : NULL;
    PTAC_OWNED PyObject *attributes =
        module ? ptac_module_attributes(module, PTAC_MODULE_DROPOUT) : NULL;

    return attributes && ptac_dropout_is_idle(attributes);
}

bool ptac_chain_read_norm(const ptac_chain_start *start, uint64_t followers,
                          ptac_chain *chain)
{
    PyObject *norm = PyList_GetItem(start->modules, start->at);
    bool is_read;

    *chain =
        (ptac_chain){.layer = norm, .n = 1, .norm_kind = ptac_module_kind_of(norm)};
    chain->attributes = ptac_module_attributes(norm, chain->norm_kind);
    is_read = chain->attributes && (read_norm(chain->attributes, chain) ||
                                    read_training_norm(chain->attributes, chain));
    PyErr_Clear();
    if (is_read)
        read_next(start->modules, start->at, followers, chain);
    if (is_read && !chain->by_batch && chain->n > 1 &&
        is_idle_dropout(start->modules, start->at + chain->n))
        chain->n++;
    return is_read;
}

void ptac_chain_drop(ptac_chain *chain)
{
    Py_CLEAR(chain->attributes);
    Py_CLEAR(chain->n_batches);
    for (int i = 0; i < PTAC_NORM_TENSORS; i++)
        Py_CLEAR(chain->norm[i]);
}
