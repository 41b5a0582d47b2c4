/*
 * entry.c - opening and closing entries, and what all of them ask.
 */
#include "bind/python/callpath/entry/entry.h"

#include "bind/python/module/names.h"

#include <string.h>

enum {
    /* Where functions and methods have it, behind five words and refcount: */
    ADDRESS_OFFSET = 48,
};

static ptac_entry *announced;

void ptac_entry_announce(ptac_entry *entry)
{
    entry->next = announced;
    announced = entry;
}

ptac_reason ptac_entry_reason(PyObject *tensor)
{
    int32_t dtype = -1;
    at_tensor borrowed;

    if (!ptac_is_plain(tensor))
        return PTAC_SUBCLASS;
    borrowed = ptac_borrow(tensor);
    T.aoti_torch_get_dtype(borrowed, &dtype);
    if (dtype != AT_DTYPE_F32)
        return PTAC_DTYPE;
    return T.aoti_torch_grad_mode_is_enabled() &&
                   (!T.requires_grad || T.requires_grad(*(void **)borrowed))
               ? PTAC_GRAD
               : PTAC_TAKE;
}

bool ptac_entry_may_take(const ptac_entry *entry, PyObject *tensor)
{
    const ptac_reason why = ptac_entry_reason(tensor);

    if (why && why != PTAC_SUBCLASS && entry->op != PTAC_N_OPS &&
        ptac_chooser_gate(entry->op) == PTAC_TAKE)
        ptac_refuse(entry->op, why);
    return !why;
}

PyObject *ptac_entry_run(ptac_call *call, int n_dims, const int64_t *sizes,
                         ptac_reason *why)
{
    AT_OWNED at_tensor made = NULL;
    const ptac_kernel *row;

    PTAC_IN_FLIGHT;
    *why = ptac_why_not_lean();
    if (!*why && ptac_shadow_is_on())
        *why = PTAC_MODE; /* there is nobody here who could repeat the call */
    row = *why ? NULL : ptac_probe(call, why);
    if (!row)
        return NULL;
    call->n_outputs = 1;
    if (ptac_new(PTAC_F32, n_dims, sizes, NULL, &made, &call->outputs[0])) {
        *why = PTAC_MEMORY;
        return NULL;
    }
    return ptac_run(row, call) ? ptac_wrap(at_give(&made)) : NULL;
}

PyObject *ptac_entry_stock(const ptac_entry *entry, PyObject *callable,
                           PyObject *const *args, size_t n_args, PyObject *keywords)
{
    const Py_ssize_t n = ptac_vectorcall_count(n_args);
    const Py_ssize_t n_named = keywords ? PyTuple_Size(keywords) : 0;
    const PyCFunctionWithKeywords function =
        entry->stock ? NULL
                     : (PyCFunctionWithKeywords)(void (*)(void))PyCFunction_GetFunction(
                           callable);
    PTAC_OWNED PyObject *tuple = NULL, *named = NULL;

    if (entry->stock)
        return entry->stock(callable, args, n_args, keywords);
    tuple = PyTuple_New(n);
    named = n_named ? PyDict_New() : NULL;
    if (!tuple || (n_named && !named))
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        PyTuple_SetItem(tuple, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; i < n_named; i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(keywords, i), args[n + i]) < 0)
            return NULL;
    return function(PyCFunction_GetSelf(callable), tuple, named);
}

static uintptr_t *address_in(PyObject *callable)
{
    return (uintptr_t *)((char *)callable + ADDRESS_OFFSET);
}

/* Its object is large enough, and what is there is what CPython says of it. */
static bool has_address(PyObject *callable)
{
    PTAC_OWNED PyObject *size =
        PyObject_GetAttr((PyObject *)Py_TYPE(callable), ptac_names.__basicsize__);
    const Py_ssize_t n_bytes = size ? PyLong_AsSsize_t(size) : 0;

    PyErr_Clear();
    return n_bytes >= ADDRESS_OFFSET + (Py_ssize_t)sizeof(uintptr_t) &&
           *address_in(callable) == (uintptr_t)ptac_vectorcall_of(callable);
}

