/*
 * guards.c - modules, arguments and circumstances, compared with what they were.
 */
#include "bind/python/graph/guards.h"

#include "bind/python/callpath/module_guards.h"
#include "bind/python/interpreter/dict_version.h"
#include "bind/python/interpreter/type_version.h"
#include "bind/torch/rows/convolution/convolution.h"
#include "bind/torch/rows/gemm.h"

#include <string.h>

/* Objects of one type that are equal; of floats, to the bit. */
static bool equals(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (PyFloat_CheckExact(a) && PyFloat_CheckExact(b)) {
        const double x = PyFloat_AsDouble(a), y = PyFloat_AsDouble(b);

        return memcmp(&x, &y, sizeof x) == 0; /* zeros have signs, and NaN is itself */
    }
    return Py_TYPE(a) == Py_TYPE(b) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

/* --- modules ---------------------------------------------------------------------- */

static void clear_module(ptac_module_guard *guard)
{
    for (int i = 0; i < guard->n_children; i++)
        Py_CLEAR(guard->children[i]);
    PyMem_Free(guard->children);
    guard->children = NULL;
    guard->n_children = 0;
    if (guard->is_lent)
        guard->module = NULL;
    Py_CLEAR(guard->module);
    Py_CLEAR(guard->attributes);
    Py_CLEAR(guard->type);
}

void ptac_guards_clear(ptac_guards *guards)
{
    for (int i = 0; i < guards->n_modules; i++)
        clear_module(&guards->modules[i]);
    ptac_bindings_clear(&guards->bindings);
    PyMem_Free(guards->modules);
    *guards = (ptac_guards){0};
}

int ptac_guards_traverse(const ptac_guards *guards, visitproc visit, void *arg)
{
    for (int i = 0; i < guards->n_modules; i++) {
        const ptac_module_guard *guard = &guards->modules[i];

        if (!guard->is_lent)
            Py_VISIT(guard->module);
        Py_VISIT(guard->attributes);
        Py_VISIT(guard->type);
        for (int k = 0; k < guard->n_children; k++)
            Py_VISIT(guard->children[k]);
    }
    return ptac_bindings_traverse(&guards->bindings, visit, arg);
}

/*
 * Whether a dictionary is in the version in which it was last found as it should be; 0
 * is no version. What has been found so now is remembered by settle().
 */
static bool is_settled(PyObject *dict, uint64_t version)
{
    return version != 0 && ptac_dict_version(dict) == version;
}

static bool settle(PyObject *dict, uint64_t *version, bool is_so)
{
    *version = is_so ? ptac_dict_version(dict) : 0;
    return is_so;
}

/* The dictionary of submodules; NULL where it is none. */
static PyObject *children_of(PyObject *attributes)
{
    PyObject *children = PyDict_GetItemWithError(attributes, ptac_names._modules);

    return children && PyDict_Check(children) ? children : NULL;
}

static bool read_children(ptac_module_guard *guard, PyObject *children)
{
    const Py_ssize_t n = PyDict_Size(children);
    PyObject *name, *child;
    Py_ssize_t at = 0;

    guard->children = PyMem_Calloc((size_t)n + 1, sizeof *guard->children);
    while (guard->children && guard->n_children < n &&
           PyDict_Next(children, &at, &name, &child))
        guard->children[guard->n_children++] = Py_NewRef(child);
    return guard->children;
}

/* A dictionary of tensors, borrowed from the module's; or NULL. */
static PyObject *home_of(PyObject *attributes, int which)
{
    PyObject *const names[] = {ptac_names._parameters, ptac_names._buffers};
    PyObject *home = PyDict_GetItemWithError(attributes, names[which]);

    return home && PyDict_CheckExact(home) ? home : NULL;
}

/* Another number where a slot is added or removed, or becomes or ends as None. */
static uint64_t slots_of(PyObject *home)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    PyObject *name, *tensor;
    Py_ssize_t at = 0;
    uint64_t hash = 1;

    while (PyDict_Next(home, &at, &name, &tensor))
        hash = (hash + (uintptr_t)name + (tensor == Py_None)) * golden;
    return hash;
}

