/*
 * dict_version.c - ma_version_tag of CPython's cpython/dictobject.h, which the stable
 * ABI does not tell of: behind reference count, type and number of items.
 */
#include "bind/python/interpreter/dict_version.h"

#include <string.h>

enum {
    COUNT_OFFSET = 16,
    VERSION_OFFSET = 24,
    ROUNDS = 8,
};

static bool is_known;

static uint64_t word_at(PyObject *dict, int offset)
{
    uint64_t word;

    memcpy(&word, (const char *)dict + offset, sizeof word);
    return word;
}

uint64_t ptac_dict_version(PyObject *dict)
{
    return is_known ? word_at(dict, VERSION_OFFSET) : 0;
}

/* One of the ways to change a dictionary, which has more of them each round. */
static bool change(PyObject *dict, int round)
{
    PTAC_OWNED PyObject *key = PyLong_FromLong(round);
    PTAC_OWNED PyObject *fresh = PyList_New(0);

    if (!key || !fresh)
        return false;
    return (round % 4 == 3 ? PyDict_DelItemString(dict, "name")
                           : PyDict_SetItemString(dict, "name", fresh)) == 0 &&
           PyDict_SetItem(dict, key, fresh) == 0;
}

/* New after a change, the same after a look, and another dictionary's is another. */
static bool behaves(PyObject *dict, PyObject *other, int round)
{
    const uint64_t before = word_at(dict, VERSION_OFFSET);
    uint64_t changed;

    if (!change(dict, round))
        return false;
    changed = word_at(dict, VERSION_OFFSET);
    (void)PyDict_GetItemString(dict, "name");
    return before != 0 && changed != before &&
           changed == word_at(dict, VERSION_OFFSET) &&
           changed != word_at(other, VERSION_OFFSET) &&
           word_at(dict, COUNT_OFFSET) == (uint64_t)PyDict_Size(dict);
}

void ptac_dict_version_learn(void)
{
    PTAC_OWNED PyObject *dict = PyDict_New();
    PTAC_OWNED PyObject *other = PyDict_New();
    bool may_be = sizeof(void *) == sizeof(uint64_t) && dict && other &&
                  PyDict_SetItemString(dict, "name", Py_None) == 0 &&
                  PyDict_SetItemString(other, "name", Py_None) == 0;

    for (int round = 0; may_be && round < ROUNDS; round++)
        may_be = behaves(dict, other, round);
    PyErr_Clear();
    is_known = may_be;
}
