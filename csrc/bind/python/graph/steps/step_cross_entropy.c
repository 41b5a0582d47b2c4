/*
 * step_cross_entropy.c - steps of cross_entropy that keeps the probabilities, and of
 * its gradient, which is written over these.
 */
#include "bind/python/graph/graph.h"
#include "bind/torch/dispatch.h"
#include "bind/torch/rows/cross_entropy.h"

enum {
    X, /* of the gradient: the probabilities */
    TARGET,
    WEIGHT, /* may be -1 */
    GRAD,   /* of the gradient alone */
    N_TENSORS,

    LOSS = 0,
    P,
    OF_X = 0,
    MOST_RESULTS = 2,
};

typedef struct entropy_step {
    ptac_step step;
    bool is_gradient;
    int64_t reduction, ignore_index;
    int inputs[N_TENSORS], outputs[MOST_RESULTS];
} entropy_step;

static void drop(ptac_step *step)
{
    PyMem_Free(step->ends);
    PyMem_Free(step);
}

/* Those of the step, borrowed; false where one has none. */
static bool find(ptac_plan *plan, const entropy_step *s, at_tensor tensors[N_TENSORS])
{
    for (int i = 0; i < N_TENSORS; i++) {
        tensors[i] = s->inputs[i] < 0 ? NULL : ptac_value_handle(plan, s->inputs[i]);
        if (s->inputs[i] >= 0 && !tensors[i])
            return false;
    }
    return true;
}

static ptac_cross_entropy_args args_of(const entropy_step *s,
                                       const at_tensor tensors[N_TENSORS])
{
    return (ptac_cross_entropy_args){.x = tensors[X],
                                     .target = tensors[TARGET],
                                     .weight = tensors[WEIGHT],
                                     .reduction = s->reduction,
                                     .ignore_index = s->ignore_index};
}

static bool run_forward(ptac_plan *plan, ptac_step *step)
{
    const entropy_step *s = (entropy_step *)step;
    at_tensor tensors[N_TENSORS], loss = NULL, p = NULL;
    ptac_cross_entropy_args args;
    ptac_cross_entropy params;
    ptac_call call;
    bool is_done;

    if (!find(plan, s, tensors))
        return false;
    args = args_of(s, tensors);
    if (ptac_cross_entropy_read(&args, &params, &call))
        return false;
    call.n_threads = ptac_the_host.n_threads();
    if (!PTAC_UNLOCKED(ptac_cross_entropy_run(step->row, &call, &loss, &p)))
        return false;
    is_done = ptac_value_take(plan, s->outputs[LOSS], at_give(&loss)) &&
              ptac_value_take(plan, s->outputs[P], at_give(&p));
    at_drop_tensor(&p);
    return is_done;
}

static bool run_gradient(ptac_plan *plan, ptac_step *step)
{
    const entropy_step *s = (entropy_step *)step;
    at_tensor tensors[N_TENSORS], made = NULL;
    ptac_cross_entropy_args args;

    if (!find(plan, s, tensors))
        return false;
    args = args_of(s, tensors);
    return PTAC_UNLOCKED(ptac_cross_entropy_gradient_by(step->row, &args, tensors[GRAD],
                                                        &made)) &&
           ptac_value_take(plan, s->outputs[OF_X], made);
}

static ptac_reason check(const ptac_plan *plan, const entropy_step *s)
{
    const ptac_view *x = &plan->values[s->inputs[X]].view;
    const ptac_view *target = &plan->values[s->inputs[TARGET]].view;

    for (int i = 0; i < MOST_RESULTS; i++)
        if (s->outputs[i] >= 0 && plan->values[s->outputs[i]].kind != PTAC_VALUE_MADE)
            return PTAC_ARGUMENT;
    if (s->is_gradient && plan->values[s->inputs[X]].kind != PTAC_VALUE_MADE)
        return PTAC_ARGUMENT; /* it is written over */
    if (x->dtype != PTAC_F32 || x->n_dims != 2 || !ptac_view_is_contiguous(x))
        return PTAC_LAYOUT;
    if (target->dtype != PTAC_I64 || target->n_dims != 1 ||
        target->sizes[0] != x->sizes[0])
        return PTAC_ARGUMENT;
    if (!ptac_view_is_contiguous(target))
        return PTAC_LAYOUT;
    return s->inputs[WEIGHT] < 0
               ? PTAC_TAKE
               : ptac_vector_reason(&plan->values[s->inputs[WEIGHT]].view, x->sizes[1]);
}

