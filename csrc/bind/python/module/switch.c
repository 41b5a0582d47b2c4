/*
 * switch.c - dispatcher entries in and out, quiet moments, shadow checks.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/overrides/direct.h"
#include "bind/torch/overrides/override.h"

#include <string.h>

/* How an override is called here: by its operator, and before that where it lies. */
static const char *const prefixes[PTAC_N_DEVICES] = {"", "cuda:"};

/* As torch calls an overload: "index.Tensor". */
static PyObject *direct_name(const ptac_direct *direct)
{
    return Py_BuildValue("Ns",
                         PyUnicode_FromFormat("%s%s%s", direct->name,
                                              *direct->overload ? "." : "",
                                              direct->overload),
                         ptac_op_name(direct->op));
}

static PyObject *names_on(ptac_device device)
{
    PyObject *list = PyList_New(0);
    const ptac_override *override;

    for (int i = 0; list && (override = ptac_override_at(i)); i++) {
        const ptac_op_set ops = ptac_override_ops(override);

        for (int op = 0; override->on[device].boxed && op < PTAC_N_OPS; op++)
            if (ptac_op_set_has(&ops, (ptac_op)op))
                ptac_append(&list, Py_BuildValue("ss", override->name,
                                                 ptac_op_name((ptac_op)op)));
    }
    if (device == PTAC_ON_CPU)
        for (const ptac_direct *d = ptac_direct_first(); list && d; d = d->next)
            ptac_append(&list, direct_name(d));
    return list;
}

/* override_names() -> [(operator of aten, an operator of ours that it may be)] */
PTAC_GIVES(override_names, names_on(PTAC_ON_CPU))

/* cuda_override_names() -> likewise, of those that lie at the key CUDA */
PTAC_GIVES(cuda_override_names, names_on(PTAC_ON_CUDA))

/* Those of a list of names, such as "max_pool2d" and "cuda:max_pool2d". */
static bool places_from(PyObject *names, ptac_places *places)
{
    const size_t length = strlen(prefixes[PTAC_ON_CUDA]);

    *places = (ptac_places){0};
    if (!PyList_Check(names))
        return PyErr_Format(PyExc_TypeError, "a list of operators is expected");
    for (Py_ssize_t i = 0; i < PyList_Size(names); i++) {
        const char *name = PyUnicode_AsUTF8AndSize(PyList_GetItem(names, i), NULL);
        const bool on_cuda = name && strncmp(name, prefixes[PTAC_ON_CUDA], length) == 0;
        PTAC_OWNED PyObject *op_name =
            name ? PyUnicode_FromString(name + (on_cuda ? length : 0)) : NULL;
        const ptac_op op = op_name ? ptac_op_from(op_name) : PTAC_N_OPS;

        if (op == PTAC_N_OPS)
            return false;
        ptac_op_set_add(&places->on[on_cuda], op);
    }
    return true;
}

/* override_install([names]): None, or what went wrong. */
PTAC_O(override_install, names)
{
    ptac_places places;
    const char *trouble;

    if (!places_from(names, &places))
        return NULL;
    trouble = ptac_override_install(places);
    ptac_python_dispatch_forget();
    return Py_BuildValue("z", trouble);
}

/* override_installed() -> [names of the overrides that are in the dispatcher] */
PTAC_NOARGS(override_installed)
{
    const ptac_places places = ptac_override_installed(false);
    PyObject *list = PyList_New(0);

    for (int device = 0; device < PTAC_N_DEVICES; device++)
        for (int op = 0; list && op < PTAC_N_OPS; op++)
            if (ptac_op_set_has(&places.on[device], (ptac_op)op))
                ptac_append(&list, PyUnicode_FromFormat("%s%s", prefixes[device],
                                                        ptac_op_name((ptac_op)op)));
    return list;
}

/* override_remove([names]) -> whether they are out: the moment was quiet. */
PTAC_O(override_remove, names)
{
    ptac_places places;

    if (!places_from(names, &places))
        return NULL;
    if (PyList_Size(names) && !ptac_is_quiet())
        Py_RETURN_FALSE;
    ptac_override_remove(places);
    ptac_python_dispatch_forget();
    ptac_chooser_collect();
    Py_RETURN_TRUE;
}

/* flight() -> (calls in flight, calls ever entered) */
PTAC_GIVES(flight, Py_BuildValue("lk", ptac_calls_in_flight(), ptac_calls_entered()))

static const char *blocks_name = "pai_torchacc disabled";

static void end_block(PyObject *capsule)
{
    ptac_thread_enable(PyCapsule_GetPointer(capsule, blocks_name));
}

