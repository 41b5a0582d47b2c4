/*
 * module_call.c - nn.Module.__call__ in C.
 *
 * Torch's is two Python functions that find, for nearly every call, that there is no
 * hook to run and that forward is to be called. The object that takes their place in
 * the class says the same by a few looks into dictionaries, and calls forward; or, of a
 * leaf, what forward would call. Whatever else it finds it leaves to torch's.
 *
 * Python calls a module by what lies in its class, and anybody else who asks for
 * nn.Module.__call__ or module.__call__ is given torch's own by __get__, so that those
 * who compare, patch, trace and inspect it meet what they know.
 */
#include "bind/python/callpath/call/candidates.h"
#include "bind/python/callpath/call/leaf.h"

#include "bind/python/callpath/site/window.h"
#include "bind/python/interpreter/tracing.h"
#include "bind/python/interpreter/type_version.h"
#include "bind/torch/rows/convolution/convolution.h"

#include <stddef.h>
#include <structmember.h>

/* CPython's flags, which its header of 3.11 shows to no limited ABI. */
#define HAS_VECTORCALL    (1ul << 11)
#define METHOD_DESCRIPTOR (1ul << 17)

enum {
    REMEMBERED = 512, /* classes: a power of two */
};

typedef struct module_call {
    PyObject_HEAD ptac_vectorcall_fn entry;
    PyObject *stock; /* torch's function */
} module_call;

/* Classes that call as nn.Module does, each in the version in which that was seen. */
typedef struct seen {
    PyTypeObject *type;
    uint32_t version;
} seen;

static bool can_be_made; /* and this file's functions be called */
static bool is_open;     /* the switch is on */
static seen remembered[REMEMBERED];

PTAC_LENT(stock_call_impl)     /* nn.Module._call_impl */
PTAC_LENT(stock_compiled_impl) /* nn.Module._compiled_call_impl: None */
PTAC_LENT(stock_getattribute)  /* object.__getattribute__ */

/* What torch's function looks at lies in the module's dictionary alone. */
static bool finds_hooks_in_modules(PyTypeObject *type)
{
    PyObject *const names[] = {ptac_names._forward_hooks, ptac_names._forward_pre_hooks,
                               ptac_names._backward_hooks,
                               ptac_names._backward_pre_hooks};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!ptac_class_has(type, names[i], NULL))
            return false;
    return ptac_class_has(type, ptac_names.__getattribute__, stock_getattribute);
}

/*
 * The class has no _call_impl of its own, which torch's function would call. A version
 * is never given twice, also not to another class at the same address.
 */
static bool calls_as_module(PyTypeObject *type)
{
    const uint32_t version = ptac_type_version(type);
    seen *place = &remembered[((uintptr_t)type >> 5) % REMEMBERED];

    if (version != 0 && place->type == type && place->version == version)
        return true;
    if (!ptac_class_has(type, ptac_names._call_impl, stock_call_impl) ||
        !ptac_class_has(type, ptac_names._compiled_call_impl, stock_compiled_impl) ||
        !finds_hooks_in_modules(type))
        return false;
    *place = (seen){type, ptac_type_version(type)};
    return true;
}

/*
 * The module's attributes, owned, where calling it is calling its forward; else NULL,
 * without an exception.
 */
static PyObject *plain_attributes(PyObject *module)
{
    PyObject *attributes = PyObject_GenericGetDict(module, NULL);

    if (attributes && !ptac_module_is_quiet(attributes))
        Py_CLEAR(attributes);
    PyErr_Clear();
    return attributes;
}

/* By the leaf, or None where forward has to be called. */
static PyObject *try_leaf(PyObject *module, PyObject *x)
{
    const ptac_module_kind kind = ptac_module_kind_of(module);
    PTAC_OWNED PyObject *attributes = ptac_module_attributes(module, kind);

    return attributes ? ptac_leaf_call(kind, attributes, x) : Py_NewRef(Py_None);
}

/* Torch's function would only look at the module itself before it calls forward. */
static bool is_left_to_itself(PyObject *module)
{
    return is_open && !ptac_is_tracing() && !ptac_thread_is_traced() &&
           ptac_modules_are_unheard() && calls_as_module(Py_TYPE(module));
}

/* With what follows it in the function that calls it, or by the leaf, or None. */
static PyObject *try_both(PyObject *module, PyObject *x)
{
    PyObject *result = ptac_site_call(module, x);

    if (result != Py_None)
        return result;
    Py_DECREF(result);
    return try_leaf(module, x);
}

static PyObject *call(PyObject *stock, PyObject *const *args, size_t n_args,
                      PyObject *keywords)
{
    const bool is_of_one = ptac_vectorcall_count(n_args) == 2 && !keywords;
    PyObject *attributes, *result;

    if (ptac_vectorcall_count(n_args) < 1 || !is_left_to_itself(args[0]))
        return ptac_vectorcall(stock, args, n_args, keywords);
    if (is_of_one) {
        result = try_both(args[0], args[1]);
        if (result != Py_None)
            return result;
        Py_DECREF(result);
    }
    /* Torch's own modules warn at the line of a caller so many frames away. */
    attributes = ptac_module_kind_of(args[0]) == PTAC_N_MODULES
                     ? plain_attributes(args[0])
                     : NULL;
    if (!attributes)
        return ptac_vectorcall(stock, args, n_args, keywords);
    Py_DECREF(attributes);
    return ptac_vectorcall_method(ptac_names.forward, args, n_args, keywords);
}

