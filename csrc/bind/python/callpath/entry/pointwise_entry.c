/*
 * pointwise_entry.c - torch.relu, torch.add, x + y and their like, by small_pointwise.
 */
#include "bind/python/callpath/entry/entry.h"
#include "bind/python/callpath/site/window.h"
#include "bind/python/callpath/entry/small.h"
#include "bind/python/interpreter/type_version.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define OP PTAC_OP_SMALL_POINTWISE

/* Contiguous floats, not too many. */
static ptac_reason read_small(PyObject *tensor, ptac_view *view)
{
    ptac_view_of(ptac_borrow(tensor), view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_elements > PTAC_SMALL_MOST || view->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

/* A number as torch takes it into a tensor of floats. */
static bool read_number(PyObject *object, float *number)
{
    if (PyLong_CheckExact(object))
        *number = (float)PyLong_AsLongLong(object);
    else if (PyFloat_CheckExact(object) && fabs(PyFloat_AsDouble(object)) <= FLT_MAX)
        *number = (float)PyFloat_AsDouble(object);
    else
        return false;
    if (!PyErr_Occurred())
        return true;
    PyErr_Clear(); /* of an int beyond 64 bits */
    return false;
}

/* As torch lays out a new tensor: also where there is but one element. */
static bool is_as_new(const ptac_view *x)
{
    int64_t stride = 1;

    for (int i = x->n_dims - 1; i >= 0; i--) {
        if (x->strides[i] != stride)
            return false;
        stride *= x->sizes[i];
    }
    return true;
}

static bool is_open(void)
{
    return ptac_chooser_gate(OP) == PTAC_TAKE;
}

static PyObject *refused(ptac_reason why)
{
    if (why)
        ptac_refuse(OP, why);
    return NULL;
}

/* Of inputs that have been read, or why they cannot be. */
static PyObject *run(ptac_call *call, ptac_reason why)
{
    const ptac_view *x = &call->inputs[0];
    PyObject *result = why ? NULL : ptac_entry_run(call, x->n_dims, x->sizes, &why);

    return result ? result : refused(why);
}

static PyObject *run_relu(PyObject *x)
{
    ptac_small p = {.kind = PTAC_SMALL_RELU};
    ptac_call call;

    ptac_small_begin(&call, &p);
    return run(&call, read_small(x, &call.inputs[0]));
}

static PyObject *relu_of(PyObject *x)
{
    return is_open() ? run_relu(x) : NULL;
}

/* The second is a tensor of the first one's sizes. */
static ptac_reason read_second(PyObject *tensor, ptac_call *call)
{
    const ptac_view *x = &call->inputs[0];
    const ptac_reason why = read_small(tensor, &call->inputs[1]);

    call->n_inputs = 2;
    if (why)
        return why;
    return ptac_view_has_sizes(&call->inputs[1], x->n_dims, x->sizes) ? PTAC_TAKE
                                                                      : PTAC_ARGUMENT;
}

static PyObject *run_tensors(ptac_small_kind kind, PyObject *x, PyObject *y)
{
    ptac_small p = {.kind = kind};
    ptac_call call;
    ptac_reason why;

    ptac_small_begin(&call, &p);
    why = read_small(x, &call.inputs[0]);
    return run(&call, why ? why : read_second(y, &call));
}

static PyObject *run_number(ptac_small_kind kind, PyObject *x, float number)
{
    ptac_small p = {.kind = kind + PTAC_SMALL_NUMBER, .number = number};
    ptac_call call;
    ptac_reason why;

    ptac_small_begin(&call, &p);
    why = read_small(x, &call.inputs[0]);
    if (!why && !is_as_new(&call.inputs[0]))
        why = PTAC_LAYOUT; /* which stock's result has, too */
    return run(&call, why);
}

static PyObject *try_both(ptac_small_kind kind, PyObject *x, PyObject *y)
{
    float number;
    ptac_reason why;

    if (!is_open())
        return NULL;
    if (read_number(y, &number))
        return run_number(kind, x, number);
    why = ptac_entry_reason(y);
    if (why == PTAC_SUBCLASS) /* it may be anything */
        return NULL;
    return why ? refused(why) : run_tensors(kind, x, y);
}

static PyObject *try_relu(PyObject *const *args, Py_ssize_t n)
{
    return n == 1 ? relu_of(args[0]) : NULL;
}

/* relu_(x) is not computed here, but ahead. */
static PyObject *try_nothing(PyObject *const *args, Py_ssize_t n)
{
    (void)args;
    (void)n;
    return NULL;
}

static PyObject *take(PyObject *const *args, Py_ssize_t n)
{
    return ptac_n_windows > 0 && n == 1 ? ptac_window_take_function(args[0]) : NULL;
}

/* Of an operator, whose number is on either side. */
static PyObject *take_operator(PyObject *const *args, Py_ssize_t n)
{
    return ptac_n_windows > 0 && n == 2 ? ptac_window_take(args[0]) : NULL;
}

PTAC_WINDOW_ENTRY(relu, "torch.relu", OP, take, try_relu)
PTAC_WINDOW_ENTRY(relu_in_place, "torch.relu_", PTAC_N_OPS, take, try_nothing)
PTAC_ENTRY(relu_method, "Tensor.relu", OP, try_relu)

/* torch.add(x, y), x.add(y) and x + y. */
#define OF_BOTH(name, kind, sign)                                                      \
    static PyObject *try_##name(PyObject *const *args, Py_ssize_t n)                   \
    {                                                                                  \
        return n == 2 ? try_both(kind, args[0], args[1]) : NULL;                       \
    }                                                                                  \
    PTAC_ENTRY(name, "torch." #name, OP, try_##name)                                   \
    PTAC_ENTRY(name##_method, "Tensor." #name, OP, try_##name)                         \
    PTAC_WINDOW_ENTRY(name##_operator, "Tensor.__" #sign "__", OP, take_operator,      \
                      try_##name)

OF_BOTH(add, PTAC_SMALL_ADD, add)
OF_BOTH(sub, PTAC_SMALL_SUB, sub)
OF_BOTH(mul, PTAC_SMALL_MUL, mul)
OF_BOTH(div, PTAC_SMALL_DIV, truediv)
/* y + x, where y is a number, is x.__radd__(y): the same sum. */
PTAC_WINDOW_ENTRY(add_turned, "Tensor.__radd__", OP, take_operator, try_add)
PTAC_WINDOW_ENTRY(mul_turned, "Tensor.__rmul__", OP, take_operator, try_mul)

/* Operators of tensors, in the order of the planner's codes. */
static const struct operator_of {
    const ptac_entry *entry;
    ptac_small_kind kind;
} operators[] = {
    {&entry_add_operator, PTAC_SMALL_ADD_NUMBER},
    {&entry_sub_operator, PTAC_SMALL_SUB_NUMBER},
    {&entry_mul_operator, PTAC_SMALL_MUL_NUMBER},
    {&entry_div_operator, PTAC_SMALL_DIV_NUMBER},
    {&entry_add_turned, PTAC_SMALL_ADD_NUMBER},
    {&entry_mul_turned, PTAC_SMALL_MUL_NUMBER},
};

bool ptac_relu_is_torchs(void)
{
    return ptac_entry_is_torchs(&entry_relu) &&
           ptac_entry_is_torchs(&entry_relu_in_place);
}

/* What a class finds under the operator's name is what is entered. */
static bool is_found_in(PyTypeObject *type, const ptac_entry *entry, uint32_t *seen)
{
    const uint32_t version = ptac_type_version(type);
    PTAC_OWNED PyObject *name = NULL;

    if (version != 0 && version == *seen)
        return true;
    name = PyUnicode_FromString(strrchr(entry->name, '.') + 1);
    if (!name || !ptac_class_has(type, name, entry->callable)) {
        PyErr_Clear();
        return false;
    }
    *seen = ptac_type_version(type);
    return true;
}

bool ptac_small_of_operator(int code, PyTypeObject *type, PyObject *number,
                            ptac_small *small)
{
    static uint32_t seen[sizeof operators / sizeof *operators];
    const struct operator_of *o;

    if (code < 0 || (size_t)code >= sizeof operators / sizeof *operators)
        return false;
    o = &operators[code];
    if (!ptac_entry_is_torchs(o->entry) || !is_found_in(type, o->entry, &seen[code]))
        return false;
    small->kind = o->kind;
    return read_number(number, &small->number);
}
