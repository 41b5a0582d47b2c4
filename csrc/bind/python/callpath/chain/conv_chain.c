/*
 * conv_chain.c - a Conv2d and what follows it, run as one conv2d, and conv_act, which
 * programs call by name.
 */
#include "bind/python/callpath/chain/chain.h"
#include "bind/python/callpath/lean_call.h"
#include "bind/torch/rows/convolution/depthwise.h"
#include "ops/norm/batch_norm_fold.h"

enum {
    MOST_CHANNELS = 1024, /* that a scale and a shift are computed for */
};

/* What has been read of the Conv2d. Tensors are owned; the bias may be None. */
typedef struct conv {
    ptac_geometry geometry;
    PyObject *weight, *bias;
} conv;

static void drop_conv(conv *c)
{
    Py_XDECREF(c->weight);
    Py_XDECREF(c->bias);
}

static bool read_pair(PyObject *attributes, PyObject *name, ptac_dims *pair)
{
    pair->n = 2;
    return ptac_module_pair(attributes, name, pair->values);
}

static bool read_conv(PyObject *attributes, conv *c)
{
    PyObject *mode = PyDict_GetItemWithError(attributes, ptac_names.padding_mode);
    ptac_geometry *g = &c->geometry;

    g->output_padding = (ptac_dims){.n = 2};
    if (!mode || !PyUnicode_Check(mode) ||
        PyUnicode_CompareWithASCIIString(mode, "zeros") != 0 ||
        !read_pair(attributes, ptac_names.stride, &g->stride) ||
        !read_pair(attributes, ptac_names.padding, &g->padding) ||
        !read_pair(attributes, ptac_names.dilation, &g->dilation) ||
        !ptac_module_int(attributes, ptac_names.groups, &g->groups))
        return false;
    c->weight = ptac_module_parameter(attributes, ptac_names.weight);
    c->bias = ptac_module_parameter(attributes, ptac_names.bias);
    return c->weight && c->bias;
}

/* A number for each output channel, or NULL where the tensor is None. */
static bool channel_floats(PyObject *tensor, int64_t n, const float **values)
{
    ptac_view view;

    *values = NULL;
    if (tensor == Py_None)
        return true;
    ptac_view_of(ptac_borrow(tensor), &view);
    *values = view.data;
    return ptac_vector_reason(&view, n) == PTAC_TAKE;
}

/* Else it is stock's to say where infinity is and where NaN. */
static bool are_finite(const float *numbers, int n)
{
    float sum = 0;

    for (int i = 0; i < n; i++)
        sum += numbers[i] * 0;
    return sum == 0;
}

