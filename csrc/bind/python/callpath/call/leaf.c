/*
 * leaf.c - calling leaves.
 */
#include "bind/python/callpath/call/leaf.h"

#include "bind/python/callpath/chain/chain.h"
#include "bind/python/callpath/lean.h"

enum {
    MOST_ARGUMENTS = 10, /* behind the input */
    MOST_REQUIRED = 4,
};

/* Where an argument comes from. */
typedef enum source {
    ATTRIBUTE, /* of the module */
    GIVEN,     /* the same, a number or a tuple without None in it */
    PARAMETER,
    BUFFER,
    SETTING, /* what a function says at the moment */
    N_SOURCES,
} source;

typedef struct argument {
    source from;
    PyObject *what; /* a name, or the function */
} argument;

typedef struct leaf {
    PyObject *function; /* NULL: no leaf; None: it gives its input, or is special */
    PyObject *keywords; /* names of the last arguments, a tuple, or NULL */
    argument arguments[MOST_ARGUMENTS];
    int n_arguments;
    PyObject *required[MOST_REQUIRED][2]; /* an attribute, and what it has to be */
    int n_required;
    int64_t n_called;
} leaf;

static leaf leaves[PTAC_N_MODULES];

static PyObject *tensor_of(PyObject *attributes, const argument *a)
{
    PyObject *tensor = a->from == PARAMETER ? ptac_module_parameter(attributes, a->what)
                                            : ptac_module_buffer(attributes, a->what);

    if (tensor && tensor != Py_None && !ptac_is_tensor(tensor))
        Py_CLEAR(tensor);
    return tensor;
}

/* A number, or one for each of the last dimensions of x, which has more. */
static bool is_given(PyObject *value, PyObject *x)
{
    const bool is_tuple = PyTuple_CheckExact(value);
    int64_t n_dims = 0;

    if (is_tuple && (T.aoti_torch_get_dim(ptac_borrow(x), &n_dims) ||
                     n_dims <= PyTuple_Size(value)))
        return false;
    for (Py_ssize_t i = 0; is_tuple && i < PyTuple_Size(value); i++)
        if (PyTuple_GetItem(value, i) == Py_None)
            return false;
    return is_tuple || PyLong_CheckExact(value);
}

/* Owned; NULL, maybe with an exception set, where forward has to see to it. */
static PyObject *value_of(PyObject *attributes, const argument *a, PyObject *x)
{
    PyObject *found;

    switch (a->from) {
    case ATTRIBUTE:
    case GIVEN:
        found = PyDict_GetItemWithError(attributes, a->what);
        if (found && a->from == GIVEN && !is_given(found, x))
            return NULL;
        Py_XINCREF(found);
        return found;
    case PARAMETER:
    case BUFFER:
        return tensor_of(attributes, a);
    default:
        return PyObject_CallNoArgs(a->what);
    }
}

static bool is_required(PyObject *attributes, PyObject *const required[2])
{
    PyObject *value = PyDict_GetItemWithError(attributes, required[0]);

    if (value == required[1])
        return true;
    return value && PyUnicode_CheckExact(value) && PyUnicode_CheckExact(required[1]) &&
           PyUnicode_Compare(value, required[1]) == 0;
}

/*
 * What goes before torch's function, of which args are the arguments: None where that
 * is to be called then, NotImplemented where forward is.
 */
typedef PyObject *(*try_first)(ptac_module_kind kind, PyObject *attributes,
                               PyObject *const *args);

/* linear_act where a row takes it; args are x, weight and bias. */
static PyObject *try_linear(ptac_module_kind kind, PyObject *attributes,
                            PyObject *const *args)
{
    (void)kind;
    (void)attributes;
    return ptac_try_linear(args, PTAC_ACT_NONE, true);
}

/* What the class takes, and in training more than one number a channel. */
static bool can_be_normalised(ptac_module_kind kind, PyObject *x, bool is_training)
{
    int64_t n_dims = 0, *sizes = NULL, n = 1;
    bool is_its;

    if (T.aoti_torch_get_dim(ptac_borrow(x), &n_dims) ||
        T.aoti_torch_get_sizes(ptac_borrow(x), &sizes))
        return false;
    switch (kind) {
    case PTAC_MODULE_BATCH_NORM1D:
        is_its = n_dims == 2 || n_dims == 3;
        break;
    case PTAC_MODULE_BATCH_NORM2D:
        is_its = n_dims == 4;
        break;
    default:
        is_its = n_dims == 5;
    }
    for (int64_t i = 0; is_its && i < n_dims; i++)
        n *= i == 1 ? 1 : sizes[i];
    return is_its && !(is_training && n == 1);
}

