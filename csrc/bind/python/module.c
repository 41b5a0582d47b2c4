/*
 * module.c - the module pai_torchacc._C: loading, switching, reading the counters.
 *
 * Thin on purpose: what a switch does is decided in the Python package, what a call
 * does in csrc/bind/torch. The functions are private to the package.
 */
#include "bind/python/pybind.h"

#include "bind/torch/override.h"

#include <string.h>

ptac_op ptac_op_from(PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    const ptac_op op = text ? ptac_op_find(text) : PTAC_N_OPS;

    if (op == PTAC_N_OPS && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "unknown operator %R", name);
    return op;
}

static PyObject *load(PyObject *self, PyObject *args)
{
    const char *directory, *hidden;

    (void)self;
    if (!PyArg_ParseTuple(args, "sz", &directory, &hidden))
        return NULL;

    const char *missing = ptac_torch_load(directory, hidden);

    if (missing)
        return PyUnicode_FromString(missing);
    ptac_host_install();
    Py_RETURN_NONE;
}

static PyObject *symbols(PyObject *self, PyObject *unused)
{
    PyObject *found = PyDict_New();

    (void)self;
    (void)unused;
    if (!found)
        return NULL;
#define F(type, name, parameters)                                                      \
    if (PyDict_SetItemString(found, #name, T.name ? Py_True : Py_False) < 0)           \
        goto fail;
#define M(type, name, symbol, parameters) F(type, name, parameters)
    PTAC_TORCH_REQUIRED(F)
    PTAC_TORCH_OPTIONAL(F)
    PTAC_TORCH_MANGLED(M)
    PTAC_TORCH_FOREIGN(M)
#undef F
#undef M
    return found;
fail:
    Py_DECREF(found);
    return NULL;
}

static PyObject *cpu(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("ss", ptac_cpu_model(), ptac_isa_name(ptac_cpu_isa()));
}

static PyObject *limit_isa(PyObject *self, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);

    (void)self;
    for (int isa = PTAC_ISA_SCALAR; text && isa <= PTAC_ISA_AVX512; isa++) {
        if (strcmp(text, ptac_isa_name((ptac_isa)isa)) == 0) {
            ptac_cpu_limit((ptac_isa)isa);
            Py_RETURN_NONE;
        }
    }
    if (text)
        PyErr_Format(PyExc_ValueError,
                     "unknown instruction set %R: scalar, avx2 or avx512", name);
    return NULL;
}

/* One row as (name, level, whether this CPU runs it, whether it is quarantined). */
static PyObject *describe_row(const ptac_kernel *row)
{
    return Py_BuildValue("(ssOO)", row->name, ptac_level_name(row->level),
                         row->needs & ~ptac_cpu_features() ? Py_False : Py_True,
                         ptac_chooser_is_quarantined(row) ? Py_True : Py_False);
}

static int append_stolen(PyObject *list, PyObject *item)
{
    const int error = item ? PyList_Append(list, item) : -1;

    Py_XDECREF(item);
    return error;
}

static PyObject *describe_op(ptac_op op)
{
    const ptac_op_shapes *shapes = ptac_registry_shapes(op);
    PyObject *kinds = PyList_New(0), *rows = PyList_New(0), *result = NULL;
    int n;
    const ptac_kernel *const *row = ptac_registry_rows(op, &n);

    if (!kinds || !rows)
        goto done;
    for (int i = 0; shapes && i < PTAC_MAX_KINDS && shapes->kinds[i]; i++)
        if (append_stolen(kinds, PyUnicode_FromString(shapes->kinds[i])) < 0)
            goto done;
    for (int i = 0; i < n; i++)
        if (append_stolen(rows, describe_row(row[i])) < 0)
            goto done;
    result = Py_BuildValue("(sOO)", ptac_op_name(op), kinds, rows);
done:
    Py_XDECREF(kinds);
    Py_XDECREF(rows);
    return result;
}

static PyObject *operators(PyObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);

    (void)self;
    (void)unused;
    for (int op = 0; list && op < PTAC_N_OPS; op++)
        if (append_stolen(list, describe_op((ptac_op)op)) < 0)
            Py_CLEAR(list);
    return list;
}

