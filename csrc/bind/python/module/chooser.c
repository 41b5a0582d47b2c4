/*
 * chooser.c - operators, their rows and tables, and what they have counted.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/cuda.h"
#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/bf16.h"

#include <stdio.h>
#include <string.h>

ptac_op ptac_op_from(PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    const ptac_op op = text ? ptac_op_find(text) : PTAC_N_OPS;

    if (op == PTAC_N_OPS && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "unknown operator %R", name);
    return op;
}

int ptac_op_read(PyObject *name, void *op)
{
    *(ptac_op *)op = ptac_op_from(name);
    return *(ptac_op *)op != PTAC_N_OPS;
}

static PyObject *name_of(const ptac_kernel *row)
{
    return Py_BuildValue("z", row ? row->name : NULL);
}

/* One row as (name, level, whether this CPU runs it, whether it is quarantined). */
static PyObject *describe_row(const ptac_kernel *row)
{
    return Py_BuildValue("(ssOO)", row->name, ptac_level_name(row->level),
                         row->needs & ~ptac_cpu_features() ? Py_False : Py_True,
                         ptac_chooser_is_quarantined(row) ? Py_True : Py_False);
}

static PyObject *describe_op(ptac_op op)
{
    const ptac_op_shapes *shapes = ptac_registry_shapes(op);
    PyObject *kinds = PyList_New(0), *rows = PyList_New(0);
    int n;
    const ptac_kernel *const *row = ptac_registry_rows(op, &n);

    for (int i = 0; shapes && i < PTAC_MAX_KINDS && shapes->kinds[i]; i++)
        ptac_append(&kinds, PyUnicode_FromString(shapes->kinds[i]));
    for (int i = 0; i < n; i++)
        if (!row[i]->is_definition)
            ptac_append(&rows, describe_row(row[i]));
    return Py_BuildValue("sNN", ptac_op_name(op), kinds, rows);
}

/* operators() -> [(name, [shape kinds], [rows, as describe_row() has them])] */
PTAC_LIST(operators, i < PTAC_N_OPS, describe_op((ptac_op)i))

/* op_switches() -> {operator: the switch that owns it} */
PTAC_NOARGS(op_switches)
{
    PyObject *owners = PyDict_New();

    for (int op = 0; owners && op < PTAC_N_OPS; op++)
        ptac_put(&owners, ptac_op_name((ptac_op)op),
                 PyUnicode_FromString(ptac_op_switch((ptac_op)op)));
    return owners;
}

/* preferred_row(operator) -> what runs without a table, at level close; or None */
PTAC_OF_OP(preferred_row)
{
    return name_of(ptac_registry_preferred(op, PTAC_CLOSE));
}

/* last_row(operator) -> the row of this thread's last accelerated call, or None */
PTAC_OF_OP(last_row)
{
    return name_of(ptac_last_row(op));
}

/* bf16_rows() -> [(operator, row)] that round operands, whether or not they can run */
PTAC_NOARGS(bf16_rows)
{
    PyObject *list = PyList_New(0);

    for (int op = 0; list && op < PTAC_N_OPS; op++) {
        int n;
        const ptac_kernel *const *rows = ptac_registry_rows((ptac_op)op, &n);

        for (int i = 0; list && i < n; i++)
            if (rows[i]->in_bf16)
                ptac_append(&list, Py_BuildValue("ss", ptac_op_name((ptac_op)op),
                                                 rows[i]->name));
    }
    return list;
}

/* bf16_calls() -> how many such rows have served since the process started */
PTAC_GIVES(bf16_calls, PyLong_FromUnsignedLongLong(ptac_bf16_calls()))

/* bf16_hardware() -> what multiplies bfloat16: "", "avx512" or "avx512, amx" */
PTAC_NOARGS(bf16_hardware)
{
    const uint32_t have = ptac_cpu_features();

    return PyUnicode_FromString(!(have & PTAC_CPU_AVX512_BF16) ? ""
                                : have & PTAC_CPU_AMX_BF16     ? "avx512, amx"
                                                               : "avx512");
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

/* Work as a table has it: a number, or the sizes of a product; or an exception. */
static bool read_work(PyObject *work, ptac_point *point)
{
    long long m, k, n;

    if (!PyTuple_Check(work)) {
        point->work = PyLong_AsLongLong(work);
        return point->work != -1 || !PyErr_Occurred();
    }
    if (!PyArg_ParseTuple(work, "LLL", &m, &k, &n))
        return false;
    if (m <= 0 || k <= 0 || n <= 0 || __builtin_mul_overflow(m, k, &point->work) ||
        __builtin_mul_overflow(point->work, n, &point->work))
        return PyErr_Format(PyExc_ValueError, "sizes of no product: %R", work);
    point->sizes[0] = m;
    point->sizes[1] = k;
    point->sizes[2] = n;
    return true;
}

/* Pairs of a row and its ratio; what this version does not have is left out. */
static bool read_others(PyObject *pairs, ptac_device on, ptac_point *point)
{
    const Py_ssize_t n = pairs ? PyTuple_Size(pairs) : 0;
    int n_known = 0;

    for (Py_ssize_t i = 0; i < n && n_known < PTAC_POINT_OTHERS; i++) {
        const char *name;
        double ratio;

        if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "sd", &name, &ratio))
            return false;
        point->others[n_known] = ptac_registry_find_on(on, point->op, name);
        point->other_ratios[n_known] = ratio;
        n_known += point->others[n_known] != NULL;
    }
    return n >= 0;
}

