/*
 * cuda.c - operators on CUDA devices, for Python.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/cuda.h"

#include <string.h>

/* cuda_reason() -> why no call on CUDA can be served, or None. Starts no driver. */
PTAC_GIVES(cuda_reason, Py_BuildValue("z", PTAC_UNLOCKED(ptac_cuda_reason())))

/* cuda_rows() -> [(operator, row, level, needs no table, is quarantined)] */
PTAC_NOARGS(cuda_rows)
{
    PyObject *list = PyList_New(0);

    for (int op = 0; list && op < PTAC_N_OPS; op++) {
        int n;
        const ptac_kernel *const *rows =
            ptac_registry_rows_on(PTAC_ON_CUDA, (ptac_op)op, &n);

        for (int i = 0; list && i < n; i++)
            ptac_append(&list,
                        Py_BuildValue("(sssOO)", ptac_op_name((ptac_op)op),
                                      rows[i]->name, ptac_level_name(rows[i]->level),
                                      rows[i]->asks_table ? Py_False : Py_True,
                                      ptac_chooser_is_quarantined(rows[i]) ? Py_True
                                                                           : Py_False));
    }
    return list;
}

/* cuda_name(number) -> the device's name, "" for none. The driver runs from here on. */
PTAC_O(cuda_name, number)
{
    const long device = PyLong_AsLong(number);
    char name[PTAC_DEVICE_NAME_BYTES] = "";

    if (PyErr_Occurred())
        return NULL;
    if (device >= 0 && device <= INT32_MAX)
        ptac_cuda_name((int)device, name);
    return PyUnicode_FromString(name);
}

/* cuda_measuring(on): whether tables and models are asked of calls on CUDA. */
PTAC_O(cuda_measuring, on)
{
    ptac_chooser_set_measuring(on == Py_True);
    Py_RETURN_NONE;
}

/* cuda_set_level(level): rows on CUDA may be so far from stock's bits. */
PTAC_O(cuda_set_level, name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);

    if (!text)
        return NULL;
    for (int level = PTAC_EXACT; level <= PTAC_FAST; level++) {
        if (strcmp(text, ptac_level_name((ptac_level)level)) != 0)
            continue;
        ptac_chooser_set_level((ptac_level)level);
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "unknown level %s", text);
}