static ptac_dtype dtype_from(const char *name)
{
    int dtype = 0;

    while (dtype < PTAC_N_DTYPES &&
           strcmp(ptac_dtype_name((ptac_dtype)dtype), name) != 0)
        dtype++;
    return (ptac_dtype)dtype;
}

static int kind_from(ptac_op op, const char *name)
{
    const ptac_op_shapes *shapes = ptac_registry_shapes(op);

    for (int i = 0; shapes && i < PTAC_MAX_KINDS && shapes->kinds[i]; i++)
        if (strcmp(shapes->kinds[i], name) == 0)
            return i;
    return -1;
}

static int read_point(PyObject *tuple, ptac_point *point)
{
    PyObject *op;
    const char *kind, *dtype, *row;
    long long work;

    if (!PyArg_ParseTuple(tuple, "UssiLz", &op, &kind, &dtype, &point->n_threads, &work,
                          &row))
        return -1;
    point->op = ptac_op_from(op);
    if (point->op == PTAC_N_OPS)
        return -1;
    point->kind = kind_from(point->op, kind);
    point->dtype = dtype_from(dtype);
    point->work = work;
    point->row = row ? ptac_registry_find(point->op, row) : NULL;
    if (point->kind < 0 || point->dtype == PTAC_N_DTYPES || (row && !point->row)) {
        PyErr_Format(PyExc_ValueError, "%U has no kind %s, dtype %s or row %s", op,
                     kind, dtype, row ? row : "");
        return -1;
    }
    return 0;
}

static PyObject *install_table(PyObject *self, PyObject *list)
{
    const Py_ssize_t n = PyList_Check(list) ? PyList_Size(list) : -1;
    PyObject *result = NULL;
    ptac_point *points;

    (void)self;
    if (n < 0)
        return PyErr_Format(PyExc_TypeError, "a list of points is expected");
    points = PyMem_Calloc((size_t)n + 1, sizeof *points);
    if (!points)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_point(PyList_GetItem(list, i), &points[i]) < 0)
            goto done;
    if (ptac_chooser_install(points, (int)n) != PTAC_OK) {
        PyErr_SetString(PyExc_MemoryError, ptac_error_get());
        goto done;
    }
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(points);
    return result;
}

static PyObject *set_gate(PyObject *self, PyObject *args)
{
    PyObject *name;
    int reason;

    (void)self;
    if (!PyArg_ParseTuple(args, "Ui", &name, &reason))
        return NULL;

    const ptac_op op = ptac_op_from(name);

    if (op == PTAC_N_OPS)
        return NULL;
    if (reason < 0 || reason >= PTAC_N_REASONS)
        return PyErr_Format(PyExc_ValueError, "no reason %d", reason);
    ptac_chooser_set_gate(op, (ptac_reason)reason);
    Py_RETURN_NONE;
}

static PyObject *pin(PyObject *self, PyObject *args)
{
    PyObject *name;
    const char *row_name;
    const ptac_kernel *row = NULL;

    (void)self;
    if (!PyArg_ParseTuple(args, "Uz", &name, &row_name))
        return NULL;

    const ptac_op op = ptac_op_from(name);

    if (op == PTAC_N_OPS)
        return NULL;
    if (row_name) {
        row = ptac_registry_find(op, row_name);
        if (!row || row->needs & ~ptac_cpu_features())
            return PyErr_Format(PyExc_ValueError, "%U has no row %s on this CPU", name,
                                row_name);
    }
    ptac_chooser_pin(op, row);
    Py_RETURN_NONE;
}

static PyObject *override_names(PyObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    int n;
    const ptac_override *const *overrides = ptac_overrides(&n);

    (void)self;
    (void)unused;
    for (int i = 0; list && i < n; i++)
        if (append_stolen(list, Py_BuildValue("(ss)", overrides[i]->name,
                                              ptac_op_name(overrides[i]->op))) < 0)
            Py_CLEAR(list);
    return list;
}

