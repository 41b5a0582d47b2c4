/*
 * step_linear_backward.c - steps of a Linear layer's gradients, with those of the
 * activation behind it.
 */
#include "bind/python/graph/graph.h"
#include "bind/torch/dispatch.h"
#include "bind/torch/rows/linear_act.h"

enum {
    GRAD,
    SAVED, /* what the activation's gradient is computed from, -1: there is none */
    X,
    W,
    N_TENSORS,

    OF_X = 0, /* -1: not wanted */
    OF_W,
    OF_BIAS,
    N_RESULTS,
};

typedef struct backward_step {
    ptac_step step;
    ptac_act activation;
    int inputs[N_TENSORS], outputs[N_RESULTS];
} backward_step;

static void drop(ptac_step *step)
{
    PyMem_Free(step->ends);
    PyMem_Free(step);
}

/* True where no such input is asked for. */
static bool find(ptac_plan *plan, int value, at_tensor *tensor)
{
    *tensor = value < 0 ? NULL : ptac_value_handle(plan, value);
    return value < 0 || *tensor;
}

static bool take(ptac_plan *plan, int value, at_tensor *made)
{
    return value < 0 || ptac_value_take(plan, value, at_give(made));
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    const backward_step *s = (backward_step *)step;
    ptac_linear_gradients g = {.wants_x = s->outputs[OF_X] >= 0,
                               .wants_w = s->outputs[OF_W] >= 0,
                               .wants_bias = s->outputs[OF_BIAS] >= 0};
    bool is_done;

    if (!find(plan, s->inputs[GRAD], &g.grad) ||
        !find(plan, s->inputs[SAVED], &g.saved) || !find(plan, s->inputs[X], &g.x) ||
        !find(plan, s->inputs[W], &g.w))
        return false;
    if (!PTAC_UNLOCKED(ptac_linear_backward_by(step->row, s->activation, &g)))
        return false;
    is_done = take(plan, s->outputs[OF_X], &g.grad_x) &&
              take(plan, s->outputs[OF_W], &g.grad_w) &&
              take(plan, s->outputs[OF_BIAS], &g.grad_bias);
    at_drop_tensor(&g.grad_x);
    at_drop_tensor(&g.grad_w);
    at_drop_tensor(&g.grad_bias);
    return is_done;
}

static ptac_reason check(const ptac_plan *plan, const backward_step *s)
{
    const ptac_view *grad, *matrix;

    if (s->inputs[GRAD] < 0 || (s->inputs[X] < 0 && s->inputs[W] < 0))
        return PTAC_ARGUMENT;
    for (int i = 0; i < N_RESULTS; i++)
        if (s->outputs[i] >= 0 && plan->values[s->outputs[i]].kind != PTAC_VALUE_MADE)
            return PTAC_ARGUMENT;
    grad = &plan->values[s->inputs[GRAD]].view;
    if (grad->dtype != PTAC_F32 || grad->n_dims != 2 || !ptac_view_is_contiguous(grad))
        return PTAC_LAYOUT;
    for (int i = X; i <= W; i++) {
        if (s->inputs[i] < 0)
            continue;
        matrix = &plan->values[s->inputs[i]].view;
        if (matrix->n_dims != 2 || !ptac_linear_can_read(matrix) ||
            matrix->sizes[0] != grad->sizes[i == W])
            return PTAC_LAYOUT;
    }
    return PTAC_TAKE;
}

/* What tables say, or else the library that torch calls. */
static const ptac_kernel *choose(const ptac_plan *plan, const backward_step *s,
                                 ptac_reason *why)
{
    const int other = s->inputs[X] >= 0 ? s->inputs[X] : s->inputs[W];
    ptac_linear_act params;
    ptac_call call = {
        .op = PTAC_OP_LINEAR_ACT_BACKWARD, .n_inputs = 1, .params = &params};
    const ptac_kernel *row;

    *why = check(plan, s);
    if (*why)
        return NULL;
    call.inputs[0] = plan->values[s->inputs[GRAD]].view;
    params = (ptac_linear_act){.m = call.inputs[0].sizes[0],
                               .n = call.inputs[0].sizes[1],
                               .k = plan->values[other].view.sizes[1],
                               .activation = s->activation,
                               .is_training = true};
    row = ptac_probe_or(&call, "blas", why);
    if (row && (row->in_bf16 || ptac_products_are_lowered()))
        *why = PTAC_PRECISION;
    return *why ? NULL : row;
}

/*
 * plan_linear_backward(plan, (grad, saved, x, w), activation, (of x, of w, of bias),
 * ends): a row of linear_act_backward on matrices. What is not there, or not wanted, is
 * None. None, or why there is no such row.
 */
PTAC_ARGS(plan_linear_backward, 5)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    backward_step *s = plan ? PyMem_Calloc(1, sizeof *s) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!plan || !s)
        return plan ? PyErr_NoMemory() : NULL;
    s->step = (ptac_step){.run = run, .drop = drop, .allocates = true};
    s->activation = (ptac_act)PyLong_AsLong(args[2]);
    if (ptac_value_numbers(plan, args[1], N_TENSORS, s->inputs) &&
        ptac_value_numbers(plan, args[3], N_RESULTS, s->outputs) && !PyErr_Occurred()) {
        PTAC_IN_FLIGHT;
        s->step.row = choose(plan, s, &why);
    }
    if (s->step.row)
        return ptac_plan_add(plan, &s->step, args[4]);
    drop(&s->step);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
}
