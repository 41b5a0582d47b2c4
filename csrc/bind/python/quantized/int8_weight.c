/*
 * int8_weight.c - weights on their way between float, plain int8 and panels.
 *
 * What quantize_model() and loading checkpoints call, once a weight. Unlike operators
 * these raise where an argument is not what they take.
 */
#include "bind/python/quantized/int8.h"

#include "ops/int8/panel.h"
#include "ops/int8/weight.h"

bool ptac_int8_read(PyObject *tensor, int32_t dtype, int64_t n_elements,
                    ptac_view *view)
{
    at_tensor handle;
    int32_t found = -1;

    if (!ptac_is_plain(tensor))
        return false;
    handle = ptac_borrow(tensor);
    ptac_view_of(handle, view);
    T.aoti_torch_get_dtype(handle, &found);
    return found == dtype && ptac_view_is_contiguous(view) &&
           (view->data || view->n_elements == 0) &&
           (n_elements < 0 || view->n_elements == n_elements);
}

bool ptac_int8_size(PyObject *number, int64_t least, int64_t *size)
{
    *size = PyLong_AsLongLong(number);
    if (*size >= least)
        return true;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%R is less than %lld", number,
                     (long long)least);
    return false;
}

/* [n, c, *taps] and the number of groups; false with ValueError set. */
static bool shape_of(int n_dims, const int64_t *sizes, int64_t groups,
                     ptac_packed_shape *shape)
{
    *shape = (ptac_packed_shape){.taps = 1, .groups = groups};
    if (n_dims < 2 || n_dims > PTAC_MAX_DIMS)
        return PyErr_Format(PyExc_ValueError, "a weight has two dimensions or more");
    shape->n = sizes[0];
    shape->c = sizes[1];
    for (int i = 2; i < n_dims; i++)
        if (__builtin_mul_overflow(shape->taps, sizes[i], &shape->taps))
            shape->taps = 0;
    return ptac_packed_is_sound(shape) ||
           PyErr_Format(PyExc_ValueError,
                        "a weight that is empty or larger than tensors are, or whose "
                        "channels groups do not divide");
}

/* A new tensor that convert() fills from another; NULL with an exception set. */
static PyObject *converted(const ptac_packed_shape *shape, const ptac_view *from,
                           void (*convert)(const ptac_packed_shape *, const int8_t *,
                                           int8_t *),
                           int n_dims, const int64_t *sizes)
{
    at_tensor made = NULL;

    if (at_new(AT_DTYPE_I8, n_dims, sizes, &made))
        return PyErr_NoMemory();
    PTAC_UNLOCKED((convert(shape, from->data, at_data(made)), 0));
    return ptac_wrap(made);
}

/* int8_pack(weight_int8, groups) -> [n, c, *taps] in the kernels' order, with sums */
PTAC_FASTCALL(int8_pack)
{
    ptac_packed_shape shape;
    ptac_view plain;
    int64_t groups, bytes;

    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "weight_int8, groups");
    if (!ptac_int8_size(args[1], 1, &groups))
        return NULL;
    if (!ptac_int8_read(args[0], AT_DTYPE_I8, -1, &plain))
        return PyErr_Format(PyExc_TypeError,
                            "a contiguous int8 CPU tensor is expected");
    if (!shape_of(plain.n_dims, plain.sizes, groups, &shape))
        return NULL;
    bytes = ptac_packed_bytes(&shape);
    return converted(&shape, &plain, ptac_pack, 1, &bytes);
}

static bool read_sizes(PyObject *tuple, int *n_dims, int64_t *sizes)
{
    const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;

    *n_dims = (int)n;
    if (n < 0 || n > PTAC_MAX_DIMS)
        return PyErr_Format(PyExc_TypeError, "sizes are a tuple");
    for (Py_ssize_t i = 0; i < n; i++)
        if (!ptac_int8_size(PyTuple_GetItem(tuple, i), 0, &sizes[i]))
            return false;
    return true;
}

/* int8_unpack(packed, sizes, groups) -> weight_int8 */
PTAC_FASTCALL(int8_unpack)
{
    ptac_packed_shape shape;
    ptac_view packed;
    int64_t groups, sizes[PTAC_MAX_DIMS];
    int n_dims;

    if (n_args != 3)
        return PyErr_Format(PyExc_TypeError, "packed, sizes, groups");
    if (!read_sizes(args[1], &n_dims, sizes) || !ptac_int8_size(args[2], 1, &groups) ||
        !shape_of(n_dims, sizes, groups, &shape))
        return NULL;
    if (!ptac_int8_read(args[0], AT_DTYPE_I8, ptac_packed_bytes(&shape), &packed))
        return PyErr_Format(PyExc_TypeError, "no packed weight of these sizes");
    return converted(&shape, &packed, ptac_unpack, n_dims, sizes);
}

/*
 * int8_quantize(weight) -> (weight_int8, scales, signal, noise), the last two sums of
 * w**2 and (w - scale * q)**2; None where a weight is not finite. A row is what lies
 * under the first dimension.
 */
PTAC_O(int8_quantize, weight)
{
    ptac_view w;
    AT_OWNED at_tensor quantized = NULL, scales = NULL;
    PTAC_FREED ptac_weight_error *errors = NULL;
    ptac_weight_error sum = {0};
    int64_t n, k;

    if (!ptac_int8_read(weight, AT_DTYPE_F32, -1, &w) || w.n_dims < 1 ||
        w.n_dims > PTAC_MAX_DIMS)
        return PyErr_Format(PyExc_TypeError,
                            "a contiguous float32 CPU tensor is expected");
    n = w.sizes[0];
    k = n ? w.n_elements / n : 0;
    errors = PyMem_Calloc((size_t)n + 1, sizeof *errors);
    if (!errors || at_new(AT_DTYPE_I8, w.n_dims, w.sizes, &quantized) ||
        at_new(AT_DTYPE_F32, 1, &n, &scales))
        return PyErr_NoMemory();
    if (!PTAC_UNLOCKED(ptac_quantize_weight(w.data, n, k, at_data(quantized),
                                            at_data(scales), errors)))
        Py_RETURN_NONE;
    for (int64_t i = 0; i < n; i++) {
        sum.signal += errors[i].signal;
        sum.noise += errors[i].noise;
    }
    return Py_BuildValue("NNdd", ptac_wrap(at_give(&quantized)),
                         ptac_wrap(at_give(&scales)), sum.signal, sum.noise);
}