/* The convolution's outputs, which have a bias or none, as scale * sum + shift. */
static bool fold_norm(const ptac_chain *c, PyObject *conv_bias, int64_t n, float *scale,
                      float *shift)
{
    const float *bias;
    ptac_batch_norm norm = {.eps = c->eps};

    if (n > MOST_CHANNELS || !channel_floats(conv_bias, n, &bias) ||
        !channel_floats(c->norm[PTAC_NORM_WEIGHT], n, &norm.weight) ||
        !channel_floats(c->norm[PTAC_NORM_BIAS], n, &norm.bias) ||
        !channel_floats(c->norm[PTAC_NORM_MEAN], n, &norm.mean) ||
        !channel_floats(c->norm[PTAC_NORM_VARIANCE], n, &norm.variance))
        return false;
    ptac_batch_norm_fold_best()(&norm, bias, n, scale, shift);
    return are_finite(scale, n) && are_finite(shift, n);
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

/* A call of conv2d or of depthwise_conv2d, and what both parameters tell. */
typedef struct conv_call {
    ptac_call call;
    ptac_conv2d conv;
    ptac_depthwise depthwise;
    bool is_depthwise;
    int out_h, out_w;
    bool channels_last;
} conv_call;

static bool read_depthwise(conv_call *m, const ptac_geometry *geometry)
{
    ptac_call *call = &m->call;
    const ptac_depthwise *p = &m->depthwise;

    call->op = PTAC_OP_DEPTHWISE_CONV2D;
    call->params = p;
    if (ptac_depthwise_params(&call->inputs[0], &call->inputs[1], geometry,
                              &m->depthwise) ||
        (call->n_inputs > 2 && ptac_vector_reason(&call->inputs[2], p->channels)))
        return false;
    m->out_h = p->out_h;
    m->out_w = p->out_w;
    m->channels_last = p->channels_last;
    return true;
}

static bool read_conv2d(conv_call *m, const ptac_geometry *geometry)
{
    const ptac_conv2d *p = &m->conv;

    m->call.op = PTAC_OP_CONV2D;
    m->call.params = p;
    if (ptac_conv_check(&m->call, geometry, &m->conv))
        return false;
    m->out_h = p->out_h;
    m->out_w = p->out_w;
    m->channels_last = p->channels_last;
    return true;
}

/* The call of the Conv2d alone; false where none of it is ours. */
static bool read_call(const conv *c, PyObject *x, conv_call *m)
{
    ptac_call *call = &m->call;

    *call = (ptac_call){.n_inputs = c->bias == Py_None ? 2 : 3, .n_outputs = 1};
    ptac_view_of(ptac_borrow(x), &call->inputs[0]);
    ptac_view_of(ptac_borrow(c->weight), &call->inputs[1]);
    if (call->n_inputs == 3)
        ptac_view_of(ptac_borrow(c->bias), &call->inputs[2]);
    m->is_depthwise =
        ptac_is_depthwise(&call->inputs[0], &call->inputs[1], c->geometry.groups);
    return call->inputs[0].n_dims == PTAC_IMAGES &&
           (m->is_depthwise ? read_depthwise : read_conv2d)(m, &c->geometry);
}

bool ptac_conv_may_be_ours(PyObject *module, PyObject *x)
{
    PTAC_OWNED PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    __attribute__((cleanup(drop_conv))) conv c = {0};
    ptac_reason unused;
    conv_call m;
    bool may;

    PTAC_IN_FLIGHT;
    /* A weight that is learnt tells at once. */
    may = attributes && read_conv(attributes, &c) &&
          ptac_is_constant(c.weight, false) > 0 && ptac_is_constant(x, false) > 0 &&
          ptac_is_constant(c.bias, true) > 0 && read_call(&c, x, &m) &&
          ptac_probe(&m.call, &unused);
    PyErr_Clear();
    return may;
}

/* Whether the row does the chain as far as it is in the parameters now. */
static bool takes(const ptac_kernel *row, conv_call *m, const ptac_chain *c)
{
    m->conv.act = m->depthwise.act = c->activation;
    m->conv.with_pool = c->with_pool && m->out_h > 1 && m->out_w > 1;
    return m->conv.with_pool == c->with_pool && (!m->is_depthwise || !c->with_pool) &&
           row->accepts(&m->call) == PTAC_TAKE;
}

static void drop_pool(ptac_chain *c)
{
    c->n -= c->with_pool;
    c->with_pool = false;
}

/* The call's row, with as much of the chain as it takes; NULL: call the modules. */
static const ptac_kernel *choose(conv_call *m, ptac_chain *c)
{
    ptac_reason unused;
    const ptac_kernel *row;

    if (c->activation == PTAC_ACT_SILU || c->activation == PTAC_ACT_HARDSWISH) {
        /* No row has these, but the norm before may do them. */
        if (c->with_norm && ptac_chooser_gate(PTAC_OP_BATCH_NORM_ACT) == PTAC_TAKE)
            return NULL;
        drop_pool(c);
        c->activation = PTAC_ACT_NONE;
        c->n--;
    }
    row = ptac_probe(&m->call, &unused);
    if (!row || ptac_conv_precision_is_lowered())
        return NULL;
    if (!takes(row, m, c))
        drop_pool(c);
    return c->n > 1 && takes(row, m, c) ? row : NULL;
}

/* Of one channel, or of one row or column, the modules' strides may not be ours. */
static bool has_torchs_strides(const conv_call *m, const int64_t sizes[4])
{
    return !m->channels_last || (sizes[1] > 1 && sizes[2] > 1 && sizes[3] > 1);
}

/* The Conv2d by stock, after its call has been counted as what went wrong with it. */
static PyObject *call_uncounted(PyObject *x, ptac_chain *c)
{
    PyObject *y;

    if (!c->layer) /* of conv_act */
        Py_RETURN_NONE;
    c->n = 1;
    ptac_thread_mute(1);
    y = PyObject_CallFunctionObjArgs(c->layer, x, NULL);
    ptac_thread_mute(-1);
    return y;
}

static PyObject *run_chain(ptac_chain *chain, const conv *c, PyObject *x)
{
    float scale[MOST_CHANNELS], shift[MOST_CHANNELS];
    const ptac_kernel *row;
    conv_call m;
    int64_t n_channels, sizes[4];
    at_tensor made = NULL;

    if (!read_call(c, x, &m))
        Py_RETURN_NONE;
    n_channels = m.call.inputs[1].sizes[0];
    if (chain->with_norm) {
        if (!fold_norm(chain, c->bias, n_channels, scale, shift))
            Py_RETURN_NONE;
        m.call.inputs[2] = view_of_floats(shift, &n_channels);
        m.call.inputs[3] = view_of_floats(scale, &n_channels);
        m.call.n_inputs = 4;
    }
    row = choose(&m, chain);
    sizes[0] = m.call.inputs[0].sizes[0];
    sizes[1] = n_channels;
    sizes[2] = m.out_h >> chain->with_pool;
    sizes[3] = m.out_w >> chain->with_pool;
    if (!row || !has_torchs_strides(&m, sizes))
        Py_RETURN_NONE;
    if (PTAC_UNLOCKED(!ptac_new_images(PTAC_F32, sizes, m.channels_last, &made,
                                       &m.call.outputs[0]) &&
                      ptac_run(row, &m.call)))
        return ptac_wrap(made);
    if (!made)
        Py_RETURN_NONE; /* the modules will raise torch's own error */
    at_drop_tensor(&made);
    return call_uncounted(x, chain);
}

/* A shadow check repeats one operator of stock's. */
static bool is_shut(void)
{
    return (ptac_is_off(PTAC_OP_CONV2D) && ptac_is_off(PTAC_OP_DEPTHWISE_CONV2D)) ||
           ptac_shadow_is_on();
}

static PyObject *run_constant(ptac_chain *chain, const conv *c, PyObject *x)
{
    int are = ptac_is_constant(x, false);

    if (are > 0)
        are = ptac_is_constant(c->weight, false);
    if (are > 0)
        are = ptac_is_constant(c->bias, true);
    if (are > 0)
        return run_chain(chain, c, x);
    return are < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *ptac_conv_chain(ptac_chain *chain, PyObject *x)
{
    __attribute__((cleanup(drop_conv))) conv c = {0};

    PTAC_IN_FLIGHT;
    if (is_shut() || !read_conv(chain->attributes, &c) || ptac_why_not_lean())
        Py_RETURN_NONE;
    return run_constant(chain, &c, x);
}

/* A pair of ints as a tuple of them. */
static bool read_tuple(PyObject *tuple, ptac_dims *pair)
{
    pair->n = 2;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 2)
        return false;
    for (int i = 0; i < 2; i++) {
        PyObject *number = PyTuple_GetItem(tuple, i);

        if (!PyLong_CheckExact(number))
            return false;
        pair->values[i] = PyLong_AsLongLong(number);
    }
    return !PyErr_Occurred();
}

/*
 * conv_relu(x, weight, bias or None, stride, padding, dilation, groups, from) -> ReLU
 * of the convolution, or None where torch has to do it, as where a gradient is wanted.
 * Tuples of two ints; nothing is counted but what is served.
 */
PTAC_ARGS(conv_relu, 8)
{
    ptac_chain chain = {.activation = PTAC_ACT_RELU, .n = 2};
    conv c = {.weight = args[1], .bias = args[2]}; /* borrowed */
    const bool is_kernel = ptac_lean_from_of(args[7]) == PTAC_LEAN_KERNEL;
    ptac_geometry *g = &c.geometry;

    PTAC_IN_FLIGHT;
    g->output_padding = (ptac_dims){.n = 2};
    g->groups = PyLong_CheckExact(args[6]) ? PyLong_AsLongLong(args[6]) : -1;
    if (g->groups < 1 || !read_tuple(args[3], &g->stride) ||
        !read_tuple(args[4], &g->padding) || !read_tuple(args[5], &g->dilation)) {
        PyErr_Clear(); /* of numbers that are too large: torch says so */
        Py_RETURN_NONE;
    }
    if (is_shut() || (!is_kernel && ptac_why_not_lean()))
        Py_RETURN_NONE;
    if (!is_kernel)
        return run_constant(&chain, &c, args[0]);
    return ptac_are_plain(args, 3, 2) ? run_chain(&chain, &c, args[0])
                                      : Py_NewRef(Py_None);
}
