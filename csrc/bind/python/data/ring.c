/*
 * ring.c - slots of shared memory, for Python.
 */
#include "data/ring.h"
#include "bind/python/data/source.h"

#include <string.h>

/* ring_take(memory, first, n) -> the first free one of n slots, taken, or -1 */
PTAC_VARARGS(ring_take)
{
    Py_buffer memory;
    long long first, n, slot = -1;

    if (!PyArg_ParseTuple(args, "w*LL", &memory, &first, &n))
        return NULL;
    if (first >= 0 && n >= 0 && n <= memory.len && first <= memory.len - n)
        slot = ptac_ring_take(memory.buf, first, n);
    PyBuffer_Release(&memory);
    return PyLong_FromLongLong(slot);
}

/* ring_give(memory, slot): the slot is free again */
PTAC_VARARGS(ring_give)
{
    Py_buffer memory;
    long long slot;

    if (!PyArg_ParseTuple(args, "w*L", &memory, &slot))
        return NULL;
    if (slot >= 0 && slot < memory.len)
        ptac_ring_give(memory.buf, slot);
    PyBuffer_Release(&memory);
    Py_RETURN_NONE;
}

/*
 * ring_read(memory, offset, tensor): fill a contiguous tensor with the bytes that lie
 * there. By this thread alone: where there are workers, the other processors are busy.
 */
PTAC_VARARGS(ring_read)
{
    Py_buffer memory;
    PyObject *tensor;
    long long offset;
    int64_t bytes = -1;

    if (!PyArg_ParseTuple(args, "y*LO", &memory, &offset, &tensor))
        return NULL;

    PTAC_SOURCE rows;

    if (ptac_source_open(tensor, &rows) && rows.table.stride == rows.table.row_bytes)
        bytes = rows.table.n_rows * rows.table.row_bytes;
    if (bytes >= 0 && offset >= 0 && offset <= memory.len - bytes)
        PTAC_UNLOCKED(memcpy((char *)rows.table.data, (char *)memory.buf + offset,
                             (size_t)bytes));
    else
        PyErr_Format(PyExc_ValueError, "these bytes do not fill this tensor");
    PyBuffer_Release(&memory);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
