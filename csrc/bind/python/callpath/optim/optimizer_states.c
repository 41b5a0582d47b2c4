/*
 * optimizer_states.c - reading what an optimizer keeps of a parameter.
 */
#include "bind/python/callpath/optim/optimizer_args.h"

#include <float.h>
#include <math.h>

/* A state tensor that lies exactly as its parameter does. */
static bool takes_after(const ptac_optimizer_args *g, PyObject *tensor,
                        const ptac_view *param, void **data)
{
    ptac_view view;

    if (!ptac_optimizer_args_look(g, tensor, &view))
        return false;
    *data = view.n_elements ? view.data : NULL;
    return view.dtype == param->dtype && ptac_view_is_alike(&view, param);
}

/*
 * The state of a parameter, borrowed. States usually stand in the order of the
 * parameters: position walks along and saves hashing, which calls Python for tensors.
 */
static PyObject *find_state(PyObject *states, PyObject *param, Py_ssize_t *position)
{
    PyObject *key, *value;
    Py_ssize_t next = *position;

    if (PyDict_Next(states, &next, &key, &value) && key == param) {
        *position = next;
        return value;
    }
    return PyDict_GetItemWithError(states, param);
}

static ptac_verdict gather_momentum(ptac_optimizer_args *g, PyObject *state,
                                    const ptac_view *view, ptac_step_item *item)
{
    PyObject *buffer =
        state ? PyDict_GetItemWithError(state, ptac_names.momentum_buffer) : NULL;

    if (PyErr_Occurred())
        return PTAC_RAISED;
    item->is_first = !buffer || buffer == Py_None;
    if (item->is_first) /* ptac_sgd_state_create() makes it, once nothing can refuse */
        return PTAC_TAKE;
    if (!takes_after(g, buffer, view, &item->state[0]))
        return PTAC_STATE;
    ptac_optimizer_args_write(g, buffer, item->state[0]);
    return PTAC_TAKE;
}

/*
 * The count after this step, in step's own precision; stock's comes on the CPU, float32
 * or float64, 0-d.
 */
static bool read_step(PyObject *tensor, ptac_view *view, double *count)
{
    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), view);
    if (view->n_elements != 1 || (view->dtype != PTAC_F32 && view->dtype != PTAC_F64))
        return false;
    if (view->dtype == PTAC_F32)
        *count = *(const float *)view->data + 1.0f;
    else
        *count = *(const double *)view->data + 1.0;
    return *count >= 1;
}

/* Of capturable steps: the count lies on the device, and stays untold here. */
static ptac_verdict gather_count(ptac_optimizer_args *g, PyObject *tensor,
                                 ptac_step_item *item)
{
    ptac_adam *adam = &g->step.adam;
    ptac_view view;

    if (!ptac_optimizer_args_look(g, tensor, &view) || view.n_elements != 1 ||
        (view.dtype != PTAC_F32 && view.dtype != PTAC_F64) ||
        (g->n_items && view.dtype != adam->step_dtype))
        return PTAC_STATE;
    adam->step_dtype = view.dtype;
    item->step = view.data;
    ptac_optimizer_args_write(g, tensor, view.data);
    return PTAC_TAKE;
}

/* Tensors of a state that lie as its parameter does, in this order; NULL: none. */
static ptac_verdict gather_tensors(ptac_optimizer_args *g, PyObject *state,
                                   const ptac_view *view, ptac_step_item *item,
                                   PyObject *const keys[3])
{
    if (!state || PyDict_Size(state) == 0)
        return PTAC_NEEDS_STATE;
    for (int i = 0; i < 3; i++) {
        PyObject *tensor = keys[i] ? PyDict_GetItemWithError(state, keys[i]) : NULL;

        if (!keys[i])
            continue;
        if (!tensor || !takes_after(g, tensor, view, &item->state[i]))
            return PTAC_STATE;
        ptac_optimizer_args_write(g, tensor, item->state[i]);
    }
    return PTAC_TAKE;
}

/* The count of steps, last of what an item writes. */
static ptac_verdict gather_step(ptac_optimizer_args *g, PyObject *state, double *count)
{
    PyObject *step = PyDict_GetItemWithError(state, ptac_names.step);
    ptac_view view;

    if (!step || !read_step(step, &view, count))
        return PTAC_STATE;
    if (g->step.way == PTAC_STEP_FUSED &&
        (view.dtype != PTAC_F32 || !(*count <= 0x1p24) ||
         *count != (double)(int64_t)*count))
        return PTAC_STATE; /* which the fused kernel reads as an integer */
    ptac_optimizer_args_write(g, step, view.data);
    return PTAC_TAKE;
}

static bool is_float(double number)
{
    return fabs(number) <= FLT_MAX;
}

static ptac_verdict gather_moments(ptac_optimizer_args *g, PyObject *state,
                                   ptac_step_item *item)
{
    const bool is_fused = g->step.way == PTAC_STEP_FUSED;
    PyObject *step = PyDict_GetItemWithError(state, ptac_names.step);
    double count, correction2;
    ptac_verdict result;

    if (step && g->step.adam.is_capturable)
        return gather_count(g, step, item);
    result = gather_step(g, state, &count);
    if (result)
        return result;
    item->step_size_neg = -(g->lr / (1 - pow(g->beta1, count)));
    if (!is_float(item->step_size_neg))
        return PTAC_ARGUMENT;
    correction2 = 1 - pow(g->step.adam.beta2, count);
    item->bias_correction2_sqrt = is_fused ? sqrt(correction2) : pow(correction2, 0.5);
    return PTAC_TAKE;
}

