/*
 * dropout_add.c - the call path to dropout_add, on CUDA, and to its gradient.
 *
 * Each function returns None where torch's own operators have to do the call. On the
 * CPU it is random/dropout.c's.
 */
#include "bind/python/callpath/lean_call.h"

#include "bind/torch/cuda.h"
#include "ops/random/dropout.h"

/* An unsigned number that a generator of torch's tells. */
static bool ask(PyObject *generator, const char *method, unsigned long long *number)
{
    PTAC_OWNED PyObject *found = PyObject_CallMethod(generator, method, NULL);

    *number = found ? PyLong_AsUnsignedLongLongMask(found) : 0;
    return !PyErr_Occurred();
}

static bool set_offset(PyObject *generator, unsigned long long offset)
{
    PTAC_OWNED PyObject *done =
        PyObject_CallMethod(generator, "set_offset", "K", offset);

    return done;
}

/*
 * Take the numbers of one call from the generator, as torch's own kernel would: nothing
 * else of Python's comes between.
 */
static bool draw(PyObject *generator, ptac_dropout *p, int64_t n)
{
    unsigned long long *seed = &p->random.seed.value, *offset = &p->random.offset.value;

    return ask(generator, "initial_seed", seed) &&
           ask(generator, "get_offset", offset) &&
           set_offset(generator,
                      *offset + (unsigned long long)ptac_dropout_increment(p, n));
}

static bool make_dropout_add(ptac_lean_call *m)
{
    const ptac_view *x = &m->call.inputs[PTAC_DROPOUT_X];

    return ptac_lean_output(m, 0, PTAC_DROPOUT_Y, ptac_torch_dtype(x->dtype), x->n_dims,
                            x->sizes) &&
           ptac_lean_output(m, 1, PTAC_DROPOUT_MASK, AT_DTYPE_BOOL, x->n_dims,
                            x->sizes);
}

static ptac_reason read_dropout(const ptac_call *call, ptac_dropout *p)
{
    const ptac_view *x = &call->inputs[PTAC_DROPOUT_X],
                    *residual = &call->inputs[PTAC_DROPOUT_RESIDUAL];

    if (x->dtype != PTAC_F32 && x->dtype != PTAC_BF16 && x->dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (residual->dtype != x->dtype ||
        !ptac_view_has_sizes(residual, x->n_dims, x->sizes) || !(p->keep > 0))
        return PTAC_ARGUMENT;
    p->vector = ptac_dropout_vector(x, x->dtype == PTAC_F32 ? 4 : 2);
    p->n_processors =
        ptac_cuda_attribute(call->device, PTAC_CU_ATTRIBUTE_MULTIPROCESSORS);
    p->n_threads = ptac_cuda_attribute(call->device, PTAC_CU_ATTRIBUTE_THREADS);
    return PTAC_TAKE;
}

/*
 * dropout_add(x, residual, p, generator) -> (y, mask) or None: generator is that of x's
 * device. Not while a graph is captured: it cannot be asked for its offset then.
 */
PTAC_ARGS(dropout_add, 4)
{
    static const int places[] = {PTAC_DROPOUT_X, PTAC_DROPOUT_RESIDUAL};
    ptac_dropout p = {.keep = 1 - PyFloat_AsDouble(args[2])};
    ptac_lean_call m = {.call = {.op = PTAC_OP_DROPOUT_ADD,
                                 .on = PTAC_ON_CUDA,
                                 .n_inputs = PTAC_DROPOUT_N_INPUTS,
                                 .n_outputs = PTAC_DROPOUT_N_OUTPUTS,
                                 .params = &p},
                        .n_results = 2};
    const ptac_kernel *row;
    PyObject *found = NULL;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (PyErr_Occurred() || ptac_is_off(m.call.op))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    why = ptac_lean_read(args, places, 2, &m.call);
    if (!why && m.call.on != PTAC_ON_CUDA)
        why = PTAC_DEVICE;
    if (!why)
        why = read_dropout(&m.call, &p);
    row = PyErr_Occurred() ? NULL : ptac_lean_admit(&m.call, m.from, why);
    if (row && draw(args[3], &p, m.call.inputs[0].n_elements)) {
        if (PTAC_UNLOCKED(ptac_lean_make_and_run(row, &m, make_dropout_add)))
            found = ptac_lean_results(&m);
        else if (set_offset(args[3], p.random.offset.value))
            found = Py_NewRef(Py_None);
    } else if (!PyErr_Occurred()) {
        found = Py_NewRef(Py_None);
    }
    at_drop_tensors(&m.made);
    return found;
}

static bool make_dropout_gradient(ptac_lean_call *m)
{
    const ptac_view *grad = &m->call.inputs[0];

    return ptac_lean_output(m, 0, 0, ptac_torch_dtype(grad->dtype), grad->n_dims,
                            grad->sizes);
}

/* dropout_backward(grad, mask, scale) -> (grad of x,) or None; mask is of bool */
PTAC_ARGS(dropout_backward, 3)
{
    static const int places[] = {0, 1};
    ptac_dropout_backward p = {.scale = PyFloat_AsDouble(args[2])};
    ptac_lean_call m = {.call = {.op = PTAC_OP_DROPOUT_BACKWARD,
                                 .on = PTAC_ON_CUDA,
                                 .n_inputs = 2,
                                 .n_outputs = 1,
                                 .params = &p},
                        .n_results = 1};
    const ptac_view *in = m.call.inputs;
    int32_t dtype = -1;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (PyErr_Occurred() || ptac_is_off(m.call.op))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    why = ptac_lean_read(args, places, 2, &m.call);
    if (!why) {
        T.aoti_torch_get_dtype(ptac_borrow(args[1]), &dtype);
        if (dtype != AT_DTYPE_BOOL || in[0].dtype >= PTAC_N_DTYPES ||
            !ptac_view_has_sizes(&in[1], in[0].n_dims, in[0].sizes))
            why = PTAC_ARGUMENT;
    }
    return ptac_lean_finish(&m, why, make_dropout_gradient);
}
