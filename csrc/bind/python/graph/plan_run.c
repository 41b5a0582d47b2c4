/*
 * plan_run.c - runs of plans: steps one after another, and what happens where one
 * cannot be done.
 */
#include "bind/python/graph/graph.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static uint64_t n_forks; /* a child does not have the thread that ran a plan */

static void after_fork(void)
{
    n_forks++;
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
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
        if (!ptac_value_looks_like(&plan->values[plan->given[i]],
                                   ptac_borrow(tensors[i]), &unused))
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

        ptac_value_forget(value);
        value->object = Py_NewRef(tensors[i]);
        value->view.data = at_data(ptac_borrow(tensors[i]));
    }
}

/* Where a call cannot be made again, the program has to hear of it. */
static bool stop(const ptac_plan *plan, int at)
{
    for (int i = 0; i <= at && !PyErr_Occurred(); i++)
        if (plan->steps[i]->has_effects)
            PyErr_Format(PyExc_RuntimeError,
                         "step %d of a plan could not be run, in the midst of what "
                         "cannot be undone",
                         at);
    return false;
}

PTAC_LENT(set_grad_enabled) /* torch's function */

bool ptac_set_grad(bool on)
{
    PyObject *done =
        PyObject_CallFunctionObjArgs(set_grad_enabled, on ? Py_True : Py_False, NULL);

    Py_XDECREF(done);
    return done;
}

/* Given tensors may hold other data by now; false where they look otherwise. */
static bool look_again(ptac_plan *plan)
{
    bool are_as_before = true;

    for (int i = 0; i < plan->n_given; i++) {
        ptac_value *value = &plan->values[plan->given[i]];

        are_as_before &= ptac_value_look(value, ptac_borrow(value->object));
    }
    for (int i = 0; i < plan->n_values; i++) {
        ptac_value *value = &plan->values[i];

        if (value->kind == PTAC_VALUE_VIEW &&
            plan->values[value->of].kind != PTAC_VALUE_FIXED)
            ptac_value_forget(value);
    }
    return are_as_before;
}

/* A call of the program's, which finds autograd as it would without a plan. */
static bool run_foreign(ptac_plan *plan, ptac_step *step)
{
    PyObject *type, *error, *traceback;
    bool is_done;

    if (!ptac_set_grad(true))
        return false;
    is_done = step->run(plan, step);
    PyErr_Fetch(&type, &error, &traceback);
    if (!ptac_set_grad(false))
        PyErr_Clear();
    PyErr_Restore(type, error, traceback);
    return is_done && look_again(plan);
}

/* A step gave back, without an error. */
static bool run_otherwise(ptac_plan *plan, const ptac_step *step)
{
    bool is_done = step->n_otherwise > 0 && !PyErr_Occurred();

    for (int i = 0; is_done && i < step->n_otherwise; i++)
        is_done = step->otherwise[i]->run(plan, step->otherwise[i]);
    return is_done;
}

/* t_ns: where the time of each step goes, or NULL. */
static bool run_steps(ptac_plan *plan, int64_t *t_ns)
{
    for (int i = 0; i < plan->n_steps; i++) {
        ptac_step *step = plan->steps[i];
        const int64_t t0_ns = t_ns ? ptac_now_ns() : 0;

        if (!(step->is_foreign ? run_foreign : step->run)(plan, step) &&
            !run_otherwise(plan, step))
            return stop(plan, i);
        for (int k = 0; k < step->n_written; k++) {
            PyObject *tensor = ptac_value_object(plan, step->written[k]);

            if (tensor)
                ptac_bump_version(tensor);
        }
        for (int k = 0; k < step->n_ends; k++)
            ptac_value_forget(&plan->values[step->ends[k]]);
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
            ptac_value_forget(&plan->values[i]);
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
    const ptac_step *step;

    if (!plan)
        return NULL;
    step = plan->n_steps > 0 ? plan->steps[plan->n_steps - 1] : NULL;
    if (!step || !step->row)
        return Py_BuildValue("zO", NULL, Py_False);
    return Py_BuildValue("sO", step->row->name, step->allocates ? Py_False : Py_True);
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
