/*
 * learning_rate.c - what the learning rate is adapted by: sums over gradients, and the
 * policy on numbers that Python keeps.
 */
#include "bind/python/module/pybind.h"

#include "ops/learning_rate/descent.h"
#include "ops/learning_rate/learning_rate.h"

#include <string.h>

/* The tensor's elements where it lies as the gradient does; NULL where it does not. */
static const void *elements_like(PyObject *tensor, const ptac_view *grad)
{
    ptac_view view;

    if (!ptac_is_plain(tensor))
        return NULL;
    ptac_view_of(ptac_borrow(tensor), &view);
    return view.dtype == grad->dtype && ptac_view_is_alike(&view, grad) ? view.data
                                                                        : NULL;
}

/* Items i of the lists; false where the tensors are not plain and alike. */
static bool take_item(ptac_descent *item, PyObject *const *lists, Py_ssize_t i)
{
    PyObject *grad = PyList_GetItem(lists[0], i);
    const void **homes[] = {&item->average, &item->square};
    ptac_view view;

    if (!ptac_is_plain(grad))
        return false;
    ptac_view_of(ptac_borrow(grad), &view);
    if ((view.dtype != PTAC_F32 && view.dtype != PTAC_F64) ||
        !ptac_view_is_dense(&view))
        return false;
    item->n = view.n_elements;
    item->is_double = view.dtype == PTAC_F64;
    item->grad = view.data;
    for (int k = 0; k < 2; k++) {
        if (lists[k + 1] == Py_None)
            continue;
        *homes[k] = elements_like(PyList_GetItem(lists[k + 1], i), &view);
        if (!*homes[k] && item->n)
            return false;
    }
    return true;
}

/* An own list: other threads may change that one while the GIL is not held. */
static PyObject *copied(PyObject *list)
{
    return list == Py_None ? Py_NewRef(Py_None)
                           : PyList_GetSlice(list, 0, PyList_Size(list));
}

static bool is_list_or_none(PyObject *object, Py_ssize_t n)
{
    return object == Py_None || (PyList_CheckExact(object) && PyList_Size(object) == n);
}

/*
 * descent_sum(grads, averages, squares, scale, numbers): the sum over the tensors of
 * gradient times direction, see ops/learning_rate/descent.h. None where they are not
 * plain and dense, on the CPU, of float32 or float64, each alike. numbers is
 * (keep_average, add_average, keep_square, add_square, eps), or None for plain squares.
 */
PTAC_VARARGS(descent_sum)
{
    ptac_descent like = {.add_average = 1};
    PyObject *lists[3], *numbers;

    if (!PyArg_ParseTuple(args, "O!OOdO", &PyList_Type, &lists[0], &lists[1], &lists[2],
                          &like.scale, &numbers))
        return NULL;
    like.is_scaled = numbers != Py_None;
    if (like.is_scaled && !PyTuple_Check(numbers))
        return PyErr_Format(PyExc_TypeError, "numbers are a tuple or None");
    /* Reading a number may run code of the user's, which may change the lists. */
    if (like.is_scaled &&
        !PyArg_ParseTuple(numbers, "ddddd", &like.keep_average, &like.add_average,
                          &like.keep_square, &like.add_square, &like.eps))
        return NULL;

    const Py_ssize_t n = PyList_Size(lists[0]);

    if (!is_list_or_none(lists[1], n) || !is_list_or_none(lists[2], n))
        return PyErr_Format(PyExc_ValueError, "lists of the same length, or None");

    PTAC_OWNED PyObject *grads = copied(lists[0]), *averages = copied(lists[1]),
                        *squares = copied(lists[2]);
    PyObject *const held[] = {grads, averages, squares};
    PTAC_FREED ptac_descent *items = PyMem_Calloc((size_t)n + 1, sizeof *items);

    if (!grads || !averages || !squares || !items)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        items[i] = like;
        if (!take_item(&items[i], held, i))
            Py_RETURN_NONE;
    }

    PTAC_FREED double *partial =
        PyMem_Calloc((size_t)ptac_descent_blocks(items, n) + 1, sizeof *partial);

    return partial
               ? PyFloat_FromDouble(PTAC_UNLOCKED(ptac_descent_sum(items, n, partial)))
               : PyErr_NoMemory();
}

/* The next multiplier by numbers that Python keeps; without a loss, by three others. */
static PyObject *next(PyObject *state, const ptac_rate_input *in, const double *others)
{
    PyObject *multiplier = NULL;
    Py_buffer buffer;

    if (PyObject_GetBuffer(state, &buffer, PyBUF_WRITABLE | PyBUF_FORMAT) < 0)
        return NULL;
    if (buffer.len != sizeof(ptac_rate) || !buffer.format ||
        strcmp(buffer.format, "d") != 0)
        PyErr_Format(PyExc_ValueError, "the state of a learning rate is %d doubles",
                     (int)PTAC_RATE_NUMBERS);
    else
        multiplier =
            PyFloat_FromDouble(others ? ptac_rate_next_free(buffer.buf, others[0],
                                                            others[1], others[2], in)
                                      : ptac_rate_next(buffer.buf, in));
    PyBuffer_Release(&buffer);
    return multiplier;
}

/*
 * rate_next(state, loss, descent, most_descent, known_floor, most_exponent,
 * most_growth, falls_by_evidence) -> the multiplier for the coming step; state, an
 * array of doubles, is brought up to date.
 */
PTAC_VARARGS(rate_next)
{
    ptac_rate_input in;
    PyObject *state;
    int falls_by_evidence;

    if (!PyArg_ParseTuple(args, "Oddddddp", &state, &in.loss, &in.descent,
                          &in.most_descent, &in.known_floor, &in.most_exponent,
                          &in.most_growth, &falls_by_evidence))
        return NULL;
    in.falls_by_evidence = falls_by_evidence;
    return next(state, &in, NULL);
}

/*
 * rate_next_free(state, squares, distance, lr, most_exponent, most_growth) -> the same
 * where there is no loss to go by.
 */
PTAC_VARARGS(rate_next_free)
{
    ptac_rate_input in = {0};
    PyObject *state;
    double others[3];

    if (!PyArg_ParseTuple(args, "Oddddd", &state, &others[0], &others[1], &others[2],
                          &in.most_exponent, &in.most_growth))
        return NULL;
    return next(state, &in, others);
}

static const char *const rate_names[] = {
#define X(name) #name,
    PTAC_RATE_FIELDS(X)
#undef X
};

/* rate_fields(): names of the numbers in a state, in order. */
PTAC_LIST(rate_fields, i < PTAC_RATE_NUMBERS, PyUnicode_FromString(rate_names[i]))
