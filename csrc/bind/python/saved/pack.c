/*
 * pack.c - lossless packing for the package: contiguous tensors go by their addresses.
 *
 * And the account of what packing and recomputing have saved.
 */
#include "bind/python/module/pybind.h"
#include "ops/pack/pack.h"

#include <stdatomic.h>
#include <string.h>

typedef unsigned long long address;

#define AT(type, a) ((type *)(uintptr_t)(a))

/* pack_probe(tensor) -> a ptac_pack_promise; nothing for what is not dense floats. */
PTAC_O(pack_probe, tensor)
{
    static const int widths[] = {4, 2, 8};
    ptac_view view;

    if (!ptac_is_plain(tensor))
        return PyLong_FromLong(PTAC_PACK_NOTHING);
    ptac_view_of(ptac_borrow(tensor), &view);
    if (view.dtype > PTAC_F64 || !ptac_view_is_dense(&view))
        return PyLong_FromLong(PTAC_PACK_NOTHING);
    return PyLong_FromLong(
        ptac_pack_probe(view.data, view.n_elements, widths[view.dtype]));
}

/* pack_bitmask(x, n, width, bits) -> the two, or None where there is a third. */
PTAC_VARARGS(pack_bitmask)
{
    address x, bits;
    long long n;
    int width;
    uint64_t values[2];
    bool packed;

    if (!PyArg_ParseTuple(args, "KLiK", &x, &n, &width, &bits))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    packed = ptac_pack_bitmask(AT(void, x), n, width, values, AT(uint64_t, bits));
    Py_END_ALLOW_THREADS
    if (!packed)
        Py_RETURN_NONE;
    return Py_BuildValue("KK", (address)values[0], (address)values[1]);
}

/* unpack_bitmask(bits, first, second, n, width, x) */
PTAC_VARARGS(unpack_bitmask)
{
    address x, bits, first, second;
    long long n;
    int width;

    if (!PyArg_ParseTuple(args, "KKKLiK", &bits, &first, &second, &n, &width, &x))
        return NULL;

    const uint64_t values[2] = {first, second};

    Py_BEGIN_ALLOW_THREADS
    ptac_unpack_bitmask(AT(uint64_t, bits), values, n, width, AT(void, x));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* pack_equal(x, y, n) -> whether n bytes are the same. */
PTAC_VARARGS(pack_equal)
{
    PyThreadState *state;
    address x, y;
    unsigned long long n;
    bool is_equal;

    if (!PyArg_ParseTuple(args, "KKK", &x, &y, &n))
        return NULL;
    state = PyEval_SaveThread();
    is_equal = memcmp(AT(void, x), AT(void, y), n) == 0;
    PyEval_RestoreThread(state);
    return PyBool_FromLong(is_equal);
}

/* pack_count(x, n, starts) -> how many are not zero. */
PTAC_VARARGS(pack_count)
{
    address x, starts;
    long long n, total;

    if (!PyArg_ParseTuple(args, "KLK", &x, &n, &starts))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    total = ptac_pack_count(AT(uint32_t, x), n, AT(int64_t, starts));
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(total);
}

/* pack_nonzero(x, n, starts, bits, values) -> whether x is still as counted. */
PTAC_VARARGS(pack_nonzero)
{
    address x, starts, bits, values;
    long long n;
    bool packed;

    if (!PyArg_ParseTuple(args, "KLKKK", &x, &n, &starts, &bits, &values))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    packed = ptac_pack_nonzero(AT(uint32_t, x), n, AT(int64_t, starts),
                               AT(uint64_t, bits), AT(uint32_t, values));
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(packed);
}

/* unpack_nonzero(bits, values, starts, n, x) */
PTAC_VARARGS(unpack_nonzero)
{
    address x, starts, bits, values;
    long long n;

    if (!PyArg_ParseTuple(args, "KKKLK", &bits, &values, &starts, &n, &x))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    ptac_unpack_nonzero(AT(uint64_t, bits), AT(uint32_t, values), AT(int64_t, starts),
                        n, AT(uint32_t, x));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* pack_index_width(x, n) -> 1, 2, 4 or 8 bytes */
PTAC_VARARGS(pack_index_width)
{
    address x;
    long long n;
    int width;

    if (!PyArg_ParseTuple(args, "KL", &x, &n))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    width = ptac_pack_index_width(AT(int64_t, x), n);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(width);
}

/* pack_indices(x, n, width, narrow) */
PTAC_VARARGS(pack_indices)
{
    address x, narrow;
    long long n;
    int width;

    if (!PyArg_ParseTuple(args, "KLiK", &x, &n, &width, &narrow))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    ptac_pack_indices(AT(int64_t, x), n, width, AT(void, narrow));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* unpack_indices(narrow, n, width, x) */
PTAC_VARARGS(unpack_indices)
{
    address x, narrow;
    long long n;
    int width;

    if (!PyArg_ParseTuple(args, "KLiK", &narrow, &n, &width, &x))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    ptac_unpack_indices(AT(void, narrow), n, width, AT(int64_t, x));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Bytes that are saved now, were at most, and have been in all; and how often. */
typedef struct account {
    int64_t current, peak, total, count;
} account;

static const char *const mechanisms[] = {"recompute", "mask_bits", "noise_bits",
                                         "zero_bits", "index_narrowing"};

enum {
    N_MECHANISMS = sizeof mechanisms / sizeof *mechanisms,
};

/* The last one is all of them together. Guarded by the GIL. */
static account accounts[N_MECHANISMS + 1];

static void book(account *a, int64_t bytes)
{
    a->current += bytes;
    if (bytes > 0) {
        a->total += bytes;
        a->count++;
    }
    if (a->peak < a->current)
        a->peak = a->current;
}

/* saved_book(mechanism, bytes): so many are saved from now on; no more, if negative. */
PTAC_VARARGS(saved_book)
{
    const char *name;
    long long bytes;

    if (!PyArg_ParseTuple(args, "sL", &name, &bytes))
        return NULL;
    for (int i = 0; i < N_MECHANISMS; i++) {
        if (strcmp(name, mechanisms[i]) == 0) {
            book(&accounts[i], bytes);
            book(&accounts[N_MECHANISMS], bytes);
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "unknown mechanism %s", name);
}

/* saved_bytes() -> {mechanism: (current, peak, total, count)}, with "all". */
PTAC_NOARGS(saved_bytes)
{
    PyObject *found = PyDict_New();

    for (int i = 0; found && i <= N_MECHANISMS; i++) {
        const account *a = &accounts[i];
        PyObject *row = Py_BuildValue("LLLL", (long long)a->current, (long long)a->peak,
                                      (long long)a->total, (long long)a->count);

        if (!row || PyDict_SetItemString(
                        found, i < N_MECHANISMS ? mechanisms[i] : "all", row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

/* saved_bytes_reset(): totals and peaks begin anew. */
PTAC_NOARGS(saved_bytes_reset)
{
    for (int i = 0; i <= N_MECHANISMS; i++)
        accounts[i] = (account){accounts[i].current, accounts[i].current, 0, 0};
    Py_RETURN_NONE;
}
