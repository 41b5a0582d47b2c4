/*
 * cuda_memory.c - the CUDA pool's entries, and pinned memory, for Python.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/allocator/cuda_allocator.h"
#include "mem/cuda/pinned_pool.h"

/* cuda_pool_open(policy, cap, history): None, or what is wrong. */
PTAC_VARARGS(cuda_pool_open)
{
    ptac_stream_pool_options options = {0};
    const char *policy;

    if (!PyArg_ParseTuple(args, "skk", &policy, &options.cap, &options.n_history))
        return NULL;
    options.policy = ptac_policy_find(policy);
    if (!options.policy)
        return PyErr_Format(PyExc_ValueError, "there is no policy %s", policy);
    return Py_BuildValue("z", PTAC_UNLOCKED(ptac_cuda_allocator_open(&options)));
}

/* cuda_pool_entries() -> {name in torch: address} */
PTAC_NOARGS(cuda_pool_entries)
{
    PyObject *dict = PyDict_New();

#define X(name, result, parameters)                                                    \
    ptac_put(                                                                          \
        &dict, #name,                                                                  \
        PyLong_FromVoidPtr(*(void **)&(result(*[1]) parameters){ptac_cuda_##name}));
    PTAC_CUDA_ENTRIES(X)
#undef X
    return dict;
}

/* cuda_pool_trim(): wait for all devices -> bytes given back that no block used */
PTAC_GIVES(cuda_pool_trim, PyLong_FromSize_t(PTAC_UNLOCKED(ptac_cuda_reset())))

/* pinned_open(bytes, threads): None, or what is wrong. */
PTAC_VARARGS(pinned_open)
{
    const char *trouble;
    size_t bytes;
    int n_threads;

    if (!PyArg_ParseTuple(args, "ki", &bytes, &n_threads))
        return NULL;
    trouble = PTAC_UNLOCKED(ptac_cuda_load("libcuda.so.1"));
    if (!trouble)
        trouble = PTAC_UNLOCKED(ptac_pinned_open(bytes, n_threads));
    return Py_BuildValue("z", trouble);
}

/* pinned_close() -> whether it is gone: no block is used. */
PTAC_GIVES(pinned_close, PyBool_FromLong(PTAC_UNLOCKED(ptac_pinned_close())))

/* pinned_alloc(bytes) -> address, or None when there is no room */
PTAC_O(pinned_alloc, number)
{
    const size_t bytes = PyLong_AsSize_t(number);
    void *memory;

    if (bytes == (size_t)-1 && PyErr_Occurred())
        return NULL;
    memory = ptac_pinned_alloc(bytes);
    return memory ? PyLong_FromVoidPtr(memory) : Py_NewRef(Py_None);
}

/* pinned_free(address) -> whether a used block began there */
PTAC_O(pinned_free, address)
{
    void *memory = PyLong_AsVoidPtr(address);

    if (!memory && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(ptac_pinned_free(memory));
}