static bool read_module(ptac_module_guard *guard, PyObject *module, bool is_lent)
{
    PTAC_OWNED PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    PyObject *children = attributes ? children_of(attributes) : NULL;

    if (!children || !read_children(guard, children))
        return false;
    for (int i = 0; i < PTAC_N_HOMES; i++) {
        PyObject *home = home_of(attributes, i);

        if (!home)
            return false;
        guard->slots[i] = slots_of(home);
    }
    guard->module = is_lent ? module : Py_NewRef(module);
    guard->is_lent = is_lent;
    guard->attributes = PyDict_Copy(attributes);
    if (!guard->attributes)
        return false;
    guard->type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(module));
    ptac_class_has(guard->type, ptac_names.forward, NULL); /* which numbers the class */
    guard->version = ptac_type_version(guard->type);
    return true;
}

static bool read_modules(ptac_guards *guards, PyObject *modules, const PyObject *lent)
{
    const Py_ssize_t n = PyList_Size(modules);

    guards->modules = PyMem_Calloc((size_t)n + 1, sizeof *guards->modules);
    for (; guards->modules && guards->n_modules < n; guards->n_modules++) {
        ptac_module_guard *guard = &guards->modules[guards->n_modules];
        PyObject *module = PyList_GetItem(modules, guards->n_modules);

        if (read_module(guard, module, module == lent))
            continue;
        clear_module(guard);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a module of torch's is expected");
        return false;
    }
    return guards->modules || PyErr_NoMemory();
}

bool ptac_guards_read(ptac_guards *guards, PyObject *modules, PyObject *bindings,
                      const PyObject *lent)
{
    return read_modules(guards, modules, lent) &&
           ptac_bindings_read(&guards->bindings, bindings);
}

static bool children_are(ptac_module_guard *guard, PyObject *attributes)
{
    PyObject *children = children_of(attributes), *name, *child;
    bool are = children && PyDict_Size(children) == guard->n_children;
    Py_ssize_t at = 0;
    int i = 0;

    if (!are || is_settled(children, guard->children_version))
        return are;
    while (are && PyDict_Next(children, &at, &name, &child))
        are = child == guard->children[i++];
    return settle(children, &guard->children_version, are);
}

static bool is_none_or_plan(PyObject *compiled)
{
    return compiled == Py_None || ptac_is_planned(compiled);
}

/* An attribute that stands for another one: numbers that are equal, plans of ours. */
static bool attribute_is(PyObject *name, PyObject *now, PyObject *before)
{
    if (now == before)
        return true;
    if (name == ptac_names._compiled_call_impl)
        return is_none_or_plan(now);
    return (PyFloat_CheckExact(before) || PyLong_CheckExact(before) ||
            PyUnicode_CheckExact(before)) &&
           equals(now, before);
}

/* All attributes are those that it had; optimize() may have added its own. */
static bool attributes_are(ptac_module_guard *guard, PyObject *attributes)
{
    PyObject *name, *now;
    Py_ssize_t at = 0, n_found = 0;
    bool are = true;

    if (is_settled(attributes, guard->attributes_version))
        return true;
    while (are && PyDict_Next(attributes, &at, &name, &now)) {
        PyObject *before = PyDict_GetItemWithError(guard->attributes, name);

        n_found += before != NULL;
        are = before ? attribute_is(name, now, before)
                     : name == ptac_names._compiled_call_impl && is_none_or_plan(now);
    }
    are = are && n_found == PyDict_Size(guard->attributes);
    return settle(attributes, &guard->attributes_version, are);
}

/* Calling the module would do no more than call its forward, but for plans of ours. */
static bool is_quiet(PyObject *attributes)
{
    PyObject *const hooks[] = {ptac_names._forward_hooks, ptac_names._forward_pre_hooks,
                               ptac_names._backward_hooks,
                               ptac_names._backward_pre_hooks};
    PyObject *compiled =
        PyDict_GetItemWithError(attributes, ptac_names._compiled_call_impl);

    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        PyObject *hook = PyDict_GetItemWithError(attributes, hooks[i]);

        if (!hook || !PyDict_Check(hook) || PyDict_Size(hook) != 0)
            return false;
    }
    return !compiled || is_none_or_plan(compiled);
}

static bool homes_are(ptac_module_guard *guard, PyObject *attributes)
{
    for (int i = 0; i < PTAC_N_HOMES; i++) {
        PyObject *home = guard->homes[i] = home_of(attributes, i);

        if (!home || (!is_settled(home, guard->homes_version[i]) &&
                      !settle(home, &guard->homes_version[i],
                              slots_of(home) == guard->slots[i])))
            return false;
    }
    return true;
}

