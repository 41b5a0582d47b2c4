/*
 * int8_conv2d.c - calls of int8_conv2d, see int8.c.
 */
#include "bind/python/quantized/int8.h"

enum {
    GEOMETRY = 11,     /* n, c, kernel, stride, padding, dilation (two each), groups */
    NORMALIZATION = 5, /* weight or None, bias or None, mean, variance, eps */
};

/* Two of the geometry's numbers. */
static bool read_pair(PyObject *tuple, int at, int64_t least, int64_t pair[2])
{
    return ptac_int8_size(PyTuple_GetItem(tuple, at), least, &pair[0]) &&
           ptac_int8_size(PyTuple_GetItem(tuple, at + 1), least, &pair[1]);
}

static bool read_geometry(PyObject *sequence, ptac_int8_conv2d *p)
{
    PyObject *tuple = PySequence_Tuple(sequence);
    bool done = tuple && PyTuple_Size(tuple) == GEOMETRY;

    if (tuple && !done)
        PyErr_SetString(PyExc_TypeError, "a geometry is eleven numbers");
    done = done && ptac_int8_size(PyTuple_GetItem(tuple, 0), 1, &p->n) &&
           ptac_int8_size(PyTuple_GetItem(tuple, 1), 1, &p->c) &&
           read_pair(tuple, 2, 1, p->kernel) && read_pair(tuple, 4, 1, p->stride) &&
           read_pair(tuple, 6, 0, p->padding) && read_pair(tuple, 8, 1, p->dilation) &&
           ptac_int8_size(PyTuple_GetItem(tuple, 10), 1, &p->groups);
    Py_XDECREF(tuple);
    return done;
}

/* One number a channel, or None where it may be left out. */
static bool read_channels(PyObject *tensor, bool may_be_none, ptac_quantized_args *read,
                          int input)
{
    if (may_be_none && tensor == Py_None)
        return true;
    return ptac_int8_read(tensor, AT_DTYPE_F32, read->params.conv2d.n,
                          &read->call.inputs[input]);
}

static bool read_normalization(PyObject *tuple, ptac_quantized_args *read)
{
    if (tuple == Py_None)
        return true;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != NORMALIZATION)
        return false;
    read->params.conv2d.eps = PyFloat_AsDouble(PyTuple_GetItem(tuple, 4));
    for (int i = PTAC_INT8_CONV_WEIGHT; i <= PTAC_INT8_CONV_VARIANCE; i++)
        if (!read_channels(PyTuple_GetItem(tuple, i - PTAC_INT8_CONV_WEIGHT),
                           i < PTAC_INT8_CONV_MEAN, read, i))
            return false;
    return !PyErr_Occurred();
}

/*
 * The images, row by row or channels last; a copy is made where they have gaps. Strides
 * say which of both it is, as they do to stock.
 */
static ptac_reason read_images(at_tensor tensor, ptac_quantized_args *read)
{
    ptac_int8_conv2d *p = &read->params.conv2d;
    ptac_view *x = &read->call.inputs[PTAC_INT8_CONV_X];
    ptac_reason why = PTAC_TAKE;

    ptac_view_of(tensor, x);
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_dims != 4 || x->sizes[1] != p->groups * p->c ||
        x->sizes[2] > PTAC_INT8_MOST_STEP || x->sizes[3] > PTAC_INT8_MOST_STEP)
        return PTAC_SHAPE;
    p->channels_last = ptac_view_suggests_channels_last(x);
    if (p->channels_last ? !ptac_view_is_channels_last(x) : !ptac_view_is_contiguous(x))
        why = ptac_int8_copy(tensor, p->channels_last, read);
    p->batch = x->sizes[0];
    p->height = x->sizes[2];
    p->width = x->sizes[3];
    return why;
}

/* x, packed, scale, bias or None, geometry, activation, normalization or None */
static ptac_reason read_conv(PyObject *const *args, ptac_quantized_args *read)
{
    ptac_int8_conv2d *p = &read->params.conv2d;
    ptac_reason why;

    if (!read_geometry(args[4], p) || !ptac_int8_activation(args, read, 5, &p->relu) ||
        !ptac_int8_conv2d_is_sound(p))
        return PTAC_ARGUMENT;

    const ptac_packed_shape shape = ptac_int8_conv2d_weight(p);

    if (!ptac_is_plain(args[0]))
        return PTAC_SUBCLASS;
    if (!ptac_int8_read(args[1], AT_DTYPE_I8, ptac_packed_bytes(&shape),
                        &read->call.inputs[PTAC_INT8_CONV_PACKED]) ||
        !read_channels(args[2], false, read, PTAC_INT8_CONV_SCALES))
        return PTAC_ARGUMENT;
    if (!read_channels(args[3], true, read, PTAC_INT8_CONV_BIAS) ||
        (read->n_args > 6 && !read_normalization(args[6], read)))
        return PTAC_DTYPE;
    why = read_images(ptac_borrow(args[0]), read);
    if (why)
        return why;
    p->out_height = ptac_int8_conv2d_places(p, 0);
    p->out_width = ptac_int8_conv2d_places(p, 1);
    read->call.n_inputs = PTAC_INT8_CONV_INPUTS;
    return PTAC_TAKE;
}

static at_tensor new_images(const ptac_quantized_args *read)
{
    const ptac_int8_conv2d *p = &read->params.conv2d;
    const int64_t sizes[4] = {p->batch, p->n, p->out_height, p->out_width};
    at_tensor y = NULL;

    ptac_new_images(PTAC_F32, sizes, p->channels_last, &y, NULL);
    return y;
}

/*
 * int8_conv2d(x, packed, scale, bias, geometry, activation=0, normalization=None) -> y
 * or None. The numbers of geometry are those of quantization.layers.
 */
PTAC_QUANTIZED_OP(int8_conv2d, PTAC_OP_INT8_CONV2D, 7, 2,
                  "x, packed, scale, bias, geometry, activation, normalization", 3,
                  read_conv, new_images, NULL)
