/*
 * conv_chain.c - reading a chain of modules, and its call.
 */
#include "bind/python/callpath/conv_chain.h"

#include "bind/python/callpath/node.h"
#include "bind/torch/rows/convolution.h"

#include <math.h>

enum {
    MOST_CHANNELS = 1024, /* that a scale and a shift are computed for */
    N_CONV = 2,           /* weight and bias */
    N_NORM = 4,           /* weight, bias, mean and variance */
};

/*
 * What has been read of the modules. Tensors are owned, and None where there is none.
 */
typedef struct chain {
    ptac_geometry geometry;
    PyObject *conv[N_CONV];
    PyObject *norm[N_NORM];
    double eps;
    bool with_norm, with_relu, with_pool;
    Py_ssize_t n; /* modules */
} chain;

static PyObject *s_weight, *s_bias, *s_running_mean, *s_running_var, *s_training,
    *s_track_running_stats, *s_eps, *s_stride, *s_padding, *s_dilation, *s_groups,
    *s_padding_mode, *s_kernel_size, *s_return_indices, *s_ceil_mode;

static bool intern_names(void)
{
    static const struct {
        PyObject **home;
        const char *text;
    } names[] = {
        {&s_weight, "weight"},
        {&s_bias, "bias"},
        {&s_running_mean, "running_mean"},
        {&s_running_var, "running_var"},
        {&s_training, "training"},
        {&s_track_running_stats, "track_running_stats"},
        {&s_eps, "eps"},
        {&s_stride, "stride"},
        {&s_padding, "padding"},
        {&s_dilation, "dilation"},
        {&s_groups, "groups"},
        {&s_padding_mode, "padding_mode"},
        {&s_kernel_size, "kernel_size"},
        {&s_return_indices, "return_indices"},
        {&s_ceil_mode, "ceil_mode"},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!*names[i].home &&
            !(*names[i].home = PyUnicode_InternFromString(names[i].text)))
            return false;
    return true;
}

static void drop(chain *c)
{
    for (int i = 0; i < N_CONV; i++)
        Py_CLEAR(c->conv[i]);
    for (int i = 0; i < N_NORM; i++)
        Py_CLEAR(c->norm[i]);
}

/* An int of Python's, exactly; false where it is anything else. */
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

/* An attribute that is an int or a pair of them, as torch's modules keep sizes. */
static bool read_pair(PyObject *attributes, PyObject *name, ptac_dims *pair)
{
    PyObject *value = PyDict_GetItemWithError(attributes, name);

    pair->n = 2;
    if (value && PyTuple_CheckExact(value) && PyTuple_Size(value) == 2)
        return read_int(PyTuple_GetItem(value, 0), &pair->values[0]) &&
               read_int(PyTuple_GetItem(value, 1), &pair->values[1]);
    if (!read_int(value, &pair->values[0]))
        return false;
    pair->values[1] = pair->values[0];
    return true;
}

static bool is_pair_of(PyObject *attributes, PyObject *name, int64_t value)
{
    ptac_dims pair;

    return read_pair(attributes, name, &pair) && pair.values[0] == value &&
           pair.values[1] == value;
}

static bool is_exactly(PyObject *attributes, PyObject *name, PyObject *value)
{
    return PyDict_GetItemWithError(attributes, name) == value;
}

static bool read_conv(PyObject *attributes, chain *c)
{
    PyObject *mode = PyDict_GetItemWithError(attributes, s_padding_mode);
    ptac_geometry *g = &c->geometry;

    g->output_padding = (ptac_dims){.n = 2};
    if (!mode || !PyUnicode_Check(mode) ||
        PyUnicode_CompareWithASCIIString(mode, "zeros") != 0 ||
        !read_pair(attributes, s_stride, &g->stride) ||
        !read_pair(attributes, s_padding, &g->padding) ||
        !read_pair(attributes, s_dilation, &g->dilation) ||
        !read_int(PyDict_GetItemWithError(attributes, s_groups), &g->groups))
        return false;
    c->conv[0] = ptac_module_parameter(attributes, s_weight);
    c->conv[1] = ptac_module_parameter(attributes, s_bias);
    return c->conv[0] && c->conv[1];
}

/* One that normalises by its running statistics and writes nothing. */
static bool read_norm(PyObject *attributes, chain *c)
{
    PyObject *eps = PyDict_GetItemWithError(attributes, s_eps);

    if (!is_exactly(attributes, s_training, Py_False) ||
        !is_exactly(attributes, s_track_running_stats, Py_True) || !eps ||
        !PyFloat_CheckExact(eps))
        return false;
    c->eps = PyFloat_AsDouble(eps);
    if (!(c->eps > 0))
        return false; /* some versions of torch raise */
    c->norm[0] = ptac_module_parameter(attributes, s_weight);
    c->norm[1] = ptac_module_parameter(attributes, s_bias);
    c->norm[2] = ptac_module_buffer(attributes, s_running_mean);
    c->norm[3] = ptac_module_buffer(attributes, s_running_var);
    for (int i = 0; i < N_NORM; i++)
        if (!c->norm[i])
            return false;
    return true;
}