/* Of both, what serves the forward call. */
static const ptac_kernel *choose(const ptac_plan *plan, const entropy_step *s,
                                 ptac_reason *why)
{
    const ptac_kernel *best =
        ptac_registry_preferred(PTAC_OP_CROSS_ENTROPY, PTAC_CLOSE);
    ptac_cross_entropy params;
    ptac_call call = {.op = PTAC_OP_CROSS_ENTROPY, .n_inputs = 3, .params = &params};
    const ptac_kernel *row;

    *why = check(plan, s);
    if (*why)
        return NULL;
    for (int i = X; i <= WEIGHT; i++)
        if (s->inputs[i] >= 0)
            call.inputs[i] = plan->values[s->inputs[i]].view;
    call.outputs[PTAC_CROSS_ENTROPY_LOSS].dtype = PTAC_F32;
    params = (ptac_cross_entropy){.n_rows = call.inputs[X].sizes[0],
                                  .n_classes = call.inputs[X].sizes[1],
                                  .ignore_index = s->ignore_index,
                                  .reduction = (ptac_reduction)s->reduction};
    row = ptac_probe_or(&call, best ? best->name : "", why);
    return row && s->is_gradient
               ? ptac_registry_find_on(PTAC_ON_CPU, PTAC_OP_CROSS_ENTROPY_BACKWARD,
                                       row->name)
               : row;
}

static bool read_tensors(const ptac_plan *plan, PyObject *inputs, PyObject *outputs,
                         entropy_step *s)
{
    const Py_ssize_t n = PyTuple_Size(inputs), n_outputs = PyTuple_Size(outputs);

    if (n > N_TENSORS || n < WEIGHT || n_outputs < 1 || n_outputs > MOST_RESULTS)
        return PyErr_Format(PyExc_TypeError, "so many values are not expected");
    for (int i = 0; i < N_TENSORS; i++)
        s->inputs[i] = i >= n || PyTuple_GetItem(inputs, i) == Py_None
                           ? -1
                           : ptac_value_number(plan, PyTuple_GetItem(inputs, i));
    for (int i = 0; i < MOST_RESULTS; i++)
        s->outputs[i] =
            i >= n_outputs ? -1 : ptac_value_number(plan, PyTuple_GetItem(outputs, i));
    s->is_gradient = n_outputs == 1;
    return !PyErr_Occurred() && s->inputs[X] >= 0 && s->inputs[TARGET] >= 0 &&
           (!s->is_gradient || s->inputs[GRAD] >= 0);
}

/*
 * plan_cross_entropy(plan, (x, target, weight), reduction, ignore_index, (loss, p),
 * ends), or of the gradient (plan, (p, target, weight, grad), ..., (of x,), ends): a
 * row. weight may be None. None, or why there is no row.
 */
PTAC_ARGS(plan_cross_entropy, 6)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    entropy_step *s = plan ? PyMem_Calloc(1, sizeof *s) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!plan || !s)
        return plan ? PyErr_NoMemory() : NULL;
    s->reduction = PyLong_AsLongLong(args[2]);
    s->ignore_index = PyLong_AsLongLong(args[3]);
    if (!PyErr_Occurred() && PyTuple_Check(args[1]) && PyTuple_Check(args[4]) &&
        read_tensors(plan, args[1], args[4], s)) {
        PTAC_IN_FLIGHT;
        s->step.row = choose(plan, s, &why);
    }
    s->step.run = s->is_gradient ? run_gradient : run_forward;
    s->step.drop = drop;
    s->step.allocates = true;
    if (s->step.row)
        return ptac_plan_add(plan, &s->step, args[5]);
    drop(&s->step);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
}