/* thread_disable() -> what keeps this thread disabled while it lives. */
PTAC_NOARGS(thread_disable)
{
    ptac_blocks *blocks = ptac_thread_disable();
    PyObject *capsule;

    if (!blocks)
        return PyErr_NoMemory();
    capsule = PyCapsule_New(blocks, blocks_name, end_block);
    if (!capsule)
        ptac_thread_enable(blocks);
    return capsule;
}

/* thread_is_disabled() -> whether it is, by either of the two. */
PTAC_GIVES(thread_is_disabled, PyBool_FromLong(ptac_thread_is_disabled()))

static void end_mute(PyObject *capsule)
{
    ptac_thread_mute(-1);
}

/* thread_mute() -> likewise, of its own thread; and what is refused is not counted. */
PTAC_NOARGS(thread_mute)
{
    static char muted;
    PyObject *capsule = PyCapsule_New(&muted, NULL, end_mute);

    if (capsule)
        ptac_thread_mute(1);
    return capsule;
}

static PyObject *after_forward;
static bool after_forward_asked;

/* In the main thread, between two instructions of its program. */
static int call_after_forward(void *unused)
{
    PTAC_OWNED PyObject *callback = after_forward, *result = NULL;

    after_forward = NULL;
    if (callback)
        result = PyObject_CallNoArgs(callback);
    return callback && !result ? -1 : 0;
}

static void ask_after_forward(void)
{
    /* Where the interpreter's queue is full the next call asks again. */
    if (__atomic_exchange_n(&after_forward_asked, false, __ATOMIC_RELAXED) &&
        Py_AddPendingCall(call_after_forward, NULL) < 0)
        __atomic_store_n(&after_forward_asked, true, __ATOMIC_RELAXED);
}

/* when_forwarded(callback): call it once, soon after a call that finds us off. */
PTAC_O(when_forwarded, callback)
{
    ptac_keep(&after_forward, callback);
    __atomic_store_n(&after_forward_asked, true, __ATOMIC_RELAXED);
    ptac_when_forwarded(ask_after_forward);
    Py_RETURN_NONE;
}

/* shadow_every(n): compare one call in so many with stock; 0 for none. */
PTAC_OF_NUMBER(shadow_every)
{
    ptac_shadow_every(number);
    Py_RETURN_NONE;
}

/* shadow_due(operator) -> whether stock is to repeat this call; counts the call. */
PTAC_OF_OP(shadow_due)
{
    return PyBool_FromLong(ptac_shadow_due(op));
}

/* Of a tensor on the CPU; of float16 too, as copies of CUDA's may be. */
static void view_of_copy(PyObject *copy, ptac_view *view)
{
    (T.aoti_torch_get_device_type ? ptac_cuda_view_of : ptac_view_of)(ptac_borrow(copy),
                                                                      view);
}

/* Views of two tensors that can be compared element by element. */
static bool comparable(PyObject *ours, PyObject *stock, ptac_view views[2])
{
    if (!ptac_is_plain(ours) || !ptac_is_plain(stock))
        return false;
    view_of_copy(ours, &views[0]);
    view_of_copy(stock, &views[1]);
    return views[0].dtype < PTAC_N_DTYPES && ptac_view_is_alike(&views[0], &views[1]) &&
           ptac_view_is_dense(&views[0]);
}

/*
 * shadow_settle(operator, ours, stock, ns ours took, ns stock took) -> whether the
 * tensors of these two tuples agree; see ptac_shadow_agrees(). Those that are of other
 * dtypes, or with gaps, are left out.
 */
PTAC_VARARGS(shadow_settle)
{
    PyObject *ours, *stock;
    long long t_ours_ns, t_stock_ns;
    bool agrees = true;
    ptac_op op;

    if (!PyArg_ParseTuple(args, "O&O!O!LL", ptac_op_read, &op, &PyTuple_Type, &ours,
                          &PyTuple_Type, &stock, &t_ours_ns, &t_stock_ns))
        return NULL;

    const Py_ssize_t n = PyTuple_Size(ours);
    const ptac_kernel *row = ptac_last_row(op);

    if (PyTuple_Size(stock) != n)
        return PyErr_Format(PyExc_ValueError, "two tuples of one length are expected");
    for (Py_ssize_t i = 0; i < n && row && agrees; i++) {
        const bool is_last = i + 1 == n; /* the times count once */
        ptac_view views[2];

        if (comparable(PyTuple_GetItem(ours, i), PyTuple_GetItem(stock, i), views))
            agrees =
                ptac_shadow_agrees(row, &views[0], &views[1], 1,
                                   is_last ? t_ours_ns : 0, is_last ? t_stock_ns : 0);
    }
    return PyBool_FromLong(agrees);
}