/*
 * A BatchNorm with running statistics counts the batches that it is trained on; args
 * are x, weight, bias, mean, variance, training, momentum, eps and a setting.
 */
static PyObject *count_batch(ptac_module_kind kind, PyObject *attributes,
                             PyObject *const *args)
{
    enum { MEAN = 3, VARIANCE, TRAINING, MOMENTUM, EPS };
    const bool is_training = args[TRAINING] == Py_True;
    PTAC_OWNED PyObject *counter =
        ptac_module_buffer(attributes, ptac_names.num_batches_tracked);
    PTAC_OWNED PyObject *one = NULL;
    PyObject *counted;

    if ((!is_training && args[TRAINING] != Py_False) || !counter ||
        !ptac_is_tensor(counter) || args[MEAN] == Py_None ||
        args[VARIANCE] == Py_None || !PyFloat_CheckExact(args[MOMENTUM]) ||
        !PyFloat_CheckExact(args[EPS]) || !(PyFloat_AsDouble(args[EPS]) > 0) ||
        !can_be_normalised(kind, args[0], is_training))
        return Py_NewRef(Py_NotImplemented);
    if (!is_training)
        Py_RETURN_NONE;
    one = PyLong_FromLong(1);
    counted = one ? ptac_vectorcall_method(ptac_names.add_,
                                           (PyObject *[]){counter, one}, 2, NULL)
                  : NULL;
    Py_XDECREF(counted);
    return counted ? Py_NewRef(Py_None) : NULL;
}

static const try_first goes_first[PTAC_N_MODULES] = {
    [PTAC_MODULE_LINEAR] = try_linear,
    [PTAC_MODULE_BATCH_NORM1D] = count_batch,
    [PTAC_MODULE_BATCH_NORM2D] = count_batch,
    [PTAC_MODULE_BATCH_NORM3D] = count_batch,
};

/* Torch's function with the arguments, n of them behind x, or what goes before it. */
static PyObject *call_with(ptac_module_kind kind, PyObject *attributes, PyObject **args,
                           size_t n)
{
    leaf *l = &leaves[kind];
    const size_t n_keywords = l->keywords ? (size_t)PyTuple_Size(l->keywords) : 0;
    PyObject *before = goes_first[kind] ? goes_first[kind](kind, attributes, args)
                                        : Py_NewRef(Py_None);

    if (before != Py_None && before != Py_NotImplemented)
        return before;
    Py_DECREF(before);
    if (before == Py_NotImplemented)
        Py_RETURN_NONE;
    l->n_called++; /* under the interpreter's lock */
    return ptac_vectorcall(l->function, args,
                           (1 + n - n_keywords) | ptac_vectorcall_offset, l->keywords);
}

static PyObject *call(ptac_module_kind kind, PyObject *attributes, PyObject *x)
{
    const leaf *l = &leaves[kind];
    PyObject *args[2 + MOST_ARGUMENTS] = {NULL, x}; /* the first is the callee's */
    PyObject *result = NULL;
    int n = 0;

    while (n < l->n_arguments &&
           (args[2 + n] = value_of(attributes, &l->arguments[n], x)) != NULL)
        n++;
    if (n == l->n_arguments)
        result = call_with(kind, attributes, args + 1, (size_t)n);
    else if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
    while (n > 0)
        Py_DECREF(args[1 + n--]);
    return result;
}

static PyObject *call_sequential(PyObject *attributes, PyObject *x)
{
    PyObject *children = PyDict_GetItemWithError(attributes, ptac_names._modules);
    PyObject *result;

    if (!children || !PyDict_CheckExact(children))
        Py_RETURN_NONE;
    if (Py_EnterRecursiveCall(" in nn.Sequential"))
        return NULL;
    Py_INCREF(children);
    result = ptac_sequential(children, x);
    Py_DECREF(children);
    Py_LeaveRecursiveCall();
    return result;
}

/* What a Dropout that drops nothing gives, which of a nested tensor is a copy. */
static PyObject *hand_on(PyObject *attributes, PyObject *x)
{
    const bool is_on_cuda = ptac_is_plain_on_cuda(x);

    if (!(is_on_cuda || ptac_is_plain(x)) || !ptac_dropout_is_idle(attributes) ||
        ptac_why_not_lean_on(is_on_cuda ? PTAC_ON_CUDA : PTAC_ON_CPU))
        Py_RETURN_NONE;
    leaves[PTAC_MODULE_DROPOUT].n_called++;
    return Py_NewRef(x);
}

