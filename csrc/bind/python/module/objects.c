/*
 * objects.c - what the files of this folder do with objects of Python's.
 */
#include "bind/python/module/names.h"

struct ptac_names ptac_names;

bool ptac_names_intern(void)
{
#define X(name) #name
    static const char *const texts[] = {PTAC_NAMES(X)};
#undef X
    PyObject **names = (PyObject **)&ptac_names;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!(names[i] = PyUnicode_InternFromString(texts[i])))
            return false;
    return true;
}

void ptac_keep(PyObject **home, PyObject *object)
{
    PyObject *before = *home;

    *home = Py_NewRef(object);
    Py_XDECREF(before);
}

void ptac_append(PyObject **list, PyObject *item)
{
    if (*list && (!item || PyList_Append(*list, item) < 0))
        Py_CLEAR(*list);
    Py_XDECREF(item);
}

void ptac_put(PyObject **dict, const char *key, PyObject *value)
{
    if (*dict && (!value || PyDict_SetItemString(*dict, key, value) < 0))
        Py_CLEAR(*dict);
    Py_XDECREF(value);
}

int ptac_truth(PyObject *object, PyObject *attribute)
{
    PTAC_OWNED PyObject *value = PyObject_GetAttr(object, attribute);

    return value ? PyObject_IsTrue(value) : -1;
}