/* override_install([operator names]): None, or what went wrong. */
static PyObject *override_install(PyObject *self, PyObject *names)
{
    const Py_ssize_t n = PyList_Check(names) ? PyList_Size(names) : -1;
    uint64_t ops = 0;

    (void)self;
    if (n < 0)
        return PyErr_Format(PyExc_TypeError, "a list of operators is expected");
    for (Py_ssize_t i = 0; i < n; i++) {
        const ptac_op op = ptac_op_from(PyList_GetItem(names, i));

        if (op == PTAC_N_OPS)
            return NULL;
        ops |= UINT64_C(1) << op;
    }

    const char *trouble = ptac_override_install(ops);

    return trouble ? PyUnicode_FromString(trouble) : Py_NewRef(Py_None);
}

static PyObject *override_count(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromLong(__builtin_popcountll(ptac_override_installed()));
}

static PyObject *override_remove(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    ptac_override_remove();
    ptac_chooser_collect();
    Py_RETURN_NONE;
}

/* (calls in flight, calls ever entered) */
static PyObject *flight(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("LK", (long long)ptac_calls_in_flight(),
                         (unsigned long long)ptac_calls_entered());
}

/* (accelerated, failed, {reason: forwarded}, ns saved, calls timed, trouble) */
static PyObject *counters(PyObject *self, PyObject *name)
{
    const ptac_op op = ptac_op_from(name);
    ptac_op_counts sum;
    PyObject *forwarded;

    (void)self;
    if (op == PTAC_N_OPS)
        return NULL;
    ptac_counters_read(op, &sum);
    forwarded = PyDict_New();
    for (int i = 0; forwarded && i < PTAC_N_REASONS; i++) {
        PyObject *n =
            sum.forwarded[i] ? PyLong_FromUnsignedLongLong(sum.forwarded[i]) : NULL;

        if (n &&
            PyDict_SetItemString(forwarded, ptac_reason_text((ptac_reason)i), n) < 0)
            Py_CLEAR(forwarded);
        Py_XDECREF(n);
    }
    return Py_BuildValue("KKNLKs", (unsigned long long)sum.accelerated,
                         (unsigned long long)sum.failed, forwarded,
                         (long long)sum.t_saved_ns, (unsigned long long)sum.n_timed,
                         ptac_trouble(op));
}

static PyObject *reasons(PyObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);

    (void)self;
    (void)unused;
    for (int i = 0; list && i < PTAC_N_REASONS; i++)
        if (append_stolen(list,
                          PyUnicode_FromString(ptac_reason_text((ptac_reason)i))) < 0)
            Py_CLEAR(list);
    return list;
}

/* refuse(operator, reason): count a call that Python itself sent to stock. */
static PyObject *refuse(PyObject *self, PyObject *args)
{
    PyObject *name;
    const char *text;

    (void)self;
    if (!PyArg_ParseTuple(args, "Us", &name, &text))
        return NULL;

    const ptac_op op = ptac_op_from(name);

    if (op == PTAC_N_OPS)
        return NULL;
    for (int why = 0; why < PTAC_N_REASONS; why++) {
        if (strcmp(ptac_reason_text((ptac_reason)why), text) == 0) {
            ptac_refuse(op, (ptac_reason)why);
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "unknown reason %s", text);
}

/* The view of a plain tensor that is contiguous; false with TypeError set. */
static bool sample_view(PyObject *tensor, ptac_view *view)
{
    if (!ptac_is_plain(tensor)) {
        PyErr_SetString(PyExc_TypeError, "a plain tensor is expected");
        return false;
    }
    ptac_view_of(ptac_borrow(tensor), view);
    return true;
}

/* learn_sqrt(x, torch.sqrt(x)) -> whether we know how this torch rounds roots. */
static PyObject *learn_sqrt(PyObject *self, PyObject *args)
{
    PyObject *x, *roots;
    ptac_view views[2];

    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &x, &roots) || !sample_view(x, &views[0]) ||
        !sample_view(roots, &views[1]))
        return NULL;
    return PyBool_FromLong(ptac_learn_sqrt(&views[0], &views[1]));
}

