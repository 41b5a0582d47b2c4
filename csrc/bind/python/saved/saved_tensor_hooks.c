/*
 * saved_tensor_hooks.c - what autograd saves for backward, held so that it can be let
 * go.
 *
 * pack and unpack are default hooks of torch's. Most tensors are small or parameters:
 * these are held as autograd itself would hold them, with the version that torch's own
 * check compares. What is large and plain is shown to the package (consider), which
 * may have the holder let go of its tensor later on and then restores it (restore).
 *
 * Autograd holds an input of a node as the very tensor, so that a program can still
 * give it other memory (tensor.data = ...), and an output by its memory alone, since
 * the tensor would hold the node in turn. The hook is not told which of them it sees.
 */
#include "bind/python/module/names.h"
#include "bind/python/saved/held.h"

#include <string.h>

/* Below that nothing is worth a look; tests find it by its name and look at all. */
int64_t ptac_saved_least_bytes = 256 << 10;

/* Any call into Python may change these, as other threads do: see call(). */
PTAC_LENT(consider) /* (holder, large tensor that is saved) -> its box; None: off */
PTAC_LENT(restore)  /* (holder) -> the tensor that it has let go of */
PTAC_LENT(complain) /* (holder, version, is detached) -> torch's words, or None */
PTAC_LENT(leave)    /* (): take the hooks away from this thread */
PTAC_LENT(current)  /* (holder, origin of maybe other memory) -> the tensor */
PTAC_LENT(saves_outputs) /* (type of node) -> whether it may save its first output */

static PyObject *node_types; /* what saves_outputs() said of types of torch's nodes */

/* One of those above, which stays as long as the call lasts. */
static PyObject *call(PyObject *lent, PyObject *first, PyObject *second,
                      PyObject *third)
{
    PTAC_OWNED PyObject *function = Py_NewRef(lent);

    return PyObject_CallFunctionObjArgs(function, first, second, third, NULL);
}

static int read_number(PyObject *object, PyObject *attribute, long long *number)
{
    PTAC_OWNED PyObject *value = PyObject_GetAttr(object, attribute);

    *number = value ? PyLong_AsLongLong(value) : -1;
    return PyErr_Occurred() ? -1 : 0;
}

/* Another tensor object of the same memory and version, outside autograd's graph. */
static PyObject *aliased(PyObject *tensor)
{
    at_tensor made = NULL;

    if (!ptac_is_plain(tensor) || !T.tensor_data ||
        T.aoti_torch_new_uninitialized_tensor(&made) != 0)
        return PyObject_CallMethodObjArgs(tensor, ptac_names.detach, NULL);
    *(void **)made = T.tensor_data(ptac_borrow(tensor)).words[0];
    return ptac_wrap(made);
}

static ptac_held *hold(PyObject *tensor, bool is_leaf, bool as_it_is)
{
    ptac_held *made = PyObject_GC_New(ptac_held, ptac_held_type);

    if (!made)
        return NULL;
    made->tensor = made->origin = made->box = NULL;
    made->geometry = made->weakrefs = NULL;
    made->was_leaf = is_leaf;
    if (as_it_is) {
        made->tensor = Py_NewRef(tensor);
    } else {
        made->tensor = aliased(tensor);
        made->origin = made->tensor ? PyWeakref_NewRef(tensor, NULL) : NULL;
    }
    if (!made->tensor || (!as_it_is && !made->origin) ||
        read_number(made->tensor, ptac_names._version, &made->version) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    PyObject_GC_Track(made);
    return made;
}

static bool is_large(PyObject *tensor)
{
    static const int bytes[] = {
        [PTAC_F32] = 4, [PTAC_BF16] = 2, [PTAC_F64] = 8,
        [PTAC_I64] = 8, [PTAC_F16] = 2,  [PTAC_OTHER_DTYPE] = 1};
    ptac_view view;

    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), &view);
    return view.data && view.n_elements > 0 &&
           view.n_elements * bytes[view.dtype] >= ptac_saved_least_bytes;
}