/* The last part of an entry's name is the function's own. */
static bool has_name(PyObject *callable, const char *name)
{
    PTAC_OWNED PyObject *its = PyObject_GetAttr(callable, ptac_names.__name__);
    const char *last = strrchr(name, '.');
    const bool is = its && PyUnicode_CheckExact(its) && last &&
                    PyUnicode_CompareWithASCIIString(its, last + 1) == 0;

    PyErr_Clear();
    return is;
}

/* Another entry has it. */
static bool is_taken(PyObject *callable)
{
    for (const ptac_entry *e = announced; e; e = e->next)
        if (e->ours == ptac_vectorcall_of(callable))
            return true;
    return false;
}

/*
 * A function of torch's that takes a tuple and keywords, or a method, whose type has
 * such a word: it shows in another of its objects, which has an address.
 */
static bool can_be_entered(PyObject *callable, PyObject *other)
{
    const int flags = METH_VARARGS | METH_KEYWORDS;
    const bool is_function = PyCFunction_Check(callable);

    return Py_TYPE(callable) == Py_TYPE(other) && has_address(other) &&
           ptac_vectorcall_of(other) && has_address(callable) &&
           (ptac_vectorcall_of(callable) ||
            (is_function && (PyCFunction_GetFlags(callable) & ~METH_STATIC) == flags));
}

static ptac_entry *find(const char *name)
{
    ptac_entry *entry = announced;

    while (entry && strcmp(entry->name, name) != 0)
        entry = entry->next;
    if (!entry)
        PyErr_Format(PyExc_ValueError, "there is no entry %s", name);
    return entry;
}

static void write_address(PyObject *callable, ptac_vectorcall_fn function)
{
    __atomic_store_n(address_in(callable), (uintptr_t)function, __ATOMIC_RELEASE);
}

static bool is_open(const ptac_entry *entry)
{
    return entry->callable && *address_in(entry->callable) == (uintptr_t)entry->ours;
}

bool ptac_entry_is_torchs(const ptac_entry *entry)
{
    return is_open(entry) && at_kernel_is(&entry->kernel);
}

/*
 * entry_open(name, callable, another of its type, operator, overload): the function's
 * or method's calls come to us, while they would lead to the kernel that aten's
 * operator has on the CPU now. Returns whether they do.
 */
PTAC_ARGS(entry_open, 5)
{
    const char *name = PyUnicode_AsUTF8AndSize(args[0], NULL), *aten, *overload;
    ptac_entry *entry = name ? find(name) : NULL;

    if (!entry)
        return NULL;
    aten = PyUnicode_AsUTF8AndSize(args[3], NULL);
    overload = PyUnicode_AsUTF8AndSize(args[4], NULL);
    if (!aten || !overload)
        return NULL;
    entry->kernel = at_kernel_of(aten, overload);
    if (is_open(entry) || !at_kernel_is(&entry->kernel) || !ptac_vectorcall_find() ||
        !has_name(args[1], name) || !can_be_entered(args[1], args[2]) ||
        is_taken(args[1]))
        Py_RETURN_FALSE;
    ptac_keep(&entry->callable, args[1]);
    entry->stock = ptac_vectorcall_of(args[1]);
    write_address(args[1], entry->ours);
    if (ptac_vectorcall_of(args[1]) == entry->ours)
        Py_RETURN_TRUE;
    write_address(args[1], entry->stock);
    Py_RETURN_FALSE;
}

/* entries() -> {name: whether it is open} */
PTAC_NOARGS(entries)
{
    PyObject *all = PyDict_New();

    for (const ptac_entry *e = announced; e; e = e->next)
        ptac_put(&all, e->name, PyBool_FromLong(is_open(e)));
    return all;
}

/*
 * entries_close(): torch's functions are called again. Returns the names of those that
 * somebody else has changed since, which are left to them.
 */
PTAC_NOARGS(entries_close)
{
    PyObject *left = PyList_New(0);

    for (ptac_entry *e = announced; e; e = e->next) {
        if (is_open(e))
            write_address(e->callable, e->stock);
        else if (e->callable && *address_in(e->callable) != (uintptr_t)e->stock)
            ptac_append(&left, PyUnicode_FromString(e->name));
    }
    return left;
}

/* dispatch_is_proved() -> whether we know where torch keeps kernels of the CPU. */
PTAC_GIVES(dispatch_is_proved, PyBool_FromLong(at_entry_is_proved()))
