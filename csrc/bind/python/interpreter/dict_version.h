/*
 * dict_version.h - whether a dictionary is as it was.
 *
 * CPython up to 3.12 gives a dictionary a new number whenever it is changed (PEP 509),
 * and keeps it behind the number of items. pai_torchacc/graph/dict_versions.py tries
 * out whether the running one does.
 */
#ifndef PTAC_BIND_PYTHON_INTERPRETER_DICT_VERSION_H
#define PTAC_BIND_PYTHON_INTERPRETER_DICT_VERSION_H

#include "bind/python/module/pybind.h"

/*
 * The number of a dictionary; 0 where this Python has none. While it stays the same the
 * dictionary has the same names with the same objects, in the same order.
 */
uint64_t ptac_dict_version(PyObject *dict);

#endif