/* A parameter, or a view of one, stays whatever happens here. */
static int is_kept_anyway(PyObject *tensor, bool is_leaf)
{
    PTAC_OWNED PyObject *base = NULL;
    int kept;

    if (is_leaf)
        return ptac_truth(tensor, ptac_names.requires_grad);
    base = PyObject_GetAttr(tensor, ptac_names._base);
    if (!base)
        return -1;
    kept = base == Py_None ? 0 : ptac_truth(base, ptac_names.is_leaf);
    return kept > 0 ? ptac_truth(base, ptac_names.requires_grad) : kept;
}

/* What the package says of a type of torch's own nodes, which are static. */
static int type_saves_outputs(PyObject *type)
{
    PyObject *known = PyDict_GetItemWithError(node_types, type);
    PTAC_OWNED PyObject *said = NULL;

    if (known || PyErr_Occurred())
        return known ? known == Py_True : -1;
    said = call(saves_outputs, type, NULL, NULL);
    if (!said || PyDict_SetItem(node_types, type, said) < 0)
        return -1;
    return said == Py_True;
}

/*
 * Whether this tensor, which is no leaf, is certainly not saved by the node that made
 * it. A view may have been written by a node that is not the one it shows.
 */
static int is_surely_input(PyObject *tensor)
{
    PTAC_OWNED PyObject *node = NULL, *base = NULL;
    int saves = true;
    long long number;

    if (!ptac_is_tensor(tensor))
        return false;
    node = PyObject_GetAttr(tensor, ptac_names.grad_fn);
    if (!node)
        return -1;
    if (!(PyType_GetFlags(Py_TYPE(node)) & Py_TPFLAGS_HEAPTYPE))
        saves = type_saves_outputs((PyObject *)Py_TYPE(node));
    if (saves)
        return saves < 0 ? -1 : false;
    base = PyObject_GetAttr(tensor, ptac_names._base);
    if (base != Py_None)
        return base ? false : -1;
    return read_number(tensor, ptac_names.output_nr, &number) < 0 ? -1 : number == 0;
}