static ptac_verdict gather_rate(ptac_optimizer_args *g, PyObject *state,
                                ptac_step_item *item)
{
    double count;
    const ptac_verdict result = gather_step(g, state, &count);

    if (result)
        return result;
    item->step_size_neg = -(g->lr / (1 + (count - 1) * g->lr_decay));
    return is_float(item->step_size_neg) ? PTAC_TAKE : PTAC_ARGUMENT;
}

/* The product of NAdam's momenta after this step, in its own precision. */
static bool read_product(PyObject *tensor, double momentum, ptac_view *view,
                         double *product)
{
    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), view);
    if (view->n_elements != 1 || (view->dtype != PTAC_F32 && view->dtype != PTAC_F64))
        return false;
    if (view->dtype == PTAC_F32)
        *product = *(const float *)view->data * (float)momentum;
    else
        *product = *(const double *)view->data * momentum;
    return true;
}

/* As torch/optim/nadam.py computes them, in double as Python does. */
static ptac_verdict gather_momenta(ptac_optimizer_args *g, PyObject *state,
                                   ptac_step_item *item)
{
    PyObject *tensor = PyDict_GetItemWithError(state, ptac_names.mu_product);
    PyObject *step = PyDict_GetItemWithError(state, ptac_names.step);
    const double decay = g->momentum_decay;
    double count, now, next, product;
    ptac_view view;

    if (!tensor || !step || !read_step(step, &view, &count))
        return PTAC_STATE;
    now = g->beta1 * (1.0 - 0.5 * pow(0.96, count * decay));
    next = g->beta1 * (1.0 - 0.5 * pow(0.96, (count + 1) * decay));
    if (!is_float(now) || !is_float(next))
        return PTAC_ARGUMENT;
    if (!read_product(tensor, now, &view, &product))
        return PTAC_STATE;
    ptac_optimizer_args_write(g, tensor, view.data);
    g->owners[g->n_items].mu_product = product;
    item->grad_size_neg = -g->lr * (1.0 - now) / (1.0 - product);
    item->step_size_neg = -g->lr * next / (1.0 - product * next);
    if (!is_float(item->grad_size_neg) || !is_float(item->step_size_neg))
        return PTAC_ARGUMENT;
    item->bias_correction2 = 1 - pow(g->beta2, count);
    item->bias_correction2_sqrt = pow(item->bias_correction2, 0.5);
    return gather_step(g, state, &count);
}

/* Which tensors a state has, by the options that its group has now. */
static void name_tensors(const ptac_optimizer_args *g, PyObject *keys[3])
{
    switch (g->kind) {
    case PTAC_OPTIM_ADAM:
        keys[0] = ptac_names.exp_avg;
        keys[1] = ptac_names.exp_avg_sq;
        keys[2] = g->step.adam.amsgrad ? ptac_names.max_exp_avg_sq : NULL;
        return;
    case PTAC_OPTIM_ADADELTA:
        keys[0] = ptac_names.square_avg;
        keys[1] = ptac_names.acc_delta;
        return;
    case PTAC_OPTIM_RMSPROP:
        keys[0] = ptac_names.square_avg;
        keys[1] = g->step.rmsprop.momentum > 0 ? ptac_names.momentum_buffer : NULL;
        keys[2] = g->step.rmsprop.centered ? ptac_names.grad_avg : NULL;
        return;
    case PTAC_OPTIM_ADAGRAD:
        keys[0] = ptac_names.sum;
        return;
    default:
        keys[0] = ptac_names.exp_avg;
        keys[1] = ptac_names.exp_avg_sq;
    }
}

static ptac_verdict gather_rest(ptac_optimizer_args *g, PyObject *state,
                                ptac_step_item *item)
{
    double count;

    switch (g->kind) {
    case PTAC_OPTIM_ADAM:
        return gather_moments(g, state, item);
    case PTAC_OPTIM_ADAGRAD:
        return gather_rate(g, state, item);
    case PTAC_OPTIM_NADAM:
        return gather_momenta(g, state, item);
    default:
        return gather_step(g, state, &count);
    }
}

ptac_verdict ptac_optimizer_args_state(ptac_optimizer_args *g, PyObject *states,
                                       PyObject *param, Py_ssize_t *position,
                                       const ptac_view *view, ptac_step_item *item)
{
    PyObject *keys[3] = {NULL}, *state;
    ptac_verdict result;

    if (g->kind == PTAC_OPTIM_SGD && g->step.sgd.momentum == 0)
        return PTAC_TAKE;
    state = find_state(states, param, position);
    if (PyErr_Occurred())
        return PTAC_RAISED;
    if (state && !PyDict_CheckExact(state))
        return PTAC_STATE;
    if (g->kind == PTAC_OPTIM_SGD)
        return gather_momentum(g, state, view, item);
    name_tensors(g, keys);
    result = gather_tensors(g, state, view, item, keys);
    return result ? result : gather_rest(g, state, item);
}