static bool read_point(PyObject *tuple, ptac_device on, ptac_point *point)
{
    PyObject *work, *others = NULL;
    const char *kind, *dtype, *row;
    double stock_us = 0, ratio = 1;

    if (!PyArg_ParseTuple(tuple, "O&ssiOz|ddO!", ptac_op_read, &point->op, &kind,
                          &dtype, &point->n_threads, &work, &row, &stock_us, &ratio,
                          &PyTuple_Type, &others) ||
        !read_work(work, point) || !read_others(others, on, point))
        return false;
    point->stock_ns = stock_us * 1e3;
    point->ratio = ratio > 0 ? ratio : 1;
    point->kind = kind_from(point->op, kind);
    point->dtype = dtype_from(dtype);
    point->row = row ? ptac_registry_find_on(on, point->op, row) : NULL;
    if (point->kind < 0 || point->dtype == PTAC_N_DTYPES || (row && !point->row))
        return PyErr_Format(PyExc_ValueError, "%s has no kind %s, dtype %s or row %s",
                            ptac_op_name(point->op), kind, dtype, row ? row : "");
    return true;
}

/* Points of a list, which become the caller's, and how many; -1 with an exception. */
static int read_points(PyObject *list, ptac_device on, ptac_point **points)
{
    const Py_ssize_t n = PyList_Check(list) ? PyList_Size(list) : -1;

    if (n < 0)
        PyErr_Format(PyExc_TypeError, "a list of points is expected");
    else if (!(*points = PyMem_Calloc((size_t)n + 1, sizeof **points)))
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; *points && i < n; i++)
        if (!read_point(PyList_GetItem(list, i), on, &(*points)[i]))
            return -1;
    return *points ? (int)n : -1;
}

static PyObject *installed(ptac_status status)
{
    if (status != PTAC_OK)
        return PyErr_Format(PyExc_MemoryError, "%s", ptac_error_get());
    Py_RETURN_NONE;
}

/*
 * install_table([(operator, kind, dtype, threads, work, row, stock's us, ratio, ((other
 * row, its ratio), ...))])
 */
PTAC_O(install_table, list)
{
    PTAC_FREED ptac_point *points = NULL;
    const int n = read_points(list, PTAC_ON_CPU, &points);

    return n < 0 ? NULL : installed(ptac_chooser_install(points, n));
}

/*
 * install_cuda_table(the same of rows on CUDA, device): for devices of that name. Of
 * other devices, and without points, calls ask no table.
 */
PTAC_VARARGS(install_cuda_table)
{
    PTAC_FREED ptac_point *points = NULL;
    PyObject *list;
    const char *device;
    int n;

    if (!PyArg_ParseTuple(args, "Os", &list, &device))
        return NULL;
    n = read_points(list, PTAC_ON_CUDA, &points);
    return n < 0 ? NULL
                 : installed(ptac_chooser_install_on_cuda(points, n, device,
                                                          ptac_cuda_is_called));
}

/*
 * int8_faster(operator, kind, work, threads) -> whether the table says that a row is
 * faster than stock there; None where it says nothing.
 */
PTAC_VARARGS(int8_faster)
{
    const char *kind;
    const ptac_kernel *row = NULL;
    ptac_shape shape = {0};
    ptac_op op;
    int n_threads;

    if (!PyArg_ParseTuple(args, "O&sli", ptac_op_read, &op, &kind, &shape.work,
                          &n_threads))
        return NULL;
    shape.kind = kind_from(op, kind);
    if (shape.kind < 0)
        return PyErr_Format(PyExc_ValueError, "%s has no kind %s", ptac_op_name(op),
                            kind);
    if (!ptac_chooser_knows(op, &shape, PTAC_F32, n_threads, &row))
        Py_RETURN_NONE;
    return PyBool_FromLong(row != NULL);
}

/* A reason by its text, for "O&". */
static int read_reason(PyObject *text, void *why)
{
    for (int i = 0; PyUnicode_Check(text) && i < PTAC_N_REASONS; i++) {
        *(ptac_reason *)why = (ptac_reason)i;
        if (PyUnicode_CompareWithASCIIString(text, ptac_reason_text((ptac_reason)i)) ==
            0)
            return true;
    }
    return PyErr_Format(PyExc_ValueError, "unknown reason %S", text) != NULL;
}

