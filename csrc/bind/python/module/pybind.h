/*
 * pybind.h - CPython's stable ABI, and what the files of this folder share.
 *
 * Functions that return PyObject * return a new reference or NULL with an exception
 * set, as CPython's own do. None of them lets a C++ exception pass: what they call of
 * torch are shims, which return codes, and three functions that throw for none of our
 * tensors: bump_version only for tensors made in inference mode, tensor_data and
 * THPVariable_Wrap only when there is no memory for an object.
 */
#ifndef PTAC_BIND_PYTHON_MODULE_PYBIND_H
#define PTAC_BIND_PYTHON_MODULE_PYBIND_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bind/torch/dispatch.h"

/* Methods have the parameters that CPython gives them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/*
 * A method of _C has one of these heads in place of a function's. It takes nothing; one
 * object, of that name; a tuple, args; or n_args objects, args. Each announces itself,
 * and module.c adds all that did. pai_torchacc/_C.pyi has their signatures.
 */
#define PTAC_NOARGS(name)      PTAC_METHOD(name, METH_NOARGS, PyObject *unused)
#define PTAC_O(name, argument) PTAC_METHOD(name, METH_O, PyObject *argument)
#define PTAC_VARARGS(name)     PTAC_METHOD(name, METH_VARARGS, PyObject *args)
#define PTAC_FASTCALL(name)                                                            \
    PTAC_METHOD(name, METH_FASTCALL, PyObject *const *args, Py_ssize_t n_args)