static bool module_is(ptac_module_guard *guard)
{
    PTAC_OWNED PyObject *attributes = PyObject_GenericGetDict(guard->module, NULL);

    return attributes && Py_TYPE(guard->module) == guard->type && guard->version != 0 &&
           guard->version == ptac_type_version(guard->type) &&
           attributes_are(guard, attributes) && is_quiet(attributes) &&
           homes_are(guard, attributes) && children_are(guard, attributes);
}

bool ptac_guards_hold(ptac_guards *guards)
{
    bool hold = true;

    for (int i = 0; hold && i < guards->n_modules; i++)
        hold = module_is(&guards->modules[i]);
    hold = hold && ptac_bindings_hold(&guards->bindings);
    PyErr_Clear();
    return hold;
}

/* --- circumstances ---------------------------------------------------------------- */

PTAC_LENT(get_default_dtype) /* torch's function */

static PyObject *default_dtype(void)
{
    PyObject *dtype = PyObject_CallNoArgs(get_default_dtype);

    Py_XDECREF(dtype); /* torch keeps it */
    PyErr_Clear();
    return dtype;
}

ptac_circumstances ptac_circumstances_now(void)
{
    return (ptac_circumstances){
        .generation = ptac_chooser_generation(),
        .n_threads = ptac_the_host.n_threads(),
        .with_grad = T.aoti_torch_grad_mode_is_enabled(),
        .is_lowered = ptac_products_are_lowered() || ptac_conv_precision_is_lowered(),
        .without_onednn = ptac_onednn_is_off(),
        .default_dtype = default_dtype(),
    };
}

bool ptac_circumstances_are(const ptac_circumstances *a, const ptac_circumstances *b)
{
    return a->generation == b->generation && a->n_threads == b->n_threads &&
           a->with_grad == b->with_grad && a->is_lowered == b->is_lowered &&
           a->without_onednn == b->without_onednn &&
           a->default_dtype == b->default_dtype;
}

/* --- arguments -------------------------------------------------------------------- */

enum {
    A_TENSOR,
    A_CONSTANT,
    A_SEQUENCE,
    A_DICTIONARY,
    AN_OBJECT,
    A_BARE_TENSOR,
};

static bool sequence_matches(PyObject *described, PyObject *object, ptac_found *found)
{
    PyObject *children = PyTuple_GetItem(described, 2);
    const Py_ssize_t n = PyTuple_Size(children);
    const bool is_tuple = PyTuple_CheckExact(object);

    if ((PyObject *)Py_TYPE(object) != PyTuple_GetItem(described, 1) ||
        (is_tuple ? PyTuple_Size(object) : PyList_Size(object)) != n)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item =
            is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i);

        if (!ptac_arguments_match(PyTuple_GetItem(children, i), item, found))
            return false;
    }
    return true;
}

static bool dictionary_matches(PyObject *described, PyObject *object, ptac_found *found)
{
    PyObject *keys = PyTuple_GetItem(described, 1);
    PyObject *children = PyTuple_GetItem(described, 2), *key, *item;
    Py_ssize_t at = 0, i = 0;

    if (!object)
        return PyTuple_Size(keys) == 0;
    if (!PyDict_CheckExact(object) || PyDict_Size(object) != PyTuple_Size(keys))
        return false;
    for (; PyDict_Next(object, &at, &key, &item); i++)
        if (!equals(key, PyTuple_GetItem(keys, i)) ||
            !ptac_arguments_match(PyTuple_GetItem(children, i), item, found))
            return false;
    return true;
}

/* It has no attributes but torch's. */
static bool is_bare(PyObject *tensor)
{
    PTAC_OWNED PyObject *attributes = PyObject_GenericGetDict(tensor, NULL);

    return attributes && PyDict_Size(attributes) == 0;
}

bool ptac_arguments_match(PyObject *described, PyObject *object, ptac_found *found)
{
    bool do_match = false;

    switch (PyLong_AsLong(PyTuple_GetItem(described, 0))) {
    case A_TENSOR:
        do_match = ptac_found_add(found, object);
        break;
    case A_BARE_TENSOR:
        do_match = ptac_found_add(found, object) && is_bare(object);
        break;
    case A_CONSTANT:
        do_match = object && equals(object, PyTuple_GetItem(described, 1));
        break;
    case AN_OBJECT:
        do_match = object == PyTuple_GetItem(described, 1);
        break;
    case A_SEQUENCE:
        do_match = object && sequence_matches(described, object, found);
        break;
    case A_DICTIONARY:
        do_match = dictionary_matches(described, object, found);
        break;
    }
    PyErr_Clear();
    return do_match;
}
