/*
 * type_version.c - learning where a type object keeps its version.
 *
 * The stable ABI does not tell (it is tp_version_tag of CPython's cpython/object.h). So
 * classes are changed and looked up by turns, and the one word is taken that is 0
 * whenever it has to be, and new after each lookup.
 */
#include "bind/python/module/names.h"
#include "bind/python/interpreter/type_version.h"

#include <string.h>

enum {
    MOST_WORDS = 512,
    ROUNDS = 4,
};

static Py_ssize_t version_offset; /* 0: not known */

uint32_t ptac_type_version(PyTypeObject *type)
{
    uint32_t version = 0;

    if (version_offset)
        memcpy(&version, (const char *)type + version_offset, sizeof version);
    return version;
}

bool ptac_class_has(PyTypeObject *type, PyObject *name, PyObject *expected)
{
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);

    if (!found)
        PyErr_Clear();
    Py_XDECREF(found);
    return found == expected;
}

/* The words of two classes, base and derived, in a state of both. */
typedef struct picture {
    uint32_t words[2][MOST_WORDS];
} picture;

typedef struct pair {
    PyObject *classes[2], *name;
    size_t n_words;
} pair;

static bool look_up(const pair *p)
{
    for (int i = 0; i < 2; i++) {
        PyObject *found = PyObject_GetAttr(p->classes[i], p->name);

        Py_XDECREF(found);
        if (!found)
            return false;
    }
    return true;
}

static void take(const pair *p, picture *to)
{
    for (int i = 0; i < 2; i++)
        memcpy(to->words[i], p->classes[i], p->n_words * sizeof(uint32_t));
}

/* Take words out of *may_be that do not behave like a version; false: an exception. */
static bool exclude(const pair *p, bool *may_be)
{
    static picture known, changed, again; /* under the interpreter's lock */

    if (!look_up(p))
        return false;
    take(p, &known);
    if (PyObject_SetAttr(p->classes[0], p->name, Py_None) < 0)
        return false;
    take(p, &changed);
    if (!look_up(p))
        return false;
    take(p, &again);
    for (size_t i = 0; i < p->n_words; i++)
        for (int j = 0; j < 2; j++)
            may_be[i] &= known.words[j][i] != 0 && changed.words[j][i] == 0 &&
                         again.words[j][i] > known.words[j][i];
    return true;
}

/*
 * type_version_learn(base, derived, name): classes for this alone, of which base has an
 * attribute of the name. Returns whether exactly one word behaves like a version.
 */
PTAC_ARGS(type_version_learn, 3)
{
    bool may_be[MOST_WORDS];
    PTAC_OWNED PyObject *size = NULL;
    pair p = {.classes = {args[0], args[1]}, .name = args[2]};
    int n_found = 0;

    if (!PyType_Check(args[0]) || !PyType_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "two classes are expected");
    size = PyObject_GetAttr((PyObject *)Py_TYPE(args[0]), ptac_names.__basicsize__);
    p.n_words = size ? PyLong_AsSize_t(size) / sizeof(uint32_t) : 0;
    if (PyErr_Occurred())
        return NULL;
    if (p.n_words > MOST_WORDS)
        p.n_words = MOST_WORDS;
    version_offset = 0;
    memset(may_be, true, sizeof may_be);
    for (int i = 0; i < ROUNDS; i++)
        if (!exclude(&p, may_be))
            return NULL;
    for (size_t i = 0; i < p.n_words; i++) {
        if (may_be[i]) {
            version_offset = (Py_ssize_t)(i * sizeof(uint32_t));
            n_found++;
        }
    }
    if (n_found != 1)
        version_offset = 0;
    return PyBool_FromLong(version_offset != 0);
}
