/*
 * relu_max_pool2d.c - the call paths to relu_max_pool2d and its gradient, on CUDA.
 *
 * Neither ReLU nor pooling is among what autocast casts, so that it may be on.
 */
#include "ops/pool/relu_max/relu_max_pool2d.h"

#include "bind/python/callpath/lean.h"
#include "bind/python/callpath/lean_call.h"

enum {
    N_WINDOW = 9, /* kernel, stride, padding and dilation as pairs; ceil_mode */
};

PTAC_LENT(relu_max_pool2d_node)    /* how to apply it */
PTAC_LENT(relu_max_pool2d_checked) /* relu_max_pool2d_parts(), compared with stock */

/* Those that no int64 holds are for torch to refuse. */
static bool read_numbers(PyObject *tuple, int n, int64_t *numbers)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != n)
        return false;
    for (int i = 0; i < n; i++) {
        PyObject *number = PyTuple_GetItem(tuple, i);

        numbers[i] = PyLong_Check(number) ? PyLong_AsLongLong(number) : -1;
        if (numbers[i] < 0) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

static ptac_reason read_window(PyObject *tuple, ptac_window2d *window)
{
    int64_t n[N_WINDOW];

    if (!read_numbers(tuple, N_WINDOW, n))
        return PTAC_ARGUMENT;
    window->h = (ptac_window){n[0], n[2], n[4], n[6]};
    window->w = (ptac_window){n[1], n[3], n[5], n[7]};
    window->ceil_mode = n[8] != 0;
    return PTAC_TAKE;
}

static PyObject *window_tuple(const ptac_window2d *window)
{
    const ptac_window *h = &window->h, *w = &window->w;

    return Py_BuildValue(
        "(LLLLLLLLi)", (long long)h->kernel, (long long)w->kernel, (long long)h->stride,
        (long long)w->stride, (long long)h->padding, (long long)w->padding,
        (long long)h->dilation, (long long)w->dilation, (int)window->ceil_mode);
}

static bool lies_as(const ptac_view *view, const ptac_image *image)
{
    return image->channels_last ? ptac_view_is_channels_last(view)
                                : ptac_view_is_contiguous(view);
}

static void set_out_sizes(const ptac_image *image, int n_dims, int64_t *sizes)
{
    sizes[n_dims - 2] = image->out_h;
    sizes[n_dims - 1] = image->out_w;
}

static ptac_reason read_forward(PyObject *x, ptac_lean_call *m, ptac_relu_max_pool2d *p)
{
    ptac_view *view = &m->call.inputs[0];
    ptac_reason why = ptac_view_on_cuda(x, view);

    if (!why)
        why = ptac_image_of(view, &p->image);
    if (!why && ptac_view_is_contiguous(view))
        p->image.channels_last = false; /* where both hold, torch's ReLU gives NCHW */
    if (!why && !lies_as(view, &p->image))
        why = PTAC_LAYOUT;
    if (!why)
        why = ptac_window2d_fit(&p->window, &p->image);
    return why ? why : ptac_call_place(&m->call);
}

static bool make_pooled(ptac_lean_call *m)
{
    const ptac_view *x = &m->call.inputs[0];
    const ptac_image *image = &((const ptac_relu_max_pool2d *)m->call.params)->image;
    int64_t sizes[4];

    for (int i = 0; i < x->n_dims; i++)
        sizes[i] = x->sizes[i];
    set_out_sizes(image, x->n_dims, sizes);
    return ptac_lean_images(m, 0, PTAC_RELU_POOL_Y, ptac_torch_dtype(x->dtype),
                            x->n_dims, sizes, image->channels_last) &&
           (m->n_results < 2 ||
            ptac_lean_images(m, 1, PTAC_RELU_POOL_TAPS, AT_DTYPE_U8, x->n_dims, sizes,
                             image->channels_last));
}

/* The results as a tuple, or None, counted, for torch's own operators. */
static PyObject *finish(ptac_lean_call *m, ptac_reason why, ptac_lean_maker make)
{
    const ptac_kernel *row = NULL;

    if (!why)
        why = ptac_why_not_lean_on(PTAC_ON_CUDA);
    if (why)
        ptac_refuse(m->call.op, why);
    else
        row = ptac_admit(&m->call);
    return ptac_lean_run(m, row, make);
}

/* (y,) or (y, taps), or None. */
static PyObject *pool(PyObject *x, const ptac_window2d *window, bool wants_taps)
{
    ptac_relu_max_pool2d p = {.window = *window};
    ptac_lean_call m = {.call = {.op = PTAC_OP_RELU_MAX_POOL2D,
                                 .on = PTAC_ON_CUDA,
                                 .n_inputs = 1,
                                 .n_outputs = 2,
                                 .params = &p},
                        .n_results = 1 + wants_taps};

    return finish(&m, read_forward(x, &m, &p), make_pooled);
}

/* y with a node, from the results for x. */
static PyObject *behind_node(PyObject *x, PyObject *made, PyObject *window)
{
    PTAC_OWNED PyObject *args = PyTuple_Pack(3, x, made, window);

    return ptac_node_make(relu_max_pool2d_node, args);
}

/* numbers are the window's. */
static PyObject *try_pool(PyObject *x, const ptac_window2d *window, PyObject *numbers)
{
    const int wants = T.aoti_torch_grad_mode_is_enabled() ? ptac_requires_grad(x) : 0;
    const int hooked = wants > 0 ? ptac_saving_is_hooked() : wants;
    PTAC_OWNED PyObject *made = NULL;

    if (hooked < 0)
        return NULL;
    if (hooked) {
        ptac_refuse(PTAC_OP_RELU_MAX_POOL2D, PTAC_HOOKS);
        Py_RETURN_NONE;
    }
    made = ptac_shadow_is_on()
               ? PyObject_CallFunctionObjArgs(relu_max_pool2d_checked, x, numbers,
                                              wants ? Py_True : Py_False, NULL)
               : pool(x, window, wants);
    if (!made || made == Py_None)
        return Py_XNewRef(made);
    return wants ? behind_node(x, made, numbers) : Py_XNewRef(PyTuple_GetItem(made, 0));
}

PyObject *ptac_try_relu_max_pool2d(PyObject *x, const ptac_window2d *window)
{
    PTAC_OWNED PyObject *numbers = NULL;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_RELU_MAX_POOL2D))
        Py_RETURN_NONE;
    numbers = window_tuple(window);
    return numbers ? try_pool(x, window, numbers) : NULL;
}

