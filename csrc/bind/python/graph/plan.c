/*
 * plan.c - plans as objects: made of values, given steps, run.
 */
#include "bind/python/graph/graph.h"
#include "bind/torch/rows/linear_act.h"

#include <pthread.h>
#include <string.h>

static PyTypeObject *plan_type;
static uint64_t n_forks; /* a child does not have the thread that ran a plan */

static void after_fork(void)
{
    n_forks++;
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

/* --- values ----------------------------------------------------------------------- */

static void forget(ptac_value *value)
{
    Py_CLEAR(value->object);
    at_drop_tensor(&value->handle);
}

at_tensor ptac_value_handle(ptac_plan *plan, int i)
{
    ptac_value *value = &plan->values[i];

    if (value->object)
        return ptac_borrow(value->object);
    if (!value->handle && value->kind == PTAC_VALUE_VIEW) {
        at_tensor base = ptac_value_handle(plan, value->of);

        if (base)
            T.aoti_torch__reinterpret_tensor(base, value->view.n_dims,
                                             value->view.sizes, value->view.strides,
                                             value->offset, &value->handle);
    }
    return value->handle;
}

PyObject *ptac_value_object(ptac_plan *plan, int i)
{
    ptac_value *value = &plan->values[i];

    if (!value->object) {
        if (!ptac_value_handle(plan, i)) {
            if (!PyErr_Occurred())
                PyErr_NoMemory();
            return NULL;
        }
        value->object = ptac_wrap(at_give(&value->handle));
    }
    return value->object;
}

bool ptac_value_make(ptac_plan *plan, int i)
{
    static const at_device cpu = {AT_DEVICE_CPU, 0};
    ptac_value *value = &plan->values[i];

    if (value->kind != PTAC_VALUE_MADE)
        return true;
    forget(value);
    if (at_new_on(cpu, value->dtype, value->view.n_dims, value->view.sizes,
                  value->view.strides, &value->handle))
        return false;
    value->view.data = at_data(value->handle);
    return true;
}

/* Whether a tensor has a value's geometry; and where its data is. */
static bool looks_like(const ptac_value *value, at_tensor tensor, void **data)
{
    const size_t bytes = (size_t)value->view.n_dims * sizeof(int64_t);
    int32_t dtype = -1;
    ptac_view seen;

    ptac_view_of(tensor, &seen);
    T.aoti_torch_get_dtype(tensor, &dtype);
    if (dtype != value->dtype || seen.n_dims != value->view.n_dims ||
        memcmp(seen.sizes, value->view.sizes, bytes) != 0 ||
        memcmp(seen.strides, value->view.strides, bytes) != 0)
        return false;
    *data = seen.data;
    return true;
}

static bool look(ptac_value *value, at_tensor tensor)
{
    return looks_like(value, tensor, &value->view.data);
}

bool ptac_value_take(ptac_plan *plan, int i, at_tensor made)
{
    ptac_value *value = &plan->values[i];

    forget(value);
    value->handle = made;
    return made && look(value, made);
}

bool ptac_value_take_object(ptac_plan *plan, int i, PyObject *made)
{
    ptac_value *value = &plan->values[i];

    forget(value);
    value->object = made;
    return made && ptac_is_plain(made) && look(value, ptac_borrow(made));
}

/* --- the object ------------------------------------------------------------------- */

static int plan_traverse(PyObject *self, visitproc visit, void *arg)
{
    const ptac_plan *plan = (ptac_plan *)self;

    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < plan->n_values; i++)
        Py_VISIT(plan->values[i].object);
    for (int i = 0; i < plan->n_steps; i++) {
        const ptac_step *step = plan->steps[i];
        const int found = step->traverse ? step->traverse(step, visit, arg) : 0;

        if (found)
            return found;
    }
    return 0;
}