PyObject *ptac_leaf_call(ptac_module_kind kind, PyObject *attributes, PyObject *x)
{
    leaf *l = &leaves[kind];

    if (!l->function || ptac_has_function_mode())
        Py_RETURN_NONE;
    if (kind == PTAC_MODULE_SEQUENTIAL)
        return call_sequential(attributes, x);
    if (!ptac_is_tensor(x))
        Py_RETURN_NONE;
    if (kind == PTAC_MODULE_DROPOUT)
        return hand_on(attributes, x);
    for (int i = 0; i < l->n_required; i++)
        if (!is_required(attributes, l->required[i]))
            Py_RETURN_NONE;
    if (l->function == Py_None) {
        l->n_called++;
        return Py_NewRef(x);
    }
    return call(kind, attributes, x);
}

static void forget(leaf *l)
{
    Py_CLEAR(l->function);
    Py_CLEAR(l->keywords);
    while (l->n_arguments > 0) {
        PyObject **what = &l->arguments[--l->n_arguments].what;

        Py_CLEAR(*what); /* a macro: it would count twice */
    }
    while (l->n_required > 0) {
        PyObject **pair = l->required[--l->n_required];

        Py_CLEAR(pair[0]);
        Py_CLEAR(pair[1]);
    }
}

static PyObject *interned(PyObject *name)
{
    Py_INCREF(name);
    if (PyUnicode_CheckExact(name))
        PyUnicode_InternInPlace(&name);
    return name;
}

static bool read_argument(PyObject *entry, leaf *l)
{
    PyObject *what;
    int from;

    if (!PyArg_ParseTuple(entry, "iO", &from, &what))
        return false;
    if (from < 0 || from >= N_SOURCES || l->n_arguments == MOST_ARGUMENTS)
        return PyErr_Format(PyExc_ValueError, "no such argument");
    what = from == SETTING ? Py_NewRef(what) : interned(what);
    l->arguments[l->n_arguments++] = (argument){(source)from, what};
    return true;
}

static bool read_required(PyObject *entry, leaf *l)
{
    PyObject *name, *value;

    if (!PyArg_ParseTuple(entry, "UO", &name, &value))
        return false;
    if (l->n_required == MOST_REQUIRED)
        return PyErr_Format(PyExc_ValueError, "too much is required");
    l->required[l->n_required][0] = interned(name);
    l->required[l->n_required++][1] = Py_NewRef(value);
    return true;
}

static bool read_all(PyObject *list, bool (*read)(PyObject *, leaf *), leaf *l)
{
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++)
        if (!read(PyList_GetItem(list, i), l))
            return false;
    return true;
}

static bool read_leaf(PyObject *entry)
{
    PyObject *name, *function, *arguments, *keywords, *required;
    ptac_module_kind kind;
    leaf *l;

    if (!PyArg_ParseTuple(entry, "UOO!O!O!", &name, &function, &PyList_Type, &arguments,
                          &PyTuple_Type, &keywords, &PyList_Type, &required))
        return false;
    kind = ptac_module_kind_named(name);
    if (kind == PTAC_N_MODULES)
        return false;
    l = &leaves[kind];
    if (!read_all(arguments, read_argument, l) ||
        !read_all(required, read_required, l)) {
        forget(l);
        return false;
    }
    if (PyTuple_Size(keywords) > l->n_arguments) {
        forget(l);
        return PyErr_Format(PyExc_ValueError, "more names than arguments");
    }
    if (PyTuple_Size(keywords) > 0)
        l->keywords = Py_NewRef(keywords);
    l->function = Py_NewRef(function); /* a leaf from here on */
    return true;
}

/*
 * leaves_install([(kind, function or None, [(source, what)], names of the last ones,
 * [(attribute, value)])]). Takes the place of what was installed before; an empty list
 * leaves no leaf.
 */
PTAC_O(leaves_install, entries)
{
    if (!PyList_Check(entries))
        return PyErr_Format(PyExc_TypeError, "leaves are a list");
    for (int i = 0; i < PTAC_N_MODULES; i++)
        forget(&leaves[i]);
    for (Py_ssize_t i = 0; i < PyList_Size(entries); i++)
        if (!read_leaf(PyList_GetItem(entries, i)))
            return NULL;
    Py_RETURN_NONE;
}

/* leaves_called() -> how many calls leaves have taken since the process began */
PTAC_NOARGS(leaves_called)
{
    int64_t n = 0;

    for (int i = 0; i < PTAC_N_MODULES; i++)
        n += leaves[i].n_called;
    return PyLong_FromLongLong(n);
}
