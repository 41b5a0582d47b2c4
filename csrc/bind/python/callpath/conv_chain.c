/*
 * conv_chain.c - a Conv2d and what follows it, run as one conv2d.
 */
#include "bind/python/callpath/chain.h"
#include "bind/torch/rows/depthwise.h"
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

bool ptac_conv_may_be_ours(PyObject *module)
{
    PTAC_OWNED PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    bool may = false;
    int64_t groups;

    if (attributes)
        may = (ptac_module_pair_is(attributes, ptac_names.kernel_size, 3) ||
               ptac_module_pair_is(attributes, ptac_names.kernel_size, 5)) &&
              ptac_module_pair_is(attributes, ptac_names.stride, 1) &&
              ptac_module_int(attributes, ptac_names.groups, &groups) && groups == 1;
    PyErr_Clear();
    return may;
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
    return ptac_vector_reason(&view, n) == PTAC_TAKE;
}

/* The convolution's outputs, which have a bias or none, as scale * sum + shift. */
static bool fold_norm(const ptac_chain *c, PyObject *conv_bias, int n, float *scale,
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
    for (int i = 0; i < n; i++) {
        scale[i] = 1;
        shift[i] = bias ? bias[i] : 0;
        ptac_batch_norm_fold(&norm, i, &scale[i], &shift[i]);
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
static const ptac_kernel *choose(ptac_call *call, ptac_conv2d *params, ptac_chain *c)
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

/* Of one channel, or of one row or column, the modules' strides may not be ours. */
static bool has_torchs_strides(const ptac_conv2d *p)
{
    return !p->channels_last || (p->out_channels > 1 && p->out_h >> p->with_pool > 1 &&
                                 p->out_w >> p->with_pool > 1);
}

/* The Conv2d by stock, after its call has been counted as what went wrong with it. */
static PyObject *call_uncounted(PyObject *x, ptac_chain *c)
{
    PyObject *y;

    c->n = 1;
    ptac_thread_mute(1);
    y = PyObject_CallFunctionObjArgs(c->layer, x, NULL);
    ptac_thread_mute(-1);
    return y;
}

static PyObject *run_chain(ptac_chain *chain, const conv *c, PyObject *x)
{
    float scale[MOST_CHANNELS], shift[MOST_CHANNELS];
    ptac_conv2d params;
    ptac_call call = {
        .op = PTAC_OP_CONV2D,
        .n_inputs = c->bias == Py_None ? 2 : 3,
        .n_outputs = 1,
        .params = &params,
    };
    const ptac_kernel *row;
    int64_t n_channels, sizes[4];
    at_tensor made = NULL;

    ptac_view_of(ptac_borrow(x), &call.inputs[0]);
    ptac_view_of(ptac_borrow(c->weight), &call.inputs[1]);
    if (call.n_inputs == 3)
        ptac_view_of(ptac_borrow(c->bias), &call.inputs[2]);
    if (ptac_conv_check(&call, &c->geometry, &params) ||
        ptac_is_depthwise(&call.inputs[0], &call.inputs[1], c->geometry.groups))
        Py_RETURN_NONE;
    n_channels = params.out_channels;
    if (chain->with_norm) {
        if (!fold_norm(chain, c->bias, params.out_channels, scale, shift))
            Py_RETURN_NONE;
        call.inputs[2] = view_of_floats(shift, &n_channels);
        call.inputs[3] = view_of_floats(scale, &n_channels);
        call.n_inputs = 4;
    }
    params.with_relu = chain->activation == PTAC_ACT_RELU;
    row = choose(&call, &params, chain);
    if (!row || !has_torchs_strides(&params))
        Py_RETURN_NONE;
    ptac_conv_output_sizes(&params, 4, sizes);
    if (PTAC_UNLOCKED(!ptac_new_images(PTAC_F32, sizes, params.channels_last, &made,
                                       &call.outputs[0]) &&
                      ptac_run(row, &call)))
        return ptac_wrap(made);
    if (!made)
        Py_RETURN_NONE; /* the modules will raise torch's own error */
    at_drop_tensor(&made);
    return call_uncounted(x, chain);
}

PyObject *ptac_conv_chain(ptac_chain *chain, PyObject *x)
{
    __attribute__((cleanup(drop_conv))) conv c = {0};
    int are;

    PTAC_IN_FLIGHT;
    /* A shadow check repeats one operator of stock's. */
    if (ptac_is_off(PTAC_OP_CONV2D) || ptac_shadow_is_on() ||
        !read_conv(chain->attributes, &c) || ptac_why_not_lean())
        Py_RETURN_NONE;
    are = ptac_is_constant(x, false);
    if (are > 0)
        are = ptac_is_constant(c.weight, false);
    if (are > 0)
        are = ptac_is_constant(c.bias, true);
    if (are > 0)
        return run_chain(chain, &c, x);
    return are < 0 ? NULL : Py_NewRef(Py_None);
}