/* Of the arguments behind the first, before which is room then. */
static size_t n_behind(size_t n_args)
{
    return ((size_t)ptac_vectorcall_count(n_args) - 1) | ptac_vectorcall_offset;
}

/* Likewise, while modules are looked for that may be planned. */
static PyObject *call_candidate(PyObject *stock, PyObject *const *args, size_t n_args,
                                PyObject *keywords)
{
    ptac_candidacy candidacy = PTAC_CANDIDACY_NONE;
    PTAC_OWNED PyObject *plan = NULL;
    PyObject *result;

    if (ptac_vectorcall_count(n_args) >= 1 && !ptac_is_tracing() &&
        !ptac_thread_is_traced() && calls_as_module(Py_TYPE(args[0])))
        candidacy = ptac_candidate_enter(args[0], &plan);
    if (candidacy == PTAC_CANDIDACY_ERROR)
        return NULL;
    result = plan ? ptac_vectorcall(plan, args + 1, n_behind(n_args), keywords)
                  : call(stock, args, n_args, keywords);
    if (candidacy == PTAC_CANDIDACY_ITS)
        ptac_candidate_leave();
    return result;
}

static PyObject *enter(PyObject *self, PyObject *const *args, size_t n_args,
                       PyObject *keywords)
{
    PyObject *stock = ((module_call *)self)->stock;
    PyObject *result;

    /* Before anything else is asked: x may be what this call is to make of it. */
    if (ptac_n_windows > 0 && ptac_vectorcall_count(n_args) == 2 && !keywords) {
        result = ptac_window_take(args[1]);
        if (result || PyErr_Occurred())
            return result;
    }
    /* We may have to leave; who was asked before had to let another thread go first. */
    if (ptac_windows_awaited && !ptac_windows_look())
        return NULL;
    if (ptac_candidates_are_sought)
        return call_candidate(stock, args, n_args, keywords);
    return call(stock, args, n_args, keywords);
}

bool ptac_module_is_alone(PyObject *module)
{
    PTAC_OWNED PyObject *attributes =
        can_be_made && is_left_to_itself(module) ? plain_attributes(module) : NULL;

    return attributes && !ptac_module_has_own_forward(attributes);
}

PyObject *ptac_module_call(PyObject *module, PyObject *x)
{
    if (can_be_made && is_left_to_itself(module)) {
        PyObject *result = try_leaf(module, x);

        if (result != Py_None)
            return result;
        Py_DECREF(result);
    }
    return PyObject_CallFunctionObjArgs(module, x, NULL);
}

/* Called by its slot, which Python does not do: with a tuple and a dictionary. */
static PyObject *enter_slowly(PyObject *self, PyObject *args, PyObject *keywords)
{
    return PyObject_Call(((module_call *)self)->stock, args, keywords);
}

static PyObject *get(PyObject *self, PyObject *module, PyObject *type)
{
    PyObject *stock = ((module_call *)self)->stock;
    const descrgetfunc bind =
        (descrgetfunc)PyType_GetSlot(Py_TYPE(stock), Py_tp_descr_get);

    return bind ? bind(stock, module, type) : Py_NewRef(stock);
}

static void drop(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    Py_CLEAR(((module_call *)self)->stock);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(module_call, entry), READONLY, NULL},
    {"__wrapped__", T_OBJECT_EX, offsetof(module_call, stock), READONLY, NULL},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, drop},
    {Py_tp_descr_get, get},
    {Py_tp_call, enter_slowly},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pai_torchacc._C.ModuleCall",
    .basicsize = sizeof(module_call),
    .flags = Py_TPFLAGS_DEFAULT | HAS_VECTORCALL | METHOD_DESCRIPTOR |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

/*
 * module_call_make(nn.Module.__call__) -> what takes its place in the class's
 * dictionary; None where this interpreter lacks what that needs.
 */
PTAC_O(module_call_make, stock)
{
    static PyObject *type;
    module_call *made;

    can_be_made = T.tracing_state && ptac_vectorcall_find();
    if (!can_be_made)
        Py_RETURN_NONE;
    if (!type)
        type = PyType_FromSpec(&spec);
    made = type ? PyObject_New(module_call, (PyTypeObject *)type) : NULL;
    if (made) {
        made->entry = enter;
        made->stock = Py_NewRef(stock);
    }
    return (PyObject *)made;
}

/* module_call_open(is_open): whether the object does more than torch's function. */
PTAC_O(module_call_open, truth)
{
    is_open = truth == Py_True;
    Py_RETURN_NONE;
}