static bool read_relu(PyObject *attributes, chain *c)
{
    (void)attributes;
    (void)c;
    return true;
}

static bool read_pool(PyObject *attributes, chain *c)
{
    (void)c;
    return ptac_chooser_gate(PTAC_OP_MAX_POOL2D) == PTAC_TAKE &&
           is_pair_of(attributes, s_kernel_size, 2) &&
           is_pair_of(attributes, s_stride, 2) &&
           is_pair_of(attributes, s_padding, 0) &&
           is_pair_of(attributes, s_dilation, 1) &&
           is_exactly(attributes, s_return_indices, Py_False) &&
           is_exactly(attributes, s_ceil_mode, Py_False);
}

/* Whether the module at a place is of this kind and read() has taken it in. */
static bool take(PyObject *modules, Py_ssize_t at, ptac_module_kind kind,
                 bool (*read)(PyObject *attributes, chain *c), chain *c)
{
    PyObject *attributes = NULL;
    bool taken;

    if (at < PyList_Size(modules))
        attributes = ptac_module_attributes(PyList_GetItem(modules, at), kind);
    if (!attributes)
        return false;
    taken = read(attributes, c);
    Py_DECREF(attributes);
    PyErr_Clear();
    return taken;
}

/*
 * A glance at what rows of ours ask of a convolution, before all that it goes through
 * is looked at: calls that are refused should cost little.
 */
static bool may_be_ours(PyObject *module)
{
    PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    bool may = false;
    int64_t groups;

    if (attributes)
        may = (is_pair_of(attributes, s_kernel_size, 3) ||
               is_pair_of(attributes, s_kernel_size, 5)) &&
              is_pair_of(attributes, s_stride, 1) &&
              read_int(PyDict_GetItemWithError(attributes, s_groups), &groups) &&
              groups == 1;
    Py_XDECREF(attributes);
    PyErr_Clear();
    return may;
}

/* The chain that begins at a place; false where there is none of two modules. */
static bool read_chain(PyObject *modules, Py_ssize_t at, chain *c)
{
    const ptac_module_kind next = ptac_module_kind_of(PyList_GetItem(modules, at + 1));

    if ((next != PTAC_MODULE_BATCH_NORM2D && next != PTAC_MODULE_RELU &&
         next != PTAC_MODULE_MAX_POOL2D) ||
        !may_be_ours(PyList_GetItem(modules, at)))
        return false;
    if (!take(modules, at, PTAC_MODULE_CONV2D, read_conv, c))
        return false;
    c->n = 1;
    c->with_norm = take(modules, at + c->n, PTAC_MODULE_BATCH_NORM2D, read_norm, c);
    c->n += c->with_norm;
    c->with_relu = take(modules, at + c->n, PTAC_MODULE_RELU, read_relu, c);
    c->n += c->with_relu;
    c->with_pool = take(modules, at + c->n, PTAC_MODULE_MAX_POOL2D, read_pool, c);
    c->n += c->with_pool;
    return c->n > 1;
}

/* Plain, or None where that may be, and no gradient asked for; -1: an exception. */
static int is_constant(PyObject *tensor, bool may_be_none)
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

static int are_constant(PyObject *x, const chain *c)
{
    int are = is_constant(x, false);

    for (int i = 0; i < N_CONV && are == 1; i++)
        are = is_constant(c->conv[i], i > 0);
    for (int i = 0; i < N_NORM && are == 1 && c->with_norm; i++)
        are = is_constant(c->norm[i], i < 2);
    return are;
}

/* A number for each output channel, or NULL where the tensor is None. */
static bool channel_floats(PyObject *tensor, int n, const float **values)
{
    ptac_view view;

    *values = NULL;
    if (tensor == Py_None)
        return true;
    ptac_view_of(ptac_borrow(tensor), &view);
    *values = view.data;
    return view.dtype == PTAC_F32 && view.n_dims == 1 && view.sizes[0] == n &&
           ptac_view_is_contiguous(&view);
}

/*
 * BatchNorm2d of a convolution: y = (sum + bias - mean) / sqrt(variance + eps) * weight
 * + its bias, as scale * sum + shift.
 */