/* Switched off, in a thread that did not hear of it; -1 for an interrupt. */
static int leave_thread(void)
{
    PTAC_OWNED PyObject *left = call(leave, NULL, NULL, NULL);

    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* A holder of a tensor; consider_now, unless None, is asked about it if it is large. */
static PyObject *packed(PyObject *tensor, PyObject *consider_now)
{
    const int is_leaf = ptac_truth(tensor, ptac_names.is_leaf);
    bool wanted = false;
    int as_it_is;
    ptac_held *holder;

    if (is_leaf < 0)
        return NULL;
    if (consider_now != Py_None && is_large(tensor) && ptac_thread_is_plain()) {
        const int kept = is_kept_anyway(tensor, is_leaf);

        if (kept < 0)
            return NULL;
        wanted = !kept;
    }
    as_it_is = wanted ? false : is_leaf ? true : is_surely_input(tensor);
    holder = as_it_is < 0 ? NULL : hold(tensor, is_leaf, as_it_is);
    if (holder && wanted) {
        holder->box = call(consider_now, (PyObject *)holder, tensor, NULL);
        if (!holder->box)
            Py_CLEAR(holder);
    }
    return (PyObject *)holder;
}

static bool prepare(void)
{
    node_types = ptac_held_prepare() ? PyDict_New() : NULL;
    return node_types;
}

/* saved_pack(tensor) -> its holder: the hook for what is saved */
PTAC_O(saved_pack, tensor)
{
    PTAC_OWNED PyObject *consider_now = NULL;

    if ((consider == Py_None && leave_thread() < 0) || (!node_types && !prepare()))
        return NULL;
    consider_now = Py_NewRef(consider);
    return packed(tensor, consider_now);
}

bool ptac_saved_is_pack(PyObject *hook)
{
    return PyCFunction_Check(hook) && PyCFunction_GetFunction(hook) == saved_pack;
}

/* Whether torch has nothing to complain of; else its error is set. */
static bool is_well(PyObject *holder, long long now, bool is_detached)
{
    PTAC_OWNED PyObject *version = PyLong_FromLongLong(now), *text = NULL;

    if (version)
        text = call(complain, holder, version, is_detached ? Py_True : Py_False);
    if (text && text != Py_None)
        PyErr_SetObject(PyExc_RuntimeError, text);
    return text == Py_None;
}

/* Whether two plain tensors are the same piece of memory, looked at in the same way. */
static bool is_same_memory(PyObject *one, PyObject *other)
{
    int32_t dtypes[2] = {-1, -1};
    ptac_view a, b;

    ptac_view_of(ptac_borrow(one), &a);
    ptac_view_of(ptac_borrow(other), &b);
    T.aoti_torch_get_dtype(ptac_borrow(one), &dtypes[0]);
    T.aoti_torch_get_dtype(ptac_borrow(other), &dtypes[1]);
    if (a.data != b.data || a.n_dims != b.n_dims || dtypes[0] != dtypes[1])
        return false;

    const size_t bytes = (size_t)a.n_dims * sizeof *a.sizes;

    return bytes == 0 || (memcmp(a.sizes, b.sizes, bytes) == 0 &&
                          memcmp(a.strides, b.strides, bytes) == 0);
}

/* The tensor in a holder; or what it was taken from, if autograd would hold that. */
static PyObject *as_autograd(PyObject *holder, PyObject *tensor, PyObject *origin)
{
    if (tensor == origin || (ptac_is_plain(tensor) && ptac_is_plain(origin) &&
                             is_same_memory(tensor, origin)))
        return Py_NewRef(tensor);
    return call(current, holder, origin, NULL);
}

/*
 * The same, or torch's error. origin: what was saved, or None where that is gone. An
 * input that was detached in place has become a leaf.
 */
static PyObject *checked(ptac_held *holder, PyObject *tensor, PyObject *origin)
{
    const int is_leaf = holder->was_leaf || origin == Py_None
                            ? false
                            : ptac_truth(origin, ptac_names.is_leaf);
    long long now;

    if (is_leaf < 0 || read_number(tensor, ptac_names._version, &now) < 0)
        return NULL;
    if ((is_leaf || now != holder->version) &&
        !is_well((PyObject *)holder, now, is_leaf))
        return NULL;
    return origin == Py_None ? Py_NewRef(tensor)
                             : as_autograd((PyObject *)holder, tensor, origin);
}

/* saved_unpack(holder) -> the tensor, or torch's own error where it was changed */
PTAC_O(saved_unpack, object)
{
    PTAC_OWNED PyObject *tensor = NULL, *origin = NULL;
    ptac_held *holder = (ptac_held *)object;

    if (Py_TYPE(object) != ptac_held_type)
        return PyErr_Format(PyExc_TypeError, "a holder is expected, not %R", object);
    if (!holder->tensor)
        return call(restore, object, NULL, NULL);
    tensor = Py_NewRef(holder->tensor);
    origin = holder->origin ? PyObject_CallNoArgs(holder->origin) : Py_NewRef(tensor);
    return origin ? checked(holder, tensor, origin) : NULL;
}

/* saved_is_possible() -> whether this torch has what the hooks need. */
#ifdef __x86_64__
PTAC_GIVES(saved_is_possible, PyBool_FromLong(T.tensor_data != NULL))
#else /* results come back another way */
PTAC_GIVES(saved_is_possible, PyBool_FromLong(false))
#endif

/* saved_remove(): consider nothing any more; what is held can still be restored. */
PTAC_DOES(saved_remove, ptac_keep(&consider, Py_None))

/* saved_is_on() -> whether large tensors are considered */
PTAC_GIVES(saved_is_on, PyBool_FromLong(consider != Py_None))
