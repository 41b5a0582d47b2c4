/*
 * pack.c - lossless packing for the package: contiguous tensors go by their addresses.
 *
 * And the account of what packing and recomputing have saved.
 */
#include "bind/python/module/pybind.h"
#include "ops/pack/pack.h"

#include <string.h>

#define AT(a) ((void *)(uintptr_t)(a))

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

/* The numbers of a call, n of them; false with an exception set. */
static bool read_numbers(PyObject *const *args, int64_t *numbers, int n)
{
    for (int i = 0; i < n; i++)
        numbers[i] = (int64_t)PyLong_AsUnsignedLongLongMask(args[i]);
    return !PyErr_Occurred();
}

/* A method of n numbers, a[0] on: what the expression gives without the GIL. */
#define PTAC_OF_NUMBERS(name, n, expression)                                           \
    PTAC_ARGS(name, n)                                                                 \
    {                                                                                  \
        int64_t a[n];                                                                  \
                                                                                       \
        return read_numbers(args, a, n)                                                \
                   ? PyLong_FromLongLong(PTAC_UNLOCKED(expression))                    \
                   : NULL;                                                             \
    }

/* pack_bitmask(x, n, width, bits) -> the two values, or None where there is a third */
PTAC_ARGS(pack_bitmask, 4)
{
    uint64_t values[2];
    int64_t a[4];

    if (!read_numbers(args, a, 4))
        return NULL;
    return PTAC_UNLOCKED(ptac_pack_bitmask(AT(a[0]), a[1], (int)a[2], values, AT(a[3])))
               ? Py_BuildValue("kk", values[0], values[1])
               : Py_NewRef(Py_None);
}

/* unpack_bitmask(bits, first, second, n, width, x) -> 0 */
PTAC_OF_NUMBERS(
    unpack_bitmask, 6,
    (ptac_unpack_bitmask(AT(a[0]), (uint64_t *)&a[1], a[3], (int)a[4], AT(a[5])), 0))

/* pack_equal(x, y, n) -> whether n bytes are the same */
PTAC_OF_NUMBERS(pack_equal, 3, memcmp(AT(a[0]), AT(a[1]), (size_t)a[2]) == 0)

/* pack_count(x, n, starts) -> how many are not zero */
PTAC_OF_NUMBERS(pack_count, 3, ptac_pack_count(AT(a[0]), a[1], AT(a[2])))

/* pack_nonzero(x, n, starts, bits, values) -> whether x is still as counted */
PTAC_OF_NUMBERS(pack_nonzero, 5,
                ptac_pack_nonzero(AT(a[0]), a[1], AT(a[2]), AT(a[3]), AT(a[4])))

/* unpack_nonzero(bits, values, starts, n, x) -> 0 */
PTAC_OF_NUMBERS(unpack_nonzero, 5,
                (ptac_unpack_nonzero(AT(a[0]), AT(a[1]), AT(a[2]), a[3], AT(a[4])), 0))

/* pack_index_width(x, n) -> 1, 2, 4 or 8 bytes */
PTAC_OF_NUMBERS(pack_index_width, 2, ptac_pack_index_width(AT(a[0]), a[1]))

/* pack_indices(x, n, width, narrow) -> 0 */
PTAC_OF_NUMBERS(pack_indices, 4,
                (ptac_pack_indices(AT(a[0]), a[1], (int)a[2], AT(a[3])), 0))

/* unpack_indices(narrow, n, width, x) -> 0 */
PTAC_OF_NUMBERS(unpack_indices, 4,
                (ptac_unpack_indices(AT(a[0]), a[1], (int)a[2], AT(a[3])), 0))

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

        ptac_put(&found, i < N_MECHANISMS ? mechanisms[i] : "all",
                 Py_BuildValue("llll", a->current, a->peak, a->total, a->count));
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
