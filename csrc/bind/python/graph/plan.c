/*
 * plan.c - plans as objects: made of values, given steps.
 */
#include "bind/python/graph/graph.h"

#include <string.h>

static PyTypeObject *plan_type;
/* --- values ----------------------------------------------------------------------- */

void ptac_value_forget(ptac_value *value)
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
    ptac_value_forget(value);
    if (at_new_on(cpu, value->dtype, value->view.n_dims, value->view.sizes,
                  value->view.strides, &value->handle))
        return false;
    value->view.data = at_data(value->handle);
    return true;
}

bool ptac_value_looks_like(const ptac_value *value, at_tensor tensor, void **data)
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

bool ptac_value_look(ptac_value *value, at_tensor tensor)
{
    return ptac_value_looks_like(value, tensor, &value->view.data);
}

bool ptac_value_take(ptac_plan *plan, int i, at_tensor made)
{
    ptac_value *value = &plan->values[i];

    ptac_value_forget(value);
    value->handle = made;
    return made && ptac_value_look(value, made);
}

bool ptac_value_take_object(ptac_plan *plan, int i, PyObject *made)
{
    ptac_value *value = &plan->values[i];

    ptac_value_forget(value);
    value->object = made;
    return made && ptac_is_plain(made) && ptac_value_look(value, ptac_borrow(made));
}

/* --- the object ------------------------------------------------------------------- */

static int traverse_step(const ptac_step *step, visitproc visit, void *arg)
{
    int found = step->traverse ? step->traverse(step, visit, arg) : 0;

    for (int i = 0; !found && i < step->n_otherwise; i++)
        found = traverse_step(step->otherwise[i], visit, arg);
    return found;
}

static int plan_traverse(PyObject *self, visitproc visit, void *arg)
{
    const ptac_plan *plan = (ptac_plan *)self;

    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < plan->n_values; i++)
        Py_VISIT(plan->values[i].object);
    for (int i = 0; i < plan->n_steps; i++) {
        const int found = traverse_step(plan->steps[i], visit, arg);

        if (found)
            return found;
    }
    return 0;
}

static void drop_step(ptac_step *step)
{
    for (int i = 0; i < step->n_otherwise; i++)
        drop_step(step->otherwise[i]);
    PyMem_Free(step->otherwise);
    PyMem_Free(step->written);
    step->drop(step);
}

static void plan_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ptac_plan *plan = (ptac_plan *)self;

    PyObject_GC_UnTrack(self);
    for (int i = 0; i < plan->n_steps; i++)
        drop_step(plan->steps[i]);
    for (int i = 0; i < plan->n_values; i++)
        ptac_value_forget(&plan->values[i]);
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

bool ptac_value_numbers(const ptac_plan *plan, PyObject *tuple, int n, int *values)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != n)
        return PyErr_Format(PyExc_TypeError, "%d values are expected", n);
    for (int i = 0; i < n; i++) {
        PyObject *number = PyTuple_GetItem(tuple, i);

        values[i] = number == Py_None ? -1 : ptac_value_number(plan, number);
        if (PyErr_Occurred())
            return false;
    }
    return true;
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

static bool has_room(PyObject *sizes)
{
    return PyTuple_Size(sizes) <= PTAC_MAX_DIMS;
}

/* (kind, of, offset, sizes, strides, dtype, bytes of an element, tensor or None) */
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

/*
 * plan_has_effects(plan, written, is_foreign): the step added last does more than to
 * make its outputs; written are values whose versions autograd is to see counted. A
 * foreign step calls the program, with autograd on, and may replace what tensors hold.
 */
PTAC_ARGS(plan_has_effects, 3)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    ptac_step *step;

    if (!plan)
        return NULL;
    if (plan->n_steps == 0)
        return PyErr_Format(PyExc_ValueError, "there is no step");
    step = plan->steps[plan->n_steps - 1];
    step->has_effects = true;
    step->is_foreign = args[2] == Py_True;
    PyMem_Free(step->written);
    step->written = numbers(plan, args[1], &step->n_written);
    return step->written ? Py_NewRef(Py_None) : NULL;
}

/*
 * plan_otherwise(plan, n): the last n steps are no steps of their own, but do what the
 * one before them does where it gives back.
 */
PTAC_ARGS(plan_otherwise, 2)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    const long n = plan ? PyLong_AsLong(args[1]) : -1;
    ptac_step *step;

    if (!plan || PyErr_Occurred())
        return NULL;
    if (n < 1 || n >= plan->n_steps || plan->steps[plan->n_steps - n - 1]->n_otherwise)
        return PyErr_Format(PyExc_ValueError, "there are not so many steps");
    step = plan->steps[plan->n_steps - n - 1];
    step->otherwise = PyMem_Calloc((size_t)n, sizeof *step->otherwise);
    if (!step->otherwise)
        return PyErr_NoMemory();
    step->n_otherwise = (int)n;
    plan->n_steps -= (int)n;
    memcpy(step->otherwise, plan->steps + plan->n_steps,
           (size_t)n * sizeof *step->otherwise);
    Py_RETURN_NONE;
}
