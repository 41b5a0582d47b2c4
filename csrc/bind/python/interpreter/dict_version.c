/*
 * dict_version.c - ma_version_tag of CPython's cpython/dictobject.h, which the stable
 * ABI does not tell of: behind reference count, type and number of items.
 */
#include "bind/python/interpreter/dict_version.h"

#include <string.h>

enum {
    COUNT_OFFSET = 16,
    VERSION_OFFSET = 24,
};

static bool is_trusted;

static uint64_t word_at(PyObject *dict, int offset)
{
    uint64_t word;

    memcpy(&word, (const char *)dict + offset, sizeof word);
    return word;
}

uint64_t ptac_dict_version(PyObject *dict)
{
    return is_trusted ? word_at(dict, VERSION_OFFSET) : 0;
}

/*
 * dict_word(dict) -> what may be its version, behind the number of items; 0 where this
 * is not found where it should be.
 */
PTAC_O(dict_word, dict)
{
    if (!PyDict_Check(dict))
        return PyErr_Format(PyExc_TypeError, "a dictionary is expected, not %R", dict);
    if (sizeof(void *) != sizeof(uint64_t) ||
        word_at(dict, COUNT_OFFSET) != (uint64_t)PyDict_Size(dict))
        return PyLong_FromLong(0);
    return PyLong_FromUnsignedLongLong(word_at(dict, VERSION_OFFSET));
}

/* dict_words_are_versions(bool): what graph/dict_versions.py has found. */
PTAC_O(dict_words_are_versions, are)
{
    is_trusted = are == Py_True;
    Py_RETURN_NONE;
}