static void plan_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ptac_plan *plan = (ptac_plan *)self;

    PyObject_GC_UnTrack(self);
    for (int i = 0; i < plan->n_steps; i++)
        plan->steps[i]->drop(plan->steps[i]);
    for (int i = 0; i < plan->n_values; i++)
        forget(&plan->values[i]);
    PyMem_Free(plan->values);
    PyMem_Free(plan->steps);
    PyMem_Free(plan->given);
    PyMem_Free(plan->results);
    PyMem_Free(plan->geometry);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot plan_slots[] = {
    {Py_tp_dealloc, (void *)plan_dealloc},
    {Py_tp_traverse, (void *)plan_traverse},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "pai_torchacc._C.Plan",
    .basicsize = sizeof(ptac_plan),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = plan_slots,
};

ptac_plan *ptac_plan_of(PyObject *object)
{
    if (plan_type && Py_TYPE(object) == plan_type)
        return (ptac_plan *)object;
    PyErr_Format(PyExc_TypeError, "a plan is expected, not %R", object);
    return NULL;
}

int ptac_value_number(const ptac_plan *plan, PyObject *number)
{
    const long value = PyLong_AsLong(number);

    if (value >= 0 && value < plan->n_values)
        return (int)value;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "there is no value %ld", value);
    return -1;
}

/* A tuple of values' numbers as an array, *n of them; NULL: an exception is set. */
static int *numbers(const ptac_plan *plan, PyObject *tuple, int *n)
{
    const Py_ssize_t length = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    int *made = PyMem_Calloc((size_t)length + 1, sizeof *made);

    if (!made) {
        PyErr_NoMemory();
        return NULL;
    }
    for (*n = 0; *n < length; ++*n) {
        made[*n] = ptac_value_number(plan, PyTuple_GetItem(tuple, *n));
        if (made[*n] < 0) {
            PyMem_Free(made);
            return NULL;
        }
    }
    return made;
}

/* --- making one ------------------------------------------------------------------- */

/* A tuple of ints, written to where *to points, which goes on behind them. */
static bool read_ints(PyObject *tuple, int n, int64_t **to)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != n)
        return false;
    for (int i = 0; i < n; i++)
        *(*to)++ = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return !PyErr_Occurred();
}

static bool is_base(const ptac_plan *plan, int value, int of)
{
    return of >= 0 && of < value && plan->values[of].kind != PTAC_VALUE_VIEW;
}

/* (kind, of, offset, sizes, strides, dtype, bytes of an element, tensor or None) */
static bool has_room(PyObject *sizes)
{
    return PyTuple_Size(sizes) <= PTAC_MAX_DIMS;
}

static bool read_value(ptac_plan *plan, int i, PyObject *described, int64_t **room)
{
    ptac_value *value = &plan->values[i];
    PyObject *sizes, *strides, *tensor;
    long long offset;
    int kind;

    if (!PyArg_ParseTuple(described, "iiLO!O!iiO", &kind, &value->of, &offset,
                          &PyTuple_Type, &sizes, &PyTuple_Type, &strides, &value->dtype,
                          &value->n_bytes, &tensor) ||
        !has_room(sizes))
        return false;
    value->kind = (ptac_value_kind)kind;
    value->offset = offset;
    value->view = (ptac_view){.n_dims = (int32_t)PyTuple_Size(sizes),
                              .dtype = ptac_dtype_of(value->dtype)};
    value->view.sizes = *room;
    value->view.n_elements = 1;
    if (!read_ints(sizes, value->view.n_dims, room))
        return false;
    value->view.strides = *room;
    if (!read_ints(strides, value->view.n_dims, room))
        return false;
    for (int d = 0; d < value->view.n_dims; d++)
        value->view.n_elements *= value->view.sizes[d];
    if (value->kind == PTAC_VALUE_VIEW)
        return is_base(plan, i, value->of);
    if (value->kind != PTAC_VALUE_FIXED)
        return kind >= 0 && kind < PTAC_N_VALUE_KINDS;
    return ptac_value_take_object(plan, i, Py_NewRef(tensor));
}

