/*
 * int8_sublayer.c - calls of int8_sublayer, as int8.c has those of products.
 *
 * Only layers of transformers call it, which compute step by step where it gives None.
 */
#include "bind/python/quantized/int8.h"

enum {
    X,
    PACKED,
    SCALE,
    BIAS,
    N,
    K,
    ACTIVATION,
    PACKED_2,
    SCALE_2,
    BIAS_2,
    N_2, /* 0: no second weight; the three before are None */
    RESIDUAL,
    NORM_WEIGHT,
    NORM_BIAS,
    EPS,
    NORM,
    N_ARGS,
};

/* Floats, or None; false where it is something else. */
static bool read_floats(PyObject *tensor, int64_t n_elements, ptac_view *view)
{
    return tensor == Py_None || ptac_int8_read(tensor, AT_DTYPE_F32, n_elements, view);
}

/* A weight, its scales and its bias, at args and at inputs. */
static ptac_reason read_weight(PyObject *const *args, int64_t n, int64_t k,
                               ptac_view *inputs)
{
    const ptac_packed_shape shape = {.n = n, .c = k, .taps = 1, .groups = 1};

    if (!ptac_packed_is_sound(&shape) ||
        !ptac_int8_read(args[0], AT_DTYPE_I8, ptac_packed_bytes(&shape), &inputs[0]) ||
        !ptac_int8_read(args[1], AT_DTYPE_F32, n, &inputs[1]))
        return PTAC_ARGUMENT;
    return read_floats(args[2], n, &inputs[2]) ? PTAC_TAKE : PTAC_DTYPE;
}

static bool read_numbers(PyObject *const *args, ptac_int8_sublayer *p)
{
    int64_t act, norm;

    if (!ptac_int8_size(args[N], 1, &p->n) || !ptac_int8_size(args[K], 1, &p->k) ||
        !ptac_int8_size(args[N_2], 0, &p->n_2) ||
        !ptac_int8_size(args[ACTIVATION], 0, &act) ||
        !ptac_int8_size(args[NORM], 0, &norm))
        return false;
    p->eps = (float)PyFloat_AsDouble(args[EPS]);
    p->act = (ptac_act)act;
    p->norm = (ptac_sublayer_norm)norm;
    return !PyErr_Occurred() && act <= PTAC_ACT_GELU && norm < PTAC_SUBLAYER_N_NORMS;
}

/* x as rows, copied where it has gaps. */
static ptac_reason read_x(at_tensor tensor, ptac_quantized_args *read)
{
    ptac_int8_sublayer *p = &read->params.sublayer;
    ptac_view *view = &read->call.inputs[PTAC_SUBLAYER_X];
    const ptac_reason why = ptac_int8_rows(tensor, p->k, view, &p->m);

    if (why)
        return why;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE
                                         : ptac_int8_copy(tensor, false, read);
}

static ptac_reason read_sublayer(PyObject *const *args, ptac_quantized_args *read)
{
    ptac_int8_sublayer *p = &read->params.sublayer;
    ptac_view *in = read->call.inputs;
    ptac_reason why;
    int64_t width;

    if (!read_numbers(args, p))
        return PTAC_ARGUMENT;
    if (!ptac_is_plain(args[X]))
        return PTAC_SUBCLASS;
    why = read_weight(args + PACKED, p->n, p->k, &in[PTAC_SUBLAYER_PACKED]);
    if (!why && p->n_2)
        why = read_weight(args + PACKED_2, p->n_2, p->n, &in[PTAC_SUBLAYER_SECOND]);
    if (!why)
        why = read_x(ptac_borrow(args[X]), read);
    if (why)
        return why;
    read->call.n_inputs = PTAC_SUBLAYER_N_INPUTS;
    width = ptac_sublayer_width(p);
    if (!read_floats(args[RESIDUAL], p->m * width, &in[PTAC_SUBLAYER_RESIDUAL]))
        return PTAC_LAYOUT;
    if (p->norm == PTAC_SUBLAYER_NORM_FIRST)
        width = p->k;
    return read_floats(args[NORM_WEIGHT], width, &in[PTAC_SUBLAYER_NORM_WEIGHT]) &&
                   read_floats(args[NORM_BIAS], width, &in[PTAC_SUBLAYER_NORM_BIAS])
               ? PTAC_TAKE
               : PTAC_DTYPE;
}

/* y has x's sizes but for the last. */
static at_tensor new_rows(const ptac_quantized_args *read)
{
    const ptac_view *x = &read->call.inputs[PTAC_SUBLAYER_X];

    return ptac_int8_new_rows(x, x->n_dims - 1,
                              ptac_sublayer_width(&read->params.sublayer));
}

static const ptac_quantized_op sublayer = {
    .op = PTAC_OP_INT8_SUBLAYER,
    .n_args = N_ARGS,
    .args = "x, packed, scale, bias, n, k, activation, packed_2, scale_2, bias_2, n_2, "
            "residual, norm_weight, norm_bias, eps, norm",
    .bias = BIAS,
    .read = read_sublayer,
    .new_output = new_rows,
};

/* Whether a gradient is asked of a tensor; -1 with an exception set. */
static int wants_gradient(PyObject *const *args, Py_ssize_t n_args)
{
    static const int places[] = {X, BIAS, BIAS_2, RESIDUAL, NORM_WEIGHT, NORM_BIAS};
    int wants = 0;

    if (n_args != N_ARGS || !T.aoti_torch_grad_mode_is_enabled())
        return 0;
    for (size_t i = 0; i < sizeof places / sizeof *places && wants == 0; i++)
        if (ptac_is_plain(args[places[i]]))
            wants = ptac_requires_grad(args[places[i]]);
    return wants;
}

/* int8_sublayer(...) -> y or None; all that it refuses is counted */
PTAC_FASTCALL(int8_sublayer)
{
    const int wants = wants_gradient(args, n_args);
    const ptac_reason why = wants ? PTAC_GRAD : ptac_why_not_lean();

    if (wants < 0)
        return NULL;
    if (why) {
        ptac_refuse(PTAC_OP_INT8_SUBLAYER, why);
        Py_RETURN_NONE;
    }
    return ptac_quantized_call(&sublayer, args, n_args, true);
}