/* learn_fma(a, b, alpha, torch.add(a, b, alpha=alpha)) -> likewise for products. */
static PyObject *learn_fma(PyObject *self, PyObject *args)
{
    PyObject *a, *b, *sum;
    ptac_view views[3];
    double alpha;

    (void)self;
    if (!PyArg_ParseTuple(args, "OOdO", &a, &b, &alpha, &sum) ||
        !sample_view(a, &views[0]) || !sample_view(b, &views[1]) ||
        !sample_view(sum, &views[2]))
        return NULL;
    return PyBool_FromLong(
        ptac_learn_fma(&views[0], &views[1], (float)alpha, &views[2]));
}

static PyObject *thread_disable(PyObject *self, PyObject *by)
{
    const long step = PyLong_AsLong(by);

    (void)self;
    if (step == -1 && PyErr_Occurred())
        return NULL;
    ptac_thread_disable((int)step);
    Py_RETURN_NONE;
}

static PyObject *after_forward;
static bool after_forward_asked;

/* In the main thread, between two instructions of its program. */
static int call_after_forward(void *unused)
{
    PyObject *callback = after_forward, *result;

    (void)unused;
    after_forward = NULL;
    if (!callback)
        return 0;
    result = PyObject_CallNoArgs(callback);
    Py_DECREF(callback);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static void ask_after_forward(void)
{
    if (__atomic_exchange_n(&after_forward_asked, false, __ATOMIC_RELAXED))
        Py_AddPendingCall(call_after_forward, NULL);
}

/* when_forwarded(callback): call it once, soon after a call that finds us off. */
static PyObject *when_forwarded(PyObject *self, PyObject *callback)
{
    (void)self;
    Py_INCREF(callback);
    Py_XDECREF(after_forward);
    after_forward = callback;
    __atomic_store_n(&after_forward_asked, true, __ATOMIC_RELAXED);
    ptac_when_forwarded(ask_after_forward);
    Py_RETURN_NONE;
}

static PyObject *shadow_every(PyObject *self, PyObject *every)
{
    const long long n = PyLong_AsLongLong(every);

    (void)self;
    if (n == -1 && PyErr_Occurred())
        return NULL;
    ptac_shadow_every(n);
    Py_RETURN_NONE;
}

static PyObject *inject_failure(PyObject *self, PyObject *name)
{
    const ptac_op op = ptac_op_from(name);

    (void)self;
    if (op == PTAC_N_OPS)
        return NULL;
    ptac_inject_failure(op);
    Py_RETURN_NONE;
}

static PyObject *pardon(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    ptac_chooser_pardon();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, NULL},
    {"symbols", symbols, METH_NOARGS, NULL},
    {"cpu", cpu, METH_NOARGS, NULL},
    {"limit_isa", limit_isa, METH_O, NULL},
    {"operators", operators, METH_NOARGS, NULL},
    {"reasons", reasons, METH_NOARGS, NULL},
    {"install_table", install_table, METH_O, NULL},
    {"set_gate", set_gate, METH_VARARGS, NULL},
    {"pin", pin, METH_VARARGS, NULL},
    {"override_names", override_names, METH_NOARGS, NULL},
    {"override_install", override_install, METH_O, NULL},
    {"override_count", override_count, METH_NOARGS, NULL},
    {"override_remove", override_remove, METH_NOARGS, NULL},
    {"flight", flight, METH_NOARGS, NULL},
    {"counters", counters, METH_O, NULL},
    {"refuse", refuse, METH_VARARGS, NULL},
    {"learn_sqrt", learn_sqrt, METH_VARARGS, NULL},
    {"learn_fma", learn_fma, METH_VARARGS, NULL},
    {"thread_disable", thread_disable, METH_O, NULL},
    {"when_forwarded", when_forwarded, METH_O, NULL},
    {"shadow_every", shadow_every, METH_O, NULL},
    {"inject_failure", inject_failure, METH_O, NULL},
    {"pardon", pardon, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    PyMethodDef *const tables[] = {methods,
                                   ptac_tensor_methods,
                                   ptac_optimizer_methods,
                                   ptac_linear_methods,
                                   ptac_sequential_methods,
                                   ptac_cross_entropy_methods};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (PyModule_AddFunctions(module, tables[i]) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        .m_name = "pai_torchacc._C", .m_slots = slots};

PyMODINIT_FUNC PyInit__C(void)
{
    return PyModuleDef_Init(&definition);
}