static bool read_values(ptac_plan *plan, PyObject *list)
{
    int64_t *room;
    Py_ssize_t n_ints = 0;

    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *value = PyList_GetItem(list, i);
        PyObject *sizes = PyTuple_Check(value) ? PyTuple_GetItem(value, 3) : NULL;

        if (!sizes || !PyTuple_Check(sizes))
            return false;
        n_ints += 2 * PyTuple_Size(sizes);
    }
    plan->geometry = PyMem_Calloc((size_t)n_ints + 1, sizeof *plan->geometry);
    plan->values = PyMem_Calloc((size_t)PyList_Size(list) + 1, sizeof *plan->values);
    if (!plan->geometry || !plan->values)
        return PyErr_NoMemory();
    room = plan->geometry;
    for (int i = 0; i < (int)PyList_Size(list); i++) {
        plan->n_values = i + 1;
        if (!read_value(plan, i, PyList_GetItem(list, i), &room))
            return false;
    }
    return true;
}

/*
 * plan_make([value, ...], given, results) -> a plan without steps. Values are as
 * read_value() has them; given and results are tuples of their numbers.
 */
PTAC_VARARGS(plan_make)
{
    PyObject *values, *given, *results;
    PTAC_OWNED PyObject *made = NULL;
    ptac_plan *plan;

    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &values, &PyTuple_Type, &given,
                          &PyTuple_Type, &results))
        return NULL;
    if (!plan_type)
        plan_type = (PyTypeObject *)PyType_FromSpec(&plan_spec);
    made = plan_type ? PyType_GenericAlloc(plan_type, 0) : NULL;
    if (!made)
        return NULL;
    plan = (ptac_plan *)made;
    if (!read_values(plan, values)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "value %d is not as a plan needs it",
                         plan->n_values - 1);
        return NULL;
    }
    plan->given = numbers(plan, given, &plan->n_given);
    plan->results = plan->given ? numbers(plan, results, &plan->n_results) : NULL;
    return plan->results ? Py_NewRef(made) : NULL;
}

PyObject *ptac_plan_add(ptac_plan *plan, ptac_step *step, PyObject *ends)
{
    ptac_step **grown =
        PyMem_Realloc(plan->steps, ((size_t)plan->n_steps + 1) * sizeof *grown);

    if (grown)
        plan->steps = grown;
    else
        PyErr_NoMemory();
    step->ends = grown ? numbers(plan, ends, &step->n_ends) : NULL;
    if (!step->ends) {
        step->drop(step);
        return NULL;
    }
    plan->steps[plan->n_steps++] = step;
    Py_RETURN_NONE;
}

/* --- running ---------------------------------------------------------------------- */

bool ptac_step_run_row(const ptac_kernel *row, const ptac_call *call)
{
    enum { WORTH_UNLOCKING = 1 << 14 }; /* elements that a call writes */

    return call->outputs[0].n_elements < WORTH_UNLOCKING
               ? ptac_run(row, call)
               : PTAC_UNLOCKED(ptac_run(row, call));
}

bool ptac_plan_fits(PyObject *object, PyObject *const *tensors)
{
    const ptac_plan *plan = (ptac_plan *)object;
    void *unused;

    for (int i = 0; i < plan->n_given; i++)
        if (!looks_like(&plan->values[plan->given[i]], ptac_borrow(tensors[i]),
                        &unused))
            return false;
    return true;
}

int ptac_plan_n_given(PyObject *plan)
{
    return ((ptac_plan *)plan)->n_given;
}

static void take_given(ptac_plan *plan, PyObject *const *tensors)
{
    for (int i = 0; i < plan->n_given; i++) {
        ptac_value *value = &plan->values[plan->given[i]];

        forget(value);
        value->object = Py_NewRef(tensors[i]);
        value->view.data = at_data(ptac_borrow(tensors[i]));
    }
}

/* t_ns: where the time of each step goes, or NULL. */
static bool run_steps(ptac_plan *plan, int64_t *t_ns)
{
    for (int i = 0; i < plan->n_steps; i++) {
        ptac_step *step = plan->steps[i];
        const int64_t t0_ns = t_ns ? ptac_now_ns() : 0;

        if (!step->run(plan, step))
            return false;
        for (int k = 0; k < step->n_ends; k++)
            forget(&plan->values[step->ends[k]]);
        if (t_ns)
            t_ns[i] = ptac_now_ns() - t0_ns;
    }
    return true;
}

