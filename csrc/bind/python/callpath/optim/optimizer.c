/*
 * optimizer.c - torch.optim's SGD, Adam, AdamW, Adadelta, RMSprop, Adagrad and NAdam: a
 * step as one kernel call a group.
 *
 * Nothing is written before all of a group is known to be plain.
 */
#include "bind/python/callpath/optim/optimizer_args.h"

#include <math.h>

/* Of others nobody knows what a sum of gradient times direction is. */
static bool tells_sums(const ptac_optimizer_args *g)
{
    return g->kind <= PTAC_OPTIM_ADAM && g->step.way != PTAC_STEP_FUSED;
}

/* Gather a group, and the row that steps it; none where nothing is to do. */
static ptac_verdict gather(ptac_optimizer_args *g, PyObject *group, PyObject *states,
                           ptac_optim_kind kind, double multiplier, PyObject *sums)
{
    ptac_call *call = &g->call;
    ptac_reason why = PTAC_TAKE;
    const ptac_verdict result =
        ptac_optimizer_args_read(g, group, states, kind, multiplier);

    if (result || g->n_items == 0)
        return result;
    if (g->device == PTAC_ON_CUDA && sums != Py_None) /* which Python would wait for */
        return PTAC_DEVICE;
    if (sums != Py_None && !tells_sums(g))
        return g->step.way == PTAC_STEP_FUSED ? PTAC_FUSED : PTAC_ARGUMENT;
    g->step.items = g->items;
    g->step.n_items = g->n_items;
    g->step.has_begun = &g->has_begun;
    *call = (ptac_call){.op = g->op,
                        .on = g->device,
                        .n_inputs = 1,
                        .params = &g->step,
                        .device = g->number};
    call->inputs[0].dtype = g->dtype;
    call->inputs[0].n_elements = g->n_elements;
    g->row = ptac_probe(call, &why);
    return why;
}

/* Counts of steps stand last among the tensors that each item writes; SGD has none. */
static Py_ssize_t written_by_each(const ptac_optimizer_args *g)
{
    return g->n_written / g->n_items;
}

/* As torch does: of what a fused step writes, versions of the counts alone go up. */
static void bump_versions(const ptac_optimizer_args *g)
{
    const bool is_fused = g->step.way == PTAC_STEP_FUSED;
    const Py_ssize_t by = is_fused ? written_by_each(g) : 1;

    if (is_fused && g->kind == PTAC_OPTIM_SGD)
        return;
    for (Py_ssize_t i = by - 1; i < g->n_written - g->n_new; i += by)
        ptac_bump_version(g->written[i].tensor);
}

/* Stands before the count. */
static void write_product(const ptac_written *written, double product)
{
    ptac_view view;

    ptac_view_of(ptac_borrow(written->tensor), &view);
    if (view.dtype == PTAC_F32)
        *(float *)view.data = (float)product;
    else
        *(double *)view.data = product;
}