/* Methods of an operator and a reason, which do something with them. */
#define FOR_REASON(name, does)                                                         \
    PTAC_VARARGS(name)                                                                 \
    {                                                                                  \
        ptac_op op;                                                                    \
        ptac_reason why;                                                               \
                                                                                       \
        if (!PyArg_ParseTuple(args, "O&O&", ptac_op_read, &op, read_reason, &why))     \
            return NULL;                                                               \
        does(op, why);                                                                 \
        Py_RETURN_NONE;                                                                \
    }

/* set_gate(operator, reason): open it, "", or close it for that reason. */
FOR_REASON(set_gate, ptac_chooser_set_gate)

/* set_cuda_gate(operator, reason): likewise, of its calls on CUDA alone. */
#define SET_CUDA_GATE(op, why) ptac_chooser_set_gate_on(PTAC_ON_CUDA, op, why)
FOR_REASON(set_cuda_gate, SET_CUDA_GATE)

/* refuse(operator, reason): count a call that Python itself sent to stock. */
FOR_REASON(refuse, ptac_refuse)

/* pinned(operator) -> the row that serves all its calls, or None. */
PTAC_OF_OP(pinned)
{
    return name_of(ptac_chooser_pinned(op));
}

/* pinned_pays() -> whether tables could choose the pinned row for the call before. */
PTAC_GIVES(pinned_pays, PyBool_FromLong(ptac_chooser_pinned_pays()))

/*
 * An operator that is switched on, and its gradient: unless a table or a pin wants
 * them, their overrides are not in the dispatcher.
 */
static ptac_op_set open_pair(ptac_op op)
{
    ptac_op pair[] = {op, PTAC_N_OPS};
    char gradient[64];
    ptac_op_set ops = {{0}};

    snprintf(gradient, sizeof gradient, "%s_backward", ptac_op_name(op));
    pair[1] = ptac_op_find(gradient);
    for (int i = 0; i < 2; i++)
        if (pair[i] != PTAC_N_OPS && ptac_chooser_gate(pair[i]) == PTAC_TAKE)
            ptac_op_set_add(&ops, pair[i]);
    return ops;
}

/*
 * pin(operator, row or None): serve it by this row whatever the table says -> the row
 * that was pinned before, or None
 */
PTAC_VARARGS(pin)
{
    const char *row_name;
    const ptac_kernel *row = NULL;
    ptac_op op;

    if (!PyArg_ParseTuple(args, "O&z", ptac_op_read, &op, &row_name))
        return NULL;
    if (row_name) {
        row = ptac_registry_find(op, row_name);
        if (!row || row->needs & ~ptac_cpu_features())
            return PyErr_Format(PyExc_ValueError, "%s has no row %s on this CPU",
                                ptac_op_name(op), row_name);

        const ptac_places pair = {.on = {[PTAC_ON_CPU] = open_pair(op)}};
        const char *trouble = ptac_override_install(pair);

        ptac_python_dispatch_forget();
        if (trouble)
            return PyErr_Format(PyExc_RuntimeError, "%s", trouble);
    }
    return name_of(ptac_chooser_pin(op, row));
}

/*
 * counters(operator) -> (accelerated, failed, {reason: forwarded}, ns saved, calls
 * timed, trouble)
 */
PTAC_OF_OP(counters)
{
    ptac_op_counts sum;
    char trouble[PTAC_TROUBLE_BYTES];
    PyObject *forwarded;

    ptac_counters_read(op, &sum);
    ptac_trouble(op, trouble);
    forwarded = PyDict_New();
    for (int i = 0; forwarded && i < PTAC_N_REASONS; i++)
        if (sum.forwarded[i])
            ptac_put(&forwarded, ptac_reason_text((ptac_reason)i),
                     PyLong_FromUnsignedLongLong(sum.forwarded[i]));
    return Py_BuildValue("kkNlks", sum.accelerated, sum.failed, forwarded,
                         sum.t_saved_ns, sum.n_timed, trouble);
}

/*
 * estimates(operator) -> by the table, (stock's ns for accelerated calls, ns that rows
 * save of it, ns of forwarded calls)
 */
PTAC_OF_OP(estimates)
{
    ptac_op_counts sum;

    ptac_counters_read(op, &sum);
    return Py_BuildValue("(ddd)", sum.estimated_served_ns, sum.estimated_saved_ns,
                         sum.estimated_stock_ns);
}

/* reasons() -> why a call may go to stock; the first, empty, is none */
PTAC_LIST(reasons, i < PTAC_N_REASONS,
          PyUnicode_FromString(ptac_reason_text((ptac_reason)i)))