static bool fold_norm(const chain *c, int n, float *scale, float *shift)
{
    const float *bias, *gamma, *beta, *mean, *variance;

    if (n > MOST_CHANNELS || !channel_floats(c->conv[1], n, &bias) ||
        !channel_floats(c->norm[0], n, &gamma) ||
        !channel_floats(c->norm[1], n, &beta) ||
        !channel_floats(c->norm[2], n, &mean) ||
        !channel_floats(c->norm[3], n, &variance))
        return false;
    for (int i = 0; i < n; i++) {
        const double factor =
            (gamma ? gamma[i] : 1) / sqrt((double)variance[i] + c->eps);

        scale[i] = (float)factor;
        shift[i] = (float)((beta ? beta[i] : 0) +
                           ((bias ? (double)bias[i] : 0) - mean[i]) * factor);
        if (!isfinite(scale[i]) || !isfinite(shift[i]))
            return false; /* where then is infinity and where NaN is stock's to say */
    }
    return true;
}

static ptac_view view_of_floats(float *data, const int64_t *n)
{
    static const int64_t one_apart = 1;

    return (ptac_view){
        .data = data,
        .sizes = n,
        .strides = &one_apart,
        .n_elements = *n,
        .n_dims = 1,
        .dtype = PTAC_F32,
    };
}

/* The call's row, with as much of the chain as it takes; NULL: call the modules. */
static const ptac_kernel *choose(ptac_call *call, ptac_conv2d *params, chain *c)
{
    ptac_reason unused;
    const ptac_kernel *row = ptac_probe(call, &unused);

    if (!row || !c->with_pool)
        return row;
    params->with_pool = params->out_h > 1 && params->out_w > 1;
    if (!params->with_pool || row->accepts(call) != PTAC_TAKE) {
        params->with_pool = false;
        c->n--;
    }
    return c->n > 1 ? row : NULL;
}

/* The Conv2d by stock, after its call has been counted as what went wrong with it. */
static PyObject *call_uncounted(PyObject *conv, PyObject *x, chain *c)
{
    PyObject *y;

    c->n = 1;
    ptac_thread_mute(1);
    y = PyObject_CallFunctionObjArgs(conv, x, NULL);
    ptac_thread_mute(-1);
    return y;
}

/* Make the output and run. *made is NULL where there is no memory for it. */
static bool run_unlocked(const ptac_kernel *row, ptac_call *call, const int64_t *sizes,
                         at_tensor *made)
{
    PyThreadState *thread = PyEval_SaveThread();
    const bool done = !ptac_conv_try_image(sizes, false, made, &call->outputs[0]) &&
                      ptac_run(row, call);

    PyEval_RestoreThread(thread);
    return done;
}

static PyObject *try_chain(PyObject *conv, PyObject *x, chain *c)
{
    float scale[MOST_CHANNELS], shift[MOST_CHANNELS];
    const at_tensor bias = c->conv[1] == Py_None ? NULL : ptac_borrow(c->conv[1]);
    ptac_conv2d params;
    ptac_call call;
    const ptac_kernel *row;
    int64_t n_channels, sizes[4];
    at_tensor made = NULL;

    if (ptac_conv_read(ptac_borrow(x), ptac_borrow(c->conv[0]), bias, &c->geometry,
                       &params, &call) != PTAC_TAKE ||
        params.channels_last)
        Py_RETURN_NONE;
    n_channels = params.out_channels;
    if (c->with_norm) {
        if (!fold_norm(c, params.out_channels, scale, shift))
            Py_RETURN_NONE;
        call.inputs[2] = view_of_floats(shift, &n_channels);
        call.inputs[3] = view_of_floats(scale, &n_channels);
        call.n_inputs = 4;
    }
    params.with_relu = c->with_relu;
    row = choose(&call, &params, c);
    if (!row)
        Py_RETURN_NONE;
    ptac_conv_output_sizes(&params, sizes);
    if (run_unlocked(row, &call, sizes, &made))
        return ptac_wrap(made);
    if (!made)
        Py_RETURN_NONE; /* the modules will raise torch's own error */
    at_drop_tensor(&made);
    return call_uncounted(conv, x, c);
}

PyObject *ptac_try_conv_chain(PyObject *modules, Py_ssize_t at, PyObject *x,
                              Py_ssize_t *n)
{
    chain c = {0};
    PyObject *result = NULL;
    int are;

    PTAC_IN_FLIGHT;
    if (!intern_names())
        return NULL;
    /* A shadow check repeats one operator of stock's. */
    if (ptac_is_off(PTAC_OP_CONV2D) || ptac_shadow_is_on() ||
        !read_chain(modules, at, &c) || ptac_why_not_lean() != PTAC_TAKE) {
        drop(&c);
        Py_RETURN_NONE;
    }
    are = are_constant(x, &c);
    if (are > 0)
        result = try_chain(PyList_GetItem(modules, at), x, &c);
    else if (are == 0)
        result = Py_NewRef(Py_None);
    *n = c.n;
    drop(&c);
    return result;
}
