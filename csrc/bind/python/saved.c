/*
 * saved.c - what autograd saves for backward, held so that it can be let go.
 *
 * pack and unpack are default hooks of torch's. Most tensors are small or parameters:
 * these are held as autograd itself would hold them, with the version that torch's own
 * check compares. What is large and plain is shown to the package (consider), which
 * may have the holder let go of its tensor later on and then restores it (restore).
 */
#include "bind/python/pybind.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* Below that nothing is worth a look; tests look at everything. */
static int64_t least_bytes = 256 << 10;

typedef struct held {
    PyObject_HEAD PyObject
        *tensor;        /* shares memory and version with what was saved; or NULL */
    PyObject *origin;   /* a weak reference to what was saved, where that is not it */
    PyObject *box;      /* the package's, for large tensors */
    PyObject *geometry; /* what saved_release() was given with the tensor */
    PyObject *weakrefs;
    long long version;
} held;

static PyTypeObject *held_type;

/* What saved_install() was given; consider and restore are NULL while it is off. */
static PyObject *consider, *restore, *complain, *leave;

static PyObject *s_version, *s_is_leaf, *s_requires_grad, *s_base, *s_detach;

static int is_true(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    const int truth = value ? PyObject_IsTrue(value) : -1;

    Py_XDECREF(value);
    return truth;
}

static int version_of(PyObject *tensor, long long *version)
{
    PyObject *value = PyObject_GetAttr(tensor, s_version);

    *version = value ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

/* Another tensor object of the same memory and version, outside autograd's graph. */
static PyObject *aliased(PyObject *tensor)
{
    at_tensor made = NULL;

    if (!ptac_is_plain(tensor) || !T.tensor_data ||
        T.aoti_torch_new_uninitialized_tensor(&made) != 0)
        return PyObject_CallMethodObjArgs(tensor, s_detach, NULL);
    T.tensor_data(made, ptac_borrow(tensor));
    return ptac_wrap(made);
}

static held *hold(PyObject *tensor, bool as_it_is)
{
    held *made = PyObject_GC_New(held, held_type);

    if (!made)
        return NULL;
    made->tensor = made->origin = made->box = NULL;
    made->geometry = made->weakrefs = NULL;
    if (as_it_is) {
        made->tensor = Py_NewRef(tensor);
    } else {
        made->tensor = aliased(tensor);
        made->origin = made->tensor ? PyWeakref_NewRef(tensor, NULL) : NULL;
    }
    if (!made->tensor || (!as_it_is && !made->origin) ||
        version_of(made->tensor, &made->version) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    PyObject_GC_Track(made);
    return made;
}

static bool is_large(PyObject *tensor)
{
    static const int bytes[] = {4, 2, 8, 8, 1};
    ptac_view view;

    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), &view);
    return view.data && view.n_elements > 0 &&
           view.n_elements * bytes[view.dtype] >= least_bytes;
}

/* A parameter, or a view of one, stays whatever happens here. */
static int is_kept_anyway(PyObject *tensor, bool is_leaf)
{
    PyObject *base;
    int kept;

    if (is_leaf)
        return is_true(tensor, s_requires_grad);
    base = PyObject_GetAttr(tensor, s_base);
    if (!base)
        return -1;
    kept = base == Py_None ? 0 : is_true(base, s_is_leaf);
    if (kept > 0)
        kept = is_true(base, s_requires_grad);
    Py_DECREF(base);
    return kept;
}

/* pack(tensor): its holder. */
static PyObject *saved_pack(PyObject *self, PyObject *tensor)
{
    const int is_leaf = is_true(tensor, s_is_leaf);
    bool wanted = false;
    held *holder;

    (void)self;
    if (is_leaf < 0)
        return NULL;
    if (!consider) { /* switched off, in a thread that did not hear of it */
        PyObject *left = leave ? PyObject_CallNoArgs(leave) : NULL;

        Py_XDECREF(left);
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
            return NULL; /* an interrupt */
        PyErr_Clear();
    } else if (is_large(tensor) && ptac_thread_is_plain()) {
        const int kept = is_kept_anyway(tensor, is_leaf);

        if (kept < 0)
            return NULL;
        wanted = !kept;
    }
    holder = hold(tensor, is_leaf && !wanted);
    if (holder && wanted) {
        PyObject *args[] = {(PyObject *)holder, tensor};
        PyObject *box = PyObject_CallFunctionObjArgs(consider, args[0], args[1], NULL);

        if (!box) {
            Py_DECREF(holder);
            return NULL;
        }
        holder->box = box;
    }
    return (PyObject *)holder;
}

bool ptac_saved_is_pack(PyObject *hook)
{
    return PyCFunction_Check(hook) && PyCFunction_GetFunction(hook) == saved_pack;
}

static PyObject *complaint(PyObject *holder, long long now)
{
    PyObject *text = PyObject_CallFunction(complain, "OL", holder, now);

    if (text)
        PyErr_SetObject(PyExc_RuntimeError, text);
    Py_XDECREF(text);
    return NULL;
}