/*
 * relu_max_pool2d(x, window) -> max pooling of ReLU(x), or None where torch's own
 * operators have to do the call.
 */
PTAC_ARGS(relu_max_pool2d, 2)
{
    ptac_window2d window;
    ptac_reason why;
    ptac_view unused;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_RELU_MAX_POOL2D))
        Py_RETURN_NONE;
    why = ptac_view_on_cuda(args[0], &unused);
    if (!why)
        why = read_window(args[1], &window);
    if (!why)
        return try_pool(args[0], &window, args[1]);
    ptac_refuse(PTAC_OP_RELU_MAX_POOL2D, why);
    Py_RETURN_NONE;
}

/*
 * relu_max_pool2d_parts(x, window, wants_taps) -> (y,) or, for the gradient, (y, taps);
 * or None.
 */
PTAC_ARGS(relu_max_pool2d_parts, 3)
{
    ptac_window2d window;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(PTAC_OP_RELU_MAX_POOL2D) || read_window(args[1], &window))
        Py_RETURN_NONE;
    return pool(args[0], &window, args[2] == Py_True);
}

static bool make_gradient(ptac_lean_call *m)
{
    const ptac_view *grad = &m->call.inputs[PTAC_RELU_POOL_GRAD];
    const ptac_image *image = &((const ptac_relu_max_pool2d *)m->call.params)->image;
    int64_t sizes[4];

    for (int i = 0; i < grad->n_dims; i++)
        sizes[i] = grad->sizes[i];
    sizes[grad->n_dims - 2] = image->h;
    sizes[grad->n_dims - 1] = image->w;
    return ptac_lean_images(m, 0, 0, ptac_torch_dtype(grad->dtype), grad->n_dims, sizes,
                            image->channels_last);
}

/* hw are the height and the width of x. */
static ptac_reason read_backward(PyObject *const *tensors, const int64_t hw[2],
                                 ptac_lean_call *m, ptac_relu_max_pool2d *p)
{
    ptac_view *grad = &m->call.inputs[PTAC_RELU_POOL_GRAD],
              *taps = &m->call.inputs[PTAC_RELU_POOL_TAPS];
    int32_t dtype = -1;
    ptac_reason why = ptac_view_on_cuda(tensors[0], grad);
    int64_t sizes[4];

    if (!why)
        why = ptac_view_on_cuda(tensors[1], taps);
    if (!why)
        why = ptac_image_of(taps, &p->image); /* in whose layout x was */
    if (why)
        return why;
    p->image.h = hw[0];
    p->image.w = hw[1];
    why = ptac_window2d_fit(&p->window, &p->image);
    if (why)
        return why;
    T.aoti_torch_get_dtype(ptac_borrow(tensors[1]), &dtype);
    for (int i = 0; i < taps->n_dims; i++)
        sizes[i] = taps->sizes[i];
    set_out_sizes(&p->image, taps->n_dims, sizes);
    if (dtype != AT_DTYPE_U8 || !taps->data ||
        !ptac_view_has_sizes(taps, taps->n_dims, sizes) ||
        !ptac_view_has_sizes(grad, taps->n_dims, sizes))
        return PTAC_ARGUMENT;
    if (!lies_as(grad, &p->image) || !lies_as(taps, &p->image))
        return PTAC_LAYOUT;
    return ptac_call_place(&m->call);
}

/*
 * relu_max_pool2d_backward(grad, taps, window, (height, width) of x) -> (grad of x,) or
 * None.
 */
PTAC_ARGS(relu_max_pool2d_backward, 4)
{
    ptac_relu_max_pool2d p;
    ptac_lean_call m = {.call = {.op = PTAC_OP_RELU_MAX_POOL2D_BACKWARD,
                                 .on = PTAC_ON_CUDA,
                                 .n_inputs = 2,
                                 .n_outputs = 1,
                                 .params = &p},
                        .n_results = 1};
    ptac_reason why;
    int64_t hw[2];

    PTAC_IN_FLIGHT;
    if (ptac_is_off(m.call.op))
        Py_RETURN_NONE;
    why = read_window(args[2], &p.window);
    if (!why)
        why = read_numbers(args[3], 2, hw) ? read_backward(args, hw, &m, &p)
                                           : PTAC_ARGUMENT;
    return finish(&m, why, make_gradient);
}