#define PTAC_METHOD(name, flags, ...)                                                  \
    static PyObject *name(PyObject *self, __VA_ARGS__);                                \
    __attribute__((constructor)) static void announce_##name(void)                     \
    {                                                                                  \
        static ptac_method method = {                                                  \
            .table = {{#name, (PyCFunction)(void (*)(void))name, flags, NULL}}};       \
                                                                                       \
        ptac_method_announce(&method);                                                 \
    }                                                                                  \
    static PyObject *name(PyObject *self, __VA_ARGS__)

/* A method of exactly n objects, args; and one of an operator's name, op. */
#define PTAC_ARGS(name, n)                                                             \
    static PyObject *name##_of(PyObject *const *args);                                 \
    PTAC_FASTCALL(name)                                                                \
    {                                                                                  \
        if (n_args != (n))                                                             \
            return PyErr_Format(PyExc_TypeError, #name "() takes %d arguments", (n));  \
        return name##_of(args);                                                        \
    }                                                                                  \
    static PyObject *name##_of(PyObject *const *args)
#define PTAC_OF_OP(name)                                                               \
    static PyObject *name##_of(ptac_op op);                                            \
    PTAC_O(name, op_name)                                                              \
    {                                                                                  \
        const ptac_op op = ptac_op_from(op_name);                                      \
                                                                                       \
        return op == PTAC_N_OPS ? NULL : name##_of(op);                                \
    }                                                                                  \
    static PyObject *name##_of(ptac_op op)
/* Likewise of one int, number. */
#define PTAC_OF_NUMBER(name)                                                           \
    static PyObject *name##_of(long number);                                           \
    PTAC_O(name, object)                                                               \
    {                                                                                  \
        const long number = PyLong_AsLong(object);                                     \
                                                                                       \
        return number == -1 && PyErr_Occurred() ? NULL : name##_of(number);            \
    }                                                                                  \
    static PyObject *name##_of(long number)

/* Methods of nothing: to do something, to give something, to list items 0 to i. */
#define PTAC_DOES(name, statement)                                                     \
    PTAC_NOARGS(name)                                                                  \
    {                                                                                  \
        statement;                                                                     \
        Py_RETURN_NONE;                                                                \
    }
#define PTAC_GIVES(name, expression)                                                   \
    PTAC_NOARGS(name)                                                                  \
    {                                                                                  \
        return expression;                                                             \
    }
#define PTAC_LIST(name, is_there, item)                                                \
    PTAC_NOARGS(name)                                                                  \
    {                                                                                  \
        PyObject *list = PyList_New(0);                                                \
                                                                                       \
        for (int i = 0; list && (is_there); i++)                                       \
            ptac_append(&list, item);                                                  \
        return list;                                                                   \
    }

/* A reference, or PyMem's memory, that its scope gives back unless it is NULL. */
#define PTAC_OWNED __attribute__((cleanup(ptac_drop)))
#define PTAC_FREED __attribute__((cleanup(ptac_free)))

static inline void ptac_drop(PyObject **owned)
{
    Py_XDECREF(*owned);
}

static inline void ptac_free(void *home)
{
    PyMem_Free(*(void **)home);
}

/* What an expression gives, computed without the GIL. */
#define PTAC_UNLOCKED(expression)                                                      \
    ({                                                                                 \
        PyThreadState *unlocked_thread = PyEval_SaveThread();                          \
        __typeof__(expression) unlocked_result = (expression);                         \
                                                                                       \
        PyEval_RestoreThread(unlocked_thread);                                         \
        unlocked_result;                                                               \
    })

typedef struct ptac_method {
    PyMethodDef table[2]; /* with the end that CPython looks for */
    struct ptac_method *next;
} ptac_method;

void ptac_method_announce(ptac_method *method);

/* An object that the package lends, by lend(name=object). It is None before. */
#define PTAC_LENT(name)                                                                \
    static PyObject *name;                                                             \
    __attribute__((constructor)) static void announce_##name(void)                     \
    {                                                                                  \
        static ptac_lent lent = {#name, &name, NULL};                                  \
                                                                                       \
        ptac_lent_announce(&lent);                                                     \
    }

typedef struct ptac_lent {
    const char *name;
    PyObject **home;
    struct ptac_lent *next;
} ptac_lent;

void ptac_lent_announce(ptac_lent *lent);

/*
 * Look into torch.Tensor objects. The two offsets are learnt by ptac_tensor_learn and
 * hold for the running torch; without them the functions below say that nothing is
 * plain, and every call goes to stock.
 */

/* An exact torch.Tensor or torch.nn.Parameter, on any device. */
bool ptac_is_tensor(PyObject *object);

/*
 * An exact torch.Tensor or torch.nn.Parameter, dense, on the CPU, without conjugate or
 * negative bit: what an ordinary program computes with.
 */
bool ptac_is_plain(PyObject *tensor);

/* The first n_needed of n are plain, and the others are or are None. */
bool ptac_are_plain(PyObject *const *tensors, int n, int n_needed);

/* Likewise where they all lie on the CPU, or all on CUDA devices: *on says which. */
bool ptac_are_plain_on(PyObject *const *tensors, int n, int n_needed, ptac_device *on);

/*
 * Plain, and not made in inference mode: it may be written in place, and counts its
 * versions. ptac_bump_version() tells autograd of a write, before or after it; it
 * cannot fail for such a tensor.
 */
bool ptac_is_plain_and_versioned(PyObject *tensor);
void ptac_bump_version(PyObject *tensor);

/* Likewise of tensors on a CUDA device. No, where their keys are not known. */
bool ptac_is_plain_on_cuda(PyObject *tensor);
bool ptac_is_plain_and_versioned_on_cuda(PyObject *tensor);

/* tensor.requires_grad; -1 with an exception set. */
int ptac_requires_grad(PyObject *tensor);

/*
 * Why this tensor, which is not plain, cannot be served: sparse, on a device, or of a
 * class of its own.
 */
ptac_reason ptac_why_not_plain(PyObject *tensor);

/* The tensor's handle, borrowed: valid while the object lives. Plain tensors only. */
at_tensor ptac_borrow(PyObject *tensor);

/* The same, or NULL for None. */
at_tensor ptac_borrow_or_null(PyObject *tensor);

/* A mode of the program sees this thread's calls of torch's functions. */
bool ptac_has_function_mode(void);

/*
 * This thread runs ordinary eager code: no transform, no dispatch or function mode, no
 * tracer, no autocast, no level of forward-mode differentiation. inference_mode and
 * no_grad are ordinary.
 */
bool ptac_thread_is_plain(void);

/*
 * Why this thread's calls have to take torch's own path: it is not plain, or a profiler
 * wants to see torch's operators. PTAC_TAKE where neither is so.
 */
ptac_reason ptac_why_not_lean(void);

/*
 * The same of calls on that device, for callers that do what autocast would: on CUDA it
 * may be on, as the third says.
 */
bool ptac_thread_is_plain_on(ptac_device on);
ptac_reason ptac_why_not_lean_on(ptac_device on);
bool ptac_thread_autocasts_on(ptac_device on);

/* A Python tensor around an owned handle, which is taken over also on failure. */
PyObject *ptac_wrap(at_tensor owned);

/* The same of an operator's outputs: a tensor, or a pair where there is a second. */
PyObject *ptac_wrap_outputs(at_tensor first, at_tensor second);

/* This is the hook by which memory reuse sees what autograd saves. */
bool ptac_saved_is_pack(PyObject *hook);

/* Put an object, which gets a reference, in the place of what was remembered there. */
void ptac_keep(PyObject **home, PyObject *object);

/*
 * Add an item, which is taken over. Where it is NULL, as an error leaves it, or cannot
 * be added, the list or dict is dropped and becomes NULL; nothing more is added then.
 */
void ptac_append(PyObject **list, PyObject *item);
void ptac_put(PyObject **dict, const char *key, PyObject *value);

/* Whether an attribute is true; -1 with an exception set. */
int ptac_truth(PyObject *object, PyObject *attribute);

/* The operator of that name; PTAC_N_OPS with ValueError set when there is none. */
ptac_op ptac_op_from(PyObject *name);

/* The same for PyArg_ParseTuple()'s "O&". */
int ptac_op_read(PyObject *name, void *op);

/*
 * Have tracers look anew where operators' kernels lie: after each registration, before
 * the interpreter's lock is given up.
 */
void ptac_python_dispatch_forget(void);

#endif
