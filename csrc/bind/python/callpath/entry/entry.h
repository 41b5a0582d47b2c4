/*
 * entry.h - functions of torch's that Python calls, entered before torch parses their
 * arguments.
 *
 * CPython calls a function of C by an address in the function's object, vectorcall, of
 * which it asks at each call. Writing another one there sends all calls elsewhere, also
 * those by names that a program has imported, while the function stays the object it
 * is, equal to what it was: whoever compares, patches, traces or compiles it, or looks
 * it up in a table, meets torch's.
 *
 * An entry looks whether it may compute the call itself, below autograd and the
 * dispatcher: plain small tensors without a gradient, and nobody who looks on. Else it
 * calls torch's function with the arguments as they came.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_ENTRY_ENTRY_H
#define PTAC_BIND_PYTHON_CALLPATH_ENTRY_ENTRY_H

#include "bind/abi/dispatch_slot.h"
#include "bind/python/callpath/lean.h"
#include "bind/python/interpreter/vectorcall.h"

typedef struct ptac_entry {
    const char *name; /* as entry_open() knows it */
    ptac_vectorcall_fn ours;
    ptac_vectorcall_fn stock; /* what was there; NULL: as below */
    PyObject *callable;       /* torch's function, owned; NULL: never opened */
    at_kernel kernel;         /* that it led to: somebody may register another */
    ptac_op op;               /* that counts calls whose first argument is not ours */
    struct ptac_entry *next;
} ptac_entry;

void ptac_entry_announce(ptac_entry *entry);

/* Torch's function, called as CPython would have. */
PyObject *ptac_entry_stock(const ptac_entry *entry, PyObject *callable,
                           PyObject *const *args, size_t n_args, PyObject *keywords);

/*
 * At file scope: the entry of that name, which asks try_to(args, n) for the result of a
 * call without keywords whose first argument ptac_entry_reason() lets through; of a
 * method that is its tensor. NULL without an exception: torch's function has to be
 * called. Others are counted as refused by the operator, PTAC_N_OPS for none.
 */
#define PTAC_ENTRY(id, text, of_op, try_to)                                            \
    PTAC_WINDOW_ENTRY(id, text, of_op, ptac_no_window, try_to)

/*
 * Likewise of a function that a window may expect: take(args, n) gives, before anything
 * else is asked, what was computed ahead; see site/window.h.
 */
#define PTAC_WINDOW_ENTRY(id, text, of_op, take, try_to)                               \
    static PyObject *enter_##id(PyObject *callable, PyObject *const *args,             \
                                size_t n_args, PyObject *keywords);                    \
    static ptac_entry entry_##id = {.name = text, .ours = enter_##id, .op = of_op};    \
    static PyObject *enter_##id(PyObject *callable, PyObject *const *args,             \
                                size_t n_args, PyObject *keywords)                     \
    {                                                                                  \
        return ptac_entry_enter(&entry_##id, take, try_to, callable, args, n_args,     \
                                keywords);                                             \
    }                                                                                  \
    __attribute__((constructor)) static void announce_entry_##id(void)                 \
    {                                                                                  \
        ptac_entry_announce(&entry_##id);                                              \
    }

/*
 * What the program does with the result of a function or an operator of torch's, called
 * with these arguments, is done in it where a site says so: see expression.c. The
 * result, which is handed on; NULL stays NULL.
 */
PyObject *ptac_entry_follow(PyObject *callable, PyObject *const *args, Py_ssize_t n,
                            PyObject *result);

/* What an entry tries of its arguments; NULL without an exception: not that. */
typedef PyObject *(*ptac_entry_fn)(PyObject *const *args, Py_ssize_t n);

static inline PyObject *ptac_no_window(PyObject *const *args, Py_ssize_t n)
{
    (void)args;
    (void)n;
    return NULL;
}

/* Why a tensor is none that entries take: plain, of floats, without a gradient now. */
ptac_reason ptac_entry_reason(PyObject *tensor);

/* The same of a first argument, counted. */
bool ptac_entry_may_take(const ptac_entry *entry, PyObject *tensor);

static inline PyObject *ptac_entry_enter(const ptac_entry *entry, ptac_entry_fn take,
                                         ptac_entry_fn try_to, PyObject *callable,
                                         PyObject *const *args, size_t n_args,
                                         PyObject *keywords)
{
    const Py_ssize_t n = ptac_vectorcall_count(n_args);
    PyObject *result = keywords ? NULL : take(args, n);

    if (result || (take != ptac_no_window && PyErr_Occurred()))
        return result;
    if (keywords || n == 0 || !at_kernel_is(&entry->kernel) ||
        !ptac_entry_may_take(entry, args[0]))
        return ptac_entry_stock(entry, callable, args, n_args, keywords);
    result = try_to(args, n);
    if (!result && !PyErr_Occurred())
        result = ptac_entry_stock(entry, callable, args, n_args, keywords);
    return ptac_entry_follow(callable, args, n, result);
}

/* Python's calls of the function come to us, and it leads to torch's own kernel. */
bool ptac_entry_is_torchs(const ptac_entry *entry);

/*
 * Runs the row, if any, that the chooser has for a call with its inputs, whose one
 * output has these sizes: the result. Else NULL without an exception, and *why, not
 * counted: PTAC_TAKE where a row has run and failed.
 */
PyObject *ptac_entry_run(ptac_call *call, int n_dims, const int64_t *sizes,
                         ptac_reason *why);

#endif
