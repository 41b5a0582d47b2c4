/*
 * optimizer.c - torch.optim's SGD, Adam and AdamW: a step as one kernel call a group.
 *
 * Nothing is written before all of a group is known to be plain.
 */
#include "bind/python/callpath/optimizer_args.h"

#include <math.h>

/* Gather a group, and the row that steps it; none where nothing is to do. */
static ptac_verdict gather(ptac_optimizer_args *g, PyObject *group, PyObject *states,
                           bool is_sgd, double multiplier)
{
    ptac_call *call = &g->call;
    ptac_reason why = PTAC_TAKE;
    const ptac_verdict result =
        ptac_optimizer_args_read(g, group, states, is_sgd, multiplier);

    if (result || g->n_items == 0)
        return result;
    g->step.items = g->items;
    g->step.n_items = g->n_items;
    *call = (ptac_call){.op = g->op, .n_inputs = 1, .params = &g->step};
    call->inputs[0].dtype = g->dtype;
    call->inputs[0].n_elements = g->n_elements;
    g->row = ptac_probe(call, &why);
    return why;
}

/* Adam's step counters stand last among the tensors that each item writes. */
static void count_steps(const ptac_optimizer_args *g)
{
    const Py_ssize_t each = g->step.adam.amsgrad ? 5 : 4;

    for (Py_ssize_t i = each - 1; i < g->n_written; i += each) {
        ptac_view view;

        ptac_view_of(ptac_borrow(g->written[i].tensor), &view);
        if (view.dtype == PTAC_F32)
            *(float *)view.data += 1;
        else
            *(double *)view.data += 1;
    }
}

/* The sum of gradient times direction of a step of rate 1, from those of its blocks. */
static double sum_up(const ptac_optimizer_args *g)
{
    double sum = 0;

    if (!g->step.sums)
        return NAN;
    for (int64_t i = 0; i < ptac_step_sums(g->n_elements); i++)
        sum += g->step.sums[i];
    return g->op == PTAC_OP_SGD_STEP ? sum : sum / -g->lr;
}

/* The step is done: what cannot be told any more is left untold. */
static void tell(PyObject *sums, double sum)
{
    PTAC_OWNED PyObject *number = PyFloat_FromDouble(sum);

    if (!number || PyList_Append(sums, number) < 0)
        PyErr_Clear();
}

/*
 * Write. A row of this kind cannot fail; should one say that it did, before writing,
 * the definition does the work, since other groups of the step may be done already.
 */
static void run_gathered(ptac_optimizer_args *g, PyObject *sums)
{
    PyThreadState *thread;

    if (sums != Py_None)
        g->step.sums =
            PyMem_Calloc((size_t)ptac_step_sums(g->n_elements) + 1, sizeof(double));
    thread = g->n_elements < 4096 ? NULL : PyEval_SaveThread();
    if (!ptac_run(g->row, &g->call))
        ptac_registry_find(g->op, "scalar")->run(&g->call);
    if (thread)
        PyEval_RestoreThread(thread);
    if (g->op != PTAC_OP_SGD_STEP)
        count_steps(g);
    for (Py_ssize_t i = 0; i < g->n_written - g->n_new; i++)
        ptac_bump_version(g->written[i].tensor);
    if (sums != Py_None)
        tell(sums, sum_up(g));
    PyMem_Free(g->step.sums);
    g->step.sums = NULL;
}

/* Write all groups that have a row, or none and an exception is set. */
static bool write_all(ptac_optimizer_args *groups, int n, PyObject *states,
                      PyObject *sums)
{
    for (int i = 0; i < n; i++) {
        if (groups[i].row && !ptac_sgd_state_create(&groups[i], states)) {
            for (int j = 0; j <= i; j++)
                ptac_sgd_state_forget(&groups[j], states);
            return false;
        }
    }
    for (int i = 0; i < n; i++)
        if (groups[i].row)
            run_gathered(&groups[i], sums);
    return true;
}

/* The last two arguments of the functions below. */
static bool read_rate(PyObject *const *args, double *multiplier, PyObject **sums)
{
    *multiplier = PyFloat_AsDouble(args[0]);
    if (PyErr_Occurred())
        return false;
    *sums = args[1];
    return *sums == Py_None || PyList_CheckExact(*sums) ||
           PyErr_Format(PyExc_TypeError, "sums are a list or None");
}

/*
 * optimizer_group(is_sgd, states, group, multiplier, sums) -> 1: done; 0: stock has to
 * do it; -1: stock has to make the states, then ask again. The rate is multiplied;
 * decoupled weight decay goes by the rate as it is.
 *
 * sums is None, or a list: of a group that has stepped, the sum of gradient times
 * direction is appended, see ops/optim/descent.h; of Adam's, that of the direction
 * which the step has taken, with weight decay and amsgrad. Groups without gradients
 * tell nothing.
 */