static void count_steps(const ptac_optimizer_args *g)
{
    const Py_ssize_t each = written_by_each(g);

    if (g->kind == PTAC_OPTIM_SGD ||
        (g->kind == PTAC_OPTIM_ADAM && g->step.adam.is_capturable))
        return; /* of these the kernels have done so */
    for (Py_ssize_t i = each - 1; i < g->n_written; i += each) {
        ptac_view view;

        if (g->kind == PTAC_OPTIM_NADAM)
            write_product(&g->written[i - 1], g->owners[i / each].mu_product);
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
    return g->kind == PTAC_OPTIM_SGD ? sum : sum / -g->lr;
}

/* The step is done: what cannot be told any more is left untold. */
static void tell(PyObject *sums, double sum)
{
    PTAC_OWNED PyObject *number = PyFloat_FromDouble(sum);

    if (!number || PyList_Append(sums, number) < 0)
        PyErr_Clear();
}

/* On CUDA: false where the driver does not let us, or refuses a launch. */
static bool launch(ptac_optimizer_args *g)
{
    PTAC_CUDA_SCOPE scope = {false};

    if (!ptac_cuda_begin(&g->call, &scope)) {
        ptac_refuse(g->op, PTAC_DEVICE);
        return false;
    }
    /* Torch does not let it: the count, and so the numbers, would be of this step. */
    if (g->kind != PTAC_OPTIM_SGD && !g->step.adam.is_capturable &&
        ptac_cuda_is_capturing(&g->call)) {
        ptac_refuse(g->op, PTAC_CAPTURABLE);
        return false;
    }
    return ptac_run(g->row, &g->call);
}

/*
 * Write. A row of the CPU cannot fail; should one say that it did, before writing, the
 * definition does the work, since other groups of the step may be done already. False
 * where a row of CUDA did.
 */
static bool run_gathered(ptac_optimizer_args *g, PyObject *sums)
{
    PyThreadState *thread;
    bool is_done = true;

    if (sums != Py_None)
        g->step.sums =
            PyMem_Calloc((size_t)ptac_step_sums(g->n_elements) + 1, sizeof(double));
    thread = g->n_elements < 4096 ? NULL : PyEval_SaveThread();
    if (g->device == PTAC_ON_CUDA)
        is_done = launch(g);
    else if (!ptac_run(g->row, &g->call))
        ptac_registry_find(g->op, "scalar")->run(&g->call);
    if (thread)
        PyEval_RestoreThread(thread);
    if (!is_done)
        return false;
    count_steps(g);
    bump_versions(g);
    if (sums != Py_None)
        tell(sums, sum_up(g));
    PyMem_Free(g->step.sums);
    g->step.sums = NULL;
    g->has_begun = true;
    return true;
}

/* The driver has refused a launch: an error, where others of the step are under way. */
static bool has_failed_late(const ptac_optimizer_args *groups, int n)
{
    for (int i = 0; i < n; i++) {
        if (groups[i].has_begun) {
            PyErr_Format(PyExc_RuntimeError, "the optimizer's step is done in part: %s",
                         ptac_error_get());
            return true;
        }
    }
    return false;
}

static void forget_all(const ptac_optimizer_args *groups, int n, PyObject *states)
{
    for (int i = 0; i < n; i++)
        ptac_sgd_state_forget(&groups[i], states);
}

/*
 * Write all groups that have a row. Else false: none is written, and stock does the
 * step; or an exception is set.
 */
static bool write_all(ptac_optimizer_args *groups, int n, PyObject *states,
                      PyObject *sums)
{
    for (int i = 0; i < n; i++) {
        if (groups[i].row && !ptac_sgd_state_create(&groups[i], states)) {
            forget_all(groups, i + 1, states);
            return false;
        }
    }
    for (int i = 0; i < n; i++) {
        if (groups[i].row && !run_gathered(&groups[i], sums)) {
            if (!has_failed_late(groups, n))
                forget_all(groups, n, states);
            return false;
        }
    }
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
 * optimizer_group(kind, states, group, multiplier, sums) -> 1: done; 0: stock has to
 * do it; -1: stock has to make the states, then ask again. The kind is the name of
 * torch's module: "adam" is AdamW's too. The rate is multiplied; decoupled weight decay
 * goes by the rate as it is.
 *
 * sums is None, or a list: of a group that has stepped, the sum of gradient times
 * direction is appended, see ops/optim/descent.h; of Adam's, that of the direction
 * which the step has taken, with weight decay and amsgrad. Groups without gradients
 * tell nothing.
 */
PTAC_ARGS(optimizer_group, 5)
{
    ptac_optimizer_args group;
    ptac_optim_kind kind;
    ptac_op op;
    ptac_verdict verdict;
    bool is_done;
    double multiplier;
    PyObject *sums;

    if (!ptac_optim_kind_of(args[0], &kind) || !read_rate(&args[3], &multiplier, &sums))
        return NULL;
    op = ptac_optim_op(args[2], kind);
    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        return PyLong_FromLong(0);
    if (!ptac_thread_is_plain()) {
        ptac_refuse(op, PTAC_MODE);
        return PyLong_FromLong(0);
    }
    verdict = gather(&group, args[2], args[1], kind, multiplier, sums);
    if (!verdict)
        verdict = ptac_optimizer_args_repeat(&group, 1);
    is_done = !verdict && write_all(&group, 1, args[1], sums);
    if (verdict > PTAC_TAKE)
        ptac_refuse(op, (ptac_reason)verdict);
    ptac_optimizer_args_release(&group);
    if (verdict == PTAC_RAISED || PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(verdict == PTAC_NEEDS_STATE ? -1 : is_done);
}

enum {
    MAX_GROUPS = 64,
};

/* Gather every group and find a row for each, or leave everything as it was. */
static bool gather_all(PyObject *groups, PyObject *states, ptac_optim_kind kind,
                       double multiplier, PyObject *sums, ptac_optimizer_args *gathered,
                       int *n_gathered)
{
    const Py_ssize_t n = PyList_Size(groups);

    if (n > MAX_GROUPS)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        const ptac_verdict result = gather(&gathered[i], PyList_GetItem(groups, i),
                                           states, kind, multiplier, sums);

        *n_gathered = (int)i + 1;
        if (result || PyList_Size(groups) != n)
            return false;
        if (kind == PTAC_OPTIM_ADAM && gathered[i].step.adam.is_capturable)
            return false; /* torch's own step() looks whether a graph is captured */
    }
    return !ptac_optimizer_args_repeat(gathered, *n_gathered);
}

/*
 * optimizer_step(kind, optimizer, multiplier, sums) -> whether the whole step is
 * done. When it is not, nothing was written, counted or told, and the optimizer's own
 * step() finds out group by group what can be accelerated.
 */
PTAC_ARGS(optimizer_step, 4)
{
    ptac_optimizer_args gathered[MAX_GROUPS];
    PTAC_OWNED PyObject *groups = NULL, *states = NULL;
    int n_gathered = 0;
    bool done = false;
    ptac_optim_kind kind;
    double multiplier;
    PyObject *sums;

    if (!ptac_optim_kind_of(args[0], &kind) || !read_rate(&args[2], &multiplier, &sums))
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_chooser_gate(PTAC_OP_SGD_STEP) == PTAC_OFF || !ptac_thread_is_plain() ||
        ptac_shadow_is_on()) /* which goes group by group */
        Py_RETURN_FALSE;
    groups = PyObject_GetAttr(args[1], ptac_names.param_groups);
    states = groups ? PyObject_GetAttr(args[1], ptac_names.state) : NULL;
    done = states && PyList_CheckExact(groups) &&
           gather_all(groups, states, kind, multiplier, sums, gathered, &n_gathered) &&
           write_all(gathered, n_gathered, states, sums);
    for (int i = 0; i < n_gathered; i++)
        ptac_optimizer_args_release(&gathered[i]);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

/*
 * optimizer_trust(op, way, yes): whether groups of the operator that ask for "foreach"
 * or "fused" get the numbers of that way from the rows; false where nobody has said so.
 */
PTAC_ARGS(optimizer_trust, 3)
{
    const bool is_foreach = PyUnicode_Check(args[1]) &&
                            PyUnicode_CompareWithASCIIString(args[1], "foreach") == 0;
    const unsigned bit = 1u << (is_foreach ? PTAC_STEP_FOREACH : PTAC_STEP_FUSED);
    const ptac_op op = ptac_op_from(args[0]);

    if (op == PTAC_N_OPS)
        return NULL;
    if (args[2] == Py_True)
        ptac_optim_ways[op] |= bit;
    else
        ptac_optim_ways[op] &= ~bit;
    Py_RETURN_NONE;
}
