/*
 * held.c - the type of holders: members that Python reads, and their memory.
 */
#include "bind/python/saved/held.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *ptac_held_type;

#define OBJECTS(X) X(tensor) X(origin) X(box) X(geometry)

static int held_traverse(PyObject *self, visitproc visit, void *arg)
{
    ptac_held *holder = (ptac_held *)self;

    Py_VISIT(Py_TYPE(self));
#define X(member) Py_VISIT(holder->member);
    OBJECTS(X)
#undef X
    return 0;
}

static int held_clear(PyObject *self)
{
    ptac_held *holder = (ptac_held *)self;

#define X(member) Py_CLEAR(holder->member);
    OBJECTS(X)
#undef X
    return 0;
}

static void held_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    if (((ptac_held *)self)->weakrefs)
        PyObject_ClearWeakRefs(self);
    held_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef held_members[] = {
    {"tensor", T_OBJECT, offsetof(ptac_held, tensor), READONLY, NULL},
    {"origin", T_OBJECT, offsetof(ptac_held, origin), READONLY, NULL},
    {"box", T_OBJECT, offsetof(ptac_held, box), READONLY, NULL},
    {"geometry", T_OBJECT, offsetof(ptac_held, geometry), READONLY, NULL},
    {"version", T_LONGLONG, offsetof(ptac_held, version), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ptac_held, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot held_slots[] = {
    {Py_tp_dealloc, (void *)held_dealloc},
    {Py_tp_traverse, (void *)held_traverse},
    {Py_tp_clear, (void *)held_clear},
    {Py_tp_members, (void *)held_members},
    {0, NULL},
};

static PyType_Spec held_spec = {
    .name = "pai_torchacc._C.Held",
    .basicsize = sizeof(ptac_held),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = held_slots,
};

bool ptac_held_prepare(void)
{
    ptac_held_type = (PyTypeObject *)PyType_FromSpec(&held_spec);
    return ptac_held_type;
}

/* saved_release(holder, geometry): it lets go of the tensor, which looked like that. */
PTAC_ARGS(saved_release, 2)
{
    ptac_held *holder = (ptac_held *)args[0];

    if (Py_TYPE(args[0]) != ptac_held_type)
        return PyErr_Format(PyExc_TypeError, "a holder is expected, not %R", args[0]);
    ptac_keep(&holder->geometry, args[1]);
    Py_CLEAR(holder->tensor);
    Py_RETURN_NONE;
}
