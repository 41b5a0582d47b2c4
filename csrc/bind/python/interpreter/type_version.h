/*
 * type_version.h - whether a class is as it was.
 *
 * CPython gives a class a number when it looks an attribute up in it, and takes the
 * number away when the class or one of its bases is changed; the next one is another.
 * Where a type object keeps it is learnt, see type_version.c.
 */
#ifndef PTAC_BIND_PYTHON_INTERPRETER_TYPE_VERSION_H
#define PTAC_BIND_PYTHON_INTERPRETER_TYPE_VERSION_H

#include "bind/python/module/pybind.h"

/*
 * The number of a class; 0 where it has none at the moment, or we do not know where it
 * is. While it stays the same all attributes of the class are the same objects.
 */
uint32_t ptac_type_version(PyTypeObject *type);

/* Whether an attribute of a class is this; NULL: it has none of the name. */
bool ptac_class_has(PyTypeObject *type, PyObject *name, PyObject *expected);

#endif