static PyObject *results_of(ptac_plan *plan)
{
    PyObject *results = PyTuple_New(plan->n_results);

    for (int i = 0; results && i < plan->n_results; i++) {
        PyObject *result = ptac_value_object(plan, plan->results[i]);

        if (result)
            PyTuple_SetItem(results, i, Py_NewRef(result));
        else
            Py_CLEAR(results);
    }
    return results;
}

/* Views of what the plan keeps stay. */
static bool outlives_runs(const ptac_plan *plan, const ptac_value *value)
{
    const ptac_value_kind kind =
        value->kind == PTAC_VALUE_VIEW ? plan->values[value->of].kind : value->kind;

    return kind == PTAC_VALUE_FIXED;
}

static void forget_run(ptac_plan *plan)
{
    for (int i = 0; i < plan->n_values; i++)
        if (!outlives_runs(plan, &plan->values[i]))
            forget(&plan->values[i]);
}

ptac_plan_outcome ptac_plan_run(PyObject *object, PyObject *const *tensors,
                                PyObject **results, int64_t *t_ns)
{
    ptac_plan *plan = (ptac_plan *)object;

    *results = NULL;
    if (plan->running == n_forks + 1)
        return PTAC_PLAN_BUSY;
    PTAC_IN_FLIGHT;
    plan->running = n_forks + 1;
    Py_INCREF(object);
    take_given(plan, tensors);
    if (run_steps(plan, t_ns))
        *results = results_of(plan);
    forget_run(plan);
    plan->running = 0;
    Py_DECREF(object);
    if (*results)
        return PTAC_PLAN_DONE;
    return PyErr_Occurred() ? PTAC_PLAN_RAISED : PTAC_PLAN_GAVE_BACK;
}

/*
 * plan_last_row(plan) -> of the step added last: the name of its row, or None; and
 * whether it writes where it is told to, in place of memory that it allocates.
 */
PTAC_O(plan_last_row, object)
{
    const ptac_plan *plan = ptac_plan_of(object);
    const ptac_kernel *row;

    if (!plan)
        return NULL;
    row = plan->n_steps > 0 ? plan->steps[plan->n_steps - 1]->row : NULL;
    return Py_BuildValue(
        "zO", row ? row->name : NULL,
        row && (row->op != PTAC_OP_LINEAR_ACT || ptac_linear_writes_into(row))
            ? Py_True
            : Py_False);
}

/*
 * plan_times(plan, tensors) -> the time of each step of one run, ns; or None where the
 * call has to be made eagerly. tensors is a tuple, in the order of the plan's given
 * values.
 */
PTAC_ARGS(plan_times, 2)
{
    const ptac_plan *plan = ptac_plan_of(args[0]);
    PTAC_FREED int64_t *t_ns = NULL;
    PTAC_FREED PyObject **tensors = NULL;
    PTAC_OWNED PyObject *results = NULL;
    PyObject *times;
    ptac_plan_outcome outcome;

    if (!plan)
        return NULL;
    if (!PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != plan->n_given)
        return PyErr_Format(PyExc_ValueError, "%d tensors are expected", plan->n_given);
    t_ns = PyMem_Calloc((size_t)plan->n_steps + 1, sizeof *t_ns);
    tensors = PyMem_Calloc((size_t)plan->n_given + 1, sizeof(PyObject *));
    if (!t_ns || !tensors)
        return PyErr_NoMemory();
    for (int i = 0; i < plan->n_given; i++) {
        tensors[i] = PyTuple_GetItem(args[1], i);
        if (!ptac_is_plain(tensors[i]))
            return PyErr_Format(PyExc_TypeError, "plain tensors are expected");
    }
    if (!ptac_plan_fits(args[0], tensors))
        Py_RETURN_NONE;
    outcome = ptac_plan_run(args[0], tensors, &results, t_ns);
    if (outcome != PTAC_PLAN_DONE)
        return outcome == PTAC_PLAN_RAISED ? NULL : Py_NewRef(Py_None);
    times = PyList_New(0);
    for (int i = 0; i < plan->n_steps; i++)
        ptac_append(&times, PyLong_FromLongLong(t_ns[i]));
    return times;
}