PTAC_ARGS(optimizer_group, 5)
{
    const bool is_sgd = args[0] == Py_True;
    const ptac_op op = ptac_optim_op(args[2], is_sgd);
    ptac_optimizer_args group;
    ptac_verdict verdict;
    double multiplier;
    PyObject *sums;

    if (!read_rate(&args[3], &multiplier, &sums))
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        return PyLong_FromLong(0);
    if (!ptac_thread_is_plain()) {
        ptac_refuse(op, PTAC_MODE);
        return PyLong_FromLong(0);
    }
    verdict = gather(&group, args[2], args[1], is_sgd, multiplier);
    if (!verdict)
        verdict = ptac_optimizer_args_repeat(&group, 1);
    if (!verdict && !write_all(&group, 1, args[1], sums))
        verdict = PTAC_RAISED;
    if (verdict > PTAC_TAKE)
        ptac_refuse(op, (ptac_reason)verdict);
    ptac_optimizer_args_release(&group);
    if (verdict == PTAC_RAISED)
        return NULL;
    return PyLong_FromLong(verdict == PTAC_NEEDS_STATE ? -1 : !verdict);
}

enum {
    MAX_GROUPS = 64,
};

/* Gather every group and find a row for each, or leave everything as it was. */
static bool gather_all(PyObject *groups, PyObject *states, bool is_sgd,
                       double multiplier, ptac_optimizer_args *gathered,
                       int *n_gathered)
{
    const Py_ssize_t n = PyList_Size(groups);

    if (n > MAX_GROUPS)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        const ptac_verdict result =
            gather(&gathered[i], PyList_GetItem(groups, i), states, is_sgd, multiplier);

        *n_gathered = (int)i + 1;
        if (result || PyList_Size(groups) != n)
            return false;
    }
    return !ptac_optimizer_args_repeat(gathered, *n_gathered);
}

/*
 * optimizer_step(is_sgd, optimizer, multiplier, sums) -> whether the whole step is
 * done. When it is not, nothing was written, counted or told, and the optimizer's own
 * step() finds out group by group what can be accelerated.
 */
PTAC_ARGS(optimizer_step, 4)
{
    ptac_optimizer_args gathered[MAX_GROUPS];
    PTAC_OWNED PyObject *groups = NULL, *states = NULL;
    int n_gathered = 0;
    bool done = false;
    double multiplier;
    PyObject *sums;

    if (!read_rate(&args[2], &multiplier, &sums))
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_chooser_gate(PTAC_OP_SGD_STEP) == PTAC_OFF || !ptac_thread_is_plain() ||
        ptac_shadow_is_on()) /* which goes group by group */
        Py_RETURN_FALSE;
    groups = PyObject_GetAttr(args[1], ptac_names.param_groups);
    states = groups ? PyObject_GetAttr(args[1], ptac_names.state) : NULL;
    done = states && PyList_CheckExact(groups) &&
           gather_all(groups, states, args[0] == Py_True, multiplier, gathered,
                      &n_gathered) &&
           write_all(gathered, n_gathered, states, sums);
    for (int i = 0; i < n_gathered; i++)
        ptac_optimizer_args_release(&gathered[i]);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

/* The parameters of a group, borrowed; NULL where it is not as torch makes them. */
static PyObject *params_of(PyObject *groups, Py_ssize_t i)
{
    PyObject *group = PyList_GetItem(groups, i), *params = NULL;

    if (PyDict_CheckExact(group))
        params = PyDict_GetItemWithError(group, ptac_names.params);
    return params && PyList_CheckExact(params) ? params : NULL;
}

static bool are_usual(PyObject *groups)
{
    if (!PyList_CheckExact(groups))
        return false;
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        PyObject *params = params_of(groups, i);

        if (!params)
            return false;
        for (Py_ssize_t j = 0; j < PyList_Size(params); j++)
            if (!ptac_is_tensor(PyList_GetItem(params, j)))
                return false;
    }
    return true;
}

/* Freeing a gradient may run code of the user's, which may do anything to the lists. */
static bool zero_group(PyObject *borrowed)
{
    PTAC_OWNED PyObject *params = Py_NewRef(borrowed);

    for (Py_ssize_t i = 0; i < PyList_Size(params); i++) {
        PTAC_OWNED PyObject *param = Py_NewRef(PyList_GetItem(params, i));

        if (PyObject_SetAttr(param, ptac_names.grad, Py_None) < 0)
            return false;
    }
    return true;
}

/* zero_grads(param_groups) -> whether all gradients are None now. */
PTAC_O(zero_grads, groups)
{
    const ptac_op op = PTAC_OP_ZERO_GRAD;
    ptac_reason why = ptac_chooser_gate(op);

    if (!why && ptac_thread_is_disabled())
        why = PTAC_DISABLED;
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (!why && !are_usual(groups))
        why = PTAC_ARGUMENT;
    for (Py_ssize_t i = 0; !why && i < PyList_Size(groups); i++) {
        PyObject *params = params_of(groups, i);

        if (!params)
            why = PTAC_ARGUMENT;
        else if (!zero_group(params))
            return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_FALSE;
    }
    ptac_count_accelerated(op);
    Py_RETURN_TRUE;
}