/* unpack(holder): the tensor, or torch's own complaint where it has been changed. */
static PyObject *saved_unpack(PyObject *self, PyObject *object)
{
    held *holder = (held *)object;
    long long now;

    (void)self;
    if (Py_TYPE(object) != held_type)
        return PyErr_Format(PyExc_TypeError, "a holder is expected, not %R", object);
    if (!holder->tensor)
        return PyObject_CallFunctionObjArgs(restore, object, NULL);
    if (version_of(holder->tensor, &now) < 0)
        return NULL;
    if (now != holder->version)
        return complaint(object, now);
    return Py_NewRef(holder->tensor);
}

/* saved_release(holder, geometry): it lets go of the tensor, which looked like that. */
static PyObject *saved_release(PyObject *self, PyObject *args)
{
    PyObject *geometry;
    held *holder;

    (void)self;
    if (!PyArg_ParseTuple(args, "O!O", held_type, &holder, &geometry))
        return NULL;
    ptac_keep(&holder->geometry, geometry);
    Py_CLEAR(holder->tensor);
    Py_RETURN_NONE;
}

static int held_traverse(PyObject *self, visitproc visit, void *arg)
{
    held *holder = (held *)self;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(holder->tensor);
    Py_VISIT(holder->origin);
    Py_VISIT(holder->box);
    Py_VISIT(holder->geometry);
    return 0;
}

static int held_clear(PyObject *self)
{
    held *holder = (held *)self;

    Py_CLEAR(holder->tensor);
    Py_CLEAR(holder->origin);
    Py_CLEAR(holder->box);
    Py_CLEAR(holder->geometry);
    return 0;
}

static void held_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    if (((held *)self)->weakrefs)
        PyObject_ClearWeakRefs(self);
    held_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef held_members[] = {
    {"tensor", T_OBJECT, offsetof(held, tensor), READONLY, NULL},
    {"origin", T_OBJECT, offsetof(held, origin), READONLY, NULL},
    {"box", T_OBJECT, offsetof(held, box), READONLY, NULL},
    {"geometry", T_OBJECT, offsetof(held, geometry), READONLY, NULL},
    {"version", T_LONGLONG, offsetof(held, version), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(held, weakrefs), READONLY, NULL},
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
    .basicsize = sizeof(held),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = held_slots,
};

static int intern_names(void)
{
    s_version = PyUnicode_InternFromString("_version");
    s_is_leaf = PyUnicode_InternFromString("is_leaf");
    s_requires_grad = PyUnicode_InternFromString("requires_grad");
    s_base = PyUnicode_InternFromString("_base");
    s_detach = PyUnicode_InternFromString("detach");
    return s_version && s_is_leaf && s_requires_grad && s_base && s_detach ? 0 : -1;
}

/*
 * saved_install(consider, restore, complain, leave): the package's part. Returns
 * whether this torch has what the hooks need.
 *
 *   consider(holder, tensor)   a large tensor is being saved; its box
 *   restore(holder)            the tensor that the holder has let go of
 *   complain(holder, version)  torch's words for a tensor changed since it was saved
 *   leave()                    take the hooks away from this thread
 */
static PyObject *saved_install(PyObject *self, PyObject *args)
{
    PyObject *given[4];

    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    if (!held_type) {
        if (intern_names() < 0)
            return NULL;
        held_type = (PyTypeObject *)PyType_FromSpec(&held_spec);
        if (!held_type)
            return NULL;
    }
#ifdef __x86_64__ /* elsewhere results come back another way */
    if (!T.tensor_data)
        Py_RETURN_FALSE;
#else
    Py_RETURN_FALSE;
#endif
    ptac_keep(&restore, given[1]);
    ptac_keep(&complain, given[2]);
    ptac_keep(&leave, given[3]);
    ptac_keep(&consider, given[0]);
    Py_RETURN_TRUE;
}

/* saved_remove(): consider nothing any more; what is held can still be restored. */
static PyObject *saved_remove(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_CLEAR(consider);
    Py_RETURN_NONE;
}

/* saved_least(bytes) -> what it was: look at tensors from that size on. */
static PyObject *saved_least(PyObject *self, PyObject *bytes)
{
    const long long before = least_bytes, now = PyLong_AsLongLong(bytes);

    (void)self;
    if (PyErr_Occurred())
        return NULL;
    least_bytes = now;
    return PyLong_FromLongLong(before);
}

static PyObject *saved_is_on(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(consider != NULL);
}

PyMethodDef ptac_saved_methods[] = {
    {"saved_least", saved_least, METH_O, NULL},
    {"saved_is_on", saved_is_on, METH_NOARGS, NULL},
    {"saved_pack", saved_pack, METH_O, NULL},
    {"saved_unpack", saved_unpack, METH_O, NULL},
    {"saved_release", saved_release, METH_VARARGS, NULL},
    {"saved_install", saved_install, METH_VARARGS, NULL},
    {"saved_remove", saved_remove, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
