/*
 * step_row.c - steps that run a row: of an operator of aten that is described, of a
 * convolution with what follows it, of a sum and its activation.
 */
#include "bind/python/graph/arguments.h"
#include "bind/torch/rows/convolution/depthwise.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/batch_norm_fold.h"
#include "ops/pointwise/pointwise.h"

#include <stdlib.h>

enum {
    NORM_TENSORS = 4, /* weight, bias, running mean and variance */
    CONV_BIAS = 2,    /* among the arguments and inputs of a convolution */
};

typedef struct row_step {
    ptac_step step;
    ptac_prepared p;
    PyObject *given; /* arguments, which p has texts of */
    int inputs[PTAC_MAX_INPUTS], outputs[PTAC_MAX_OUTPUTS];

    /* Of a convolution with a norm behind it: */
    bool with_norm;
    int norm[NORM_TENSORS], bias; /* values, -1: none */
    double eps;
    int64_t n_channels;
    float *scale, *shift;

    /* Of one whose tensors stay as they are: */
    bool is_frozen, is_folded, may_keep;
    ptac_kept kept;
} row_step;

static void drop(ptac_step *step)
{
    row_step *s = (row_step *)step;

    if (s->p.args.of)
        ptac_plan_arguments_drop(&s->p.args);
    ptac_prepared_drop(&s->p);
    Py_XDECREF(s->given);
    PyMem_Free(s->scale);
    free(s->kept.data);
    PyMem_Free(s->step.ends);
    PyMem_Free(s);
}

static const float *channels(const ptac_plan *plan, int value)
{
    return value < 0 ? NULL : ptac_value_data(plan, value);
}

/* Else it is stock's to say where infinity is and where NaN. */
static bool are_finite(const float *numbers, int64_t n)
{
    float sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += numbers[i] * 0;
    return sum == 0;
}

/* Running statistics are as they are now: whoever changes them need not tell. */
static bool fold_norm(const ptac_plan *plan, row_step *s)
{
    if (s->is_folded)
        return true;

    const ptac_batch_norm norm = {
        .weight = channels(plan, s->norm[0]),
        .bias = channels(plan, s->norm[1]),
        .mean = channels(plan, s->norm[2]),
        .variance = channels(plan, s->norm[3]),
        .eps = s->eps,
    };

    ptac_batch_norm_fold_best()(&norm, channels(plan, s->bias), s->n_channels, s->scale,
                                s->shift);
    if (!are_finite(s->scale, s->n_channels) || !are_finite(s->shift, s->n_channels))
        return false;
    s->is_folded = s->is_frozen;
    return true;
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    row_step *s = (row_step *)step;
    ptac_call *call = &s->p.call;

    for (int i = 0; i < call->n_inputs; i++)
        if (s->inputs[i] >= 0)
            call->inputs[i].data = ptac_value_data(plan, s->inputs[i]);
    for (int i = 0; i < PTAC_MAX_OUTPUTS; i++) {
        if (s->outputs[i] < 0)
            continue;
        if (!ptac_value_make(plan, s->outputs[i]))
            return false;
        call->outputs[i].data = ptac_value_data(plan, s->outputs[i]);
    }
    if (s->may_keep)
        ptac_keep_weights(s->p.row, call, &s->kept);
    s->may_keep = false;
    return (!s->with_norm || fold_norm(plan, s)) && ptac_step_run_row(s->p.row, call);
}

static row_step *new_step(void)
{
    row_step *s = PyMem_Calloc(1, sizeof *s);

    if (!s) {
        PyErr_NoMemory();
        return NULL;
    }
    s->step = (ptac_step){.run = run, .drop = drop};
    for (int i = 0; i < PTAC_MAX_INPUTS; i++)
        s->inputs[i] = -1;
    for (int i = 0; i < PTAC_MAX_OUTPUTS; i++)
        s->outputs[i] = -1;
    return s;
}

static PyObject *add(ptac_plan *plan, row_step *s, PyObject *ends)
{
    s->step.row = s->p.row;
    return ptac_plan_add(plan, &s->step, ends);
}

/* Why there is no step, for Python; and the step, if one has been made, is dropped. */
static PyObject *refuse(row_step *s, ptac_reason why)
{
    if (s)
        drop(&s->step);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
}

/* The step's outputs are those values, which look as the call's will. */
static ptac_reason take_outputs(ptac_plan *plan, row_step *s, PyObject *tuple)
{
    const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;

    if (n < 1 || n > PTAC_MAX_OUTPUTS)
        return PTAC_ARGUMENT;
    for (int i = 0; i < (int)n; i++) {
        const int value = ptac_value_number(plan, PyTuple_GetItem(tuple, i));

        if (value < 0)
            return PTAC_ARGUMENT;
        s->outputs[i] = value;
        s->p.call.outputs[i] = plan->values[value].view;
    }
    return PTAC_TAKE;
}

static bool looks_like(const ptac_value *value, const ptac_output *output,
                       bool channels_last)
{
    int64_t strides[PTAC_MAX_DIMS];
    const size_t bytes = (size_t)value->view.n_dims * sizeof *strides;
    const int64_t *expected = output->strides;
    int64_t stride = 1;

    if (output->n_dims != value->view.n_dims || output->dtype != value->dtype ||
        memcmp(output->sizes, value->view.sizes, bytes) != 0)
        return false;
    if (channels_last && !expected) {
        ptac_image_strides(output->n_dims, output->sizes, true, strides);
        expected = strides;
    }
    for (int d = output->n_dims - 1; d >= 0 && !expected; d--) {
        strides[d] = stride;
        stride *= output->sizes[d] > 1 ? output->sizes[d] : 1;
    }
    return memcmp(expected ? expected : strides, value->view.strides, bytes) == 0;
}

/* Rows give outputs places of their own: the n that torch wants, in its order. */
static ptac_reason check_outputs(ptac_plan *plan, row_step *s)
{
    int values[PTAC_MAX_OUTPUTS];

    memcpy(values, s->outputs, sizeof values);
    for (int i = 0; i < PTAC_MAX_OUTPUTS; i++)
        s->outputs[i] = -1;
    for (int i = 0; i < s->p.args.of->n_outputs; i++) {
        const ptac_output *output = &s->p.outputs.at[i];

        if (values[i] < 0 || output->place < 0 || output->place >= PTAC_MAX_OUTPUTS)
            return PTAC_ARGUMENT;
        if (!looks_like(&plan->values[values[i]], output, s->p.outputs.channels_last))
            return PTAC_LAYOUT;
        s->outputs[output->place] = values[i];
        s->p.call.outputs[output->place] = plan->values[values[i]].view;
    }
    return PTAC_TAKE;
}

/* Read the arguments of the operator of that name, and from where inputs come. */
static ptac_reason read_operator(ptac_plan *plan, row_step *s, PyObject *name,
                                 PyObject *given)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    const ptac_override *override = text ? ptac_override_named(text) : NULL;
    int values[PTAC_MAX_ARGUMENTS];
    ptac_reason why;

    if (!override)
        return PTAC_ARGUMENT;
    s->p.args.of = override;
    s->given = Py_NewRef(given);
    if (!ptac_plan_arguments(plan, given, &s->p.args, values))
        return PTAC_ARGUMENT;
    why = ptac_prepare_call(&s->p);
    for (int i = 0; i < override->n_inputs; i++)
        if (override->inputs[i] != PTAC_NO_ARGUMENT)
            s->inputs[i] = values[override->inputs[i]];
    return why;
}

/*
 * plan_row(plan, name, arguments, outputs, ends): add a call of that operator of aten's
 * by a row of ours. None, or why there is none.
 */
PTAC_ARGS(plan_row, 5)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    row_step *s = plan ? new_step() : NULL;
    ptac_reason why;

    if (!s)
        return NULL;
    PTAC_IN_FLIGHT;
    why = read_operator(plan, s, args[1], args[2]);
    if (!why)
        why = take_outputs(plan, s, args[3]);
    if (!why)
        why = check_outputs(plan, s);
    if (!why)
        why = ptac_prepare_row(&s->p);
    return why ? refuse(s, why) : add(plan, s, args[4]);
}

/* --- a convolution and what follows it -------------------------------------------- */

static ptac_view view_of_floats(float *data, const int64_t *n)
{
    static const int64_t one_apart = 1;

    return (ptac_view){.data = data,
                       .sizes = n,
                       .strides = &one_apart,
                       .n_elements = *n,
                       .n_dims = 1,
                       .dtype = PTAC_F32};
}

/* What a norm has of each channel, (value,) or None: its number, -1; -2 of others. */
static int channels_value(ptac_plan *plan, PyObject *given, int64_t n)
{
    int value;

    if (given == Py_None)
        return -1;
    value = PyTuple_Check(given) && PyTuple_Size(given) == 1
                ? ptac_value_number(plan, PyTuple_GetItem(given, 0))
                : -1;
    return value < 0 || ptac_vector_reason(&plan->values[value].view, n) ? -2 : value;
}

/* The four values of a norm, each (value,) or None, and eps. */
static ptac_reason read_norm(ptac_plan *plan, row_step *s, PyObject *norm)
{
    PyObject *tensors[NORM_TENSORS];
    float *room;

    if (!PyArg_ParseTuple(norm, "OOOOd", &tensors[0], &tensors[1], &tensors[2],
                          &tensors[3], &s->eps))
        return PTAC_ARGUMENT;
    s->n_channels = s->p.call.inputs[1].sizes[0];
    for (int i = 0; i < NORM_TENSORS; i++) {
        s->norm[i] = channels_value(plan, tensors[i], s->n_channels);
        if (s->norm[i] < -1)
            return PTAC_ARGUMENT;
    }
    if (s->norm[2] < 0 || s->norm[3] < 0)
        return PTAC_ARGUMENT;
    room = PyMem_Calloc((size_t)s->n_channels * 2 + 1, sizeof *room);
    if (!room)
        return PTAC_MEMORY;
    s->scale = room;
    s->shift = room + s->n_channels;
    s->bias = s->inputs[CONV_BIAS];
    s->with_norm = true;
    s->inputs[CONV_BIAS] = s->inputs[CONV_BIAS + 1] = -1;
    s->p.call.inputs[CONV_BIAS] = view_of_floats(s->shift, &s->n_channels);
    s->p.call.inputs[CONV_BIAS + 1] = view_of_floats(s->scale, &s->n_channels);
    s->p.call.n_inputs = CONV_BIAS + 2;
    return PTAC_TAKE;
}

/* Have the call end in an activation and, where asked for, in max pooling. */
static ptac_reason read_epilogue(row_step *s, long act, bool with_pool)
{
    if (act != PTAC_ACT_NONE && act != PTAC_ACT_RELU && act != PTAC_ACT_RELU6)
        return PTAC_ARGUMENT;
    if (s->p.call.op == PTAC_OP_DEPTHWISE_CONV2D) {
        ((ptac_depthwise *)s->p.params)->act = (ptac_act)act;
        return with_pool ? PTAC_ARGUMENT : PTAC_TAKE;
    }
    ptac_conv2d *p = (ptac_conv2d *)s->p.params;

    if (p->result != PTAC_CONV_FORWARD)
        return PTAC_ARGUMENT;
    p->act = (ptac_act)act;
    p->with_pool = with_pool;
    return with_pool && (p->out_h < 2 || p->out_w < 2) ? PTAC_SHAPE : PTAC_TAKE;
}

/* Tables speak of convolutions alone; what follows is known to who looks a row up. */
static ptac_reason choose_row(ptac_plan *plan, row_step *s, PyObject *norm, long act,
                              bool with_pool)
{
    ptac_reason why = norm == Py_None ? PTAC_TAKE : read_norm(plan, s, norm);

    if (!why)
        why = read_epilogue(s, act, with_pool);
    return why ? why : ptac_prepare_row(&s->p);
}

/* What pooling leaves of the rows and columns. */
static ptac_reason halve(ptac_outputs *outputs)
{
    const int n_dims = outputs->at[0].n_dims;

    if (outputs->at[0].sizes != outputs->own_sizes || n_dims != PTAC_IMAGES)
        return PTAC_SHAPE;
    outputs->own_sizes[n_dims - 2] /= 2;
    outputs->own_sizes[n_dims - 1] /= 2;
    return PTAC_TAKE;
}

/*
 * plan_conv(plan, arguments, norm, activation, with_pool, output, ends, are_frozen): a
 * row of aten's convolution, behind which come a norm by running statistics, (weight,
 * bias, mean, variance, eps) or None, an activation, and max pooling of 2x2. Where
 * are_frozen, its weights and the norm's tensors stay as they are.
 */
PTAC_ARGS(plan_conv, 8)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    const long act = PyLong_AsLong(args[3]);
    PTAC_OWNED PyObject *name = PyUnicode_FromString("convolution");
    row_step *s = plan && name && !PyErr_Occurred() ? new_step() : NULL;
    ptac_reason why;

    if (!s)
        return NULL;
    PTAC_IN_FLIGHT;
    why = read_operator(plan, s, name, args[1]);
    s->is_frozen = args[7] == Py_True;
    if (s->is_frozen)
        s->p.call.kept = &s->kept; /* as a promise */
    if (!why)
        why = choose_row(plan, s, args[2], act, args[4] == Py_True);
    if (!why)
        why = take_outputs(plan, s, args[5]);
    if (!why && args[4] == Py_True)
        why = halve(&s->p.outputs);
    if (!why)
        why = check_outputs(plan, s);
    s->p.call.kept = NULL;
    s->may_keep = s->is_frozen;
    return why ? refuse(s, why) : add(plan, s, args[6]);
}

/* --- a norm ----------------------------------------------------------------------- */

/* As stock lays it out, without gaps: x, and a result that lies as it does. */
static ptac_reason read_norm_x(ptac_plan *plan, row_step *s, int x, long act)
{
    const ptac_view *view = &plan->values[x].view;
    ptac_channel_norm *p = (ptac_channel_norm *)s->p.params;
    const bool channels_last = !ptac_view_is_contiguous(view);

    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims < 2 || view->n_dims > 4 || view->n_elements == 0)
        return PTAC_SHAPE;
    if (channels_last && !ptac_view_is_channels_last(view))
        return PTAC_LAYOUT;
    *p = (ptac_channel_norm){
        .eps = s->eps,
        .act = (ptac_act)act,
        .n_channels = view->sizes[1],
        .n_images = view->sizes[0],
        .n_pixels = view->n_elements / (view->sizes[0] * view->sizes[1]),
    };
    if (channels_last) {
        p->n_images *= p->n_pixels;
        p->n_pixels = 1;
    }
    s->p.call = (ptac_call){.op = PTAC_OP_BATCH_NORM_ACT,
                            .n_inputs = PTAC_BATCH_NORM_N_INPUTS,
                            .n_outputs = 1,
                            .params = p};
    s->p.call.inputs[PTAC_BATCH_NORM_X] = *view;
    s->inputs[PTAC_BATCH_NORM_X] = x;
    return PTAC_TAKE;
}

static ptac_reason read_norm_tensors(ptac_plan *plan, row_step *s, PyObject *norm,
                                     int64_t n_channels)
{
    for (int i = 0; i < NORM_TENSORS; i++) {
        const int value = channels_value(plan, PyTuple_GetItem(norm, i), n_channels);

        if (value < -1)
            return PTAC_ARGUMENT;
        s->inputs[PTAC_BATCH_NORM_WEIGHT + i] = value;
        s->p.call.inputs[PTAC_BATCH_NORM_WEIGHT + i] =
            value < 0 ? (ptac_view){.dtype = PTAC_OTHER_DTYPE}
                      : plan->values[value].view;
    }
    return PTAC_TAKE;
}

/*
 * plan_norm(plan, x, norm, activation, output, ends): batch normalization by running
 * statistics, as in plan_conv(), and an activation behind it.
 */
PTAC_ARGS(plan_norm, 6)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    const int x = plan ? ptac_value_number(plan, args[1]) : -1;
    const long act = PyLong_AsLong(args[3]);
    row_step *s = x >= 0 && !PyErr_Occurred() ? new_step() : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!s)
        return NULL;
    PTAC_IN_FLIGHT;
    if (PyTuple_Check(args[2]) && PyTuple_Size(args[2]) == NORM_TENSORS + 1) {
        s->eps = PyFloat_AsDouble(PyTuple_GetItem(args[2], NORM_TENSORS));
        why = read_norm_x(plan, s, x, act);
    }
    if (!why)
        why = read_norm_tensors(plan, s, args[2], s->p.call.inputs[0].sizes[1]);
    if (!why)
        why = take_outputs(plan, s, args[4]);
    if (!why && !ptac_view_is_alike(&s->p.call.outputs[0], &s->p.call.inputs[0]))
        why = PTAC_LAYOUT;
    if (!why)
        s->p.row = ptac_probe(&s->p.call, &why);
    return why ? refuse(s, why) : add(plan, s, args[5]);
}

/* --- a sum ------------------------------------------------------------------------ */

/* Dense tensors that lie alike are rows of their elements, whatever their order. */
static ptac_reason flatten(ptac_call *call)
{
    static const int64_t one_apart = 1;
    ptac_view *const views[] = {&call->inputs[0], &call->inputs[1], &call->outputs[0]};

    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (views[i]->dtype != PTAC_F32 || !ptac_view_is_dense(views[i]) ||
            !ptac_view_is_alike(views[i], views[0]))
            return PTAC_LAYOUT;
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        views[i]->n_dims = 1;
        views[i]->sizes = &views[i]->n_elements;
        views[i]->strides = &one_apart;
    }
    return PTAC_TAKE;
}

/*
 * plan_sum(plan, (a, b), activation, output, ends): a row of add_act. The output may
 * lie where an input does.
 */
PTAC_ARGS(plan_sum, 5)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    const long act = PyLong_AsLong(args[2]);
    row_step *s = plan && !PyErr_Occurred() ? new_step() : NULL;
    ptac_reason why = PTAC_TAKE;

    if (!s)
        return NULL;
    PTAC_IN_FLIGHT;
    *(ptac_pointwise *)s->p.params = (ptac_pointwise){(ptac_act)act, false};
    s->p.call = (ptac_call){
        .op = PTAC_OP_ADD_ACT, .n_inputs = 2, .n_outputs = 1, .params = s->p.params};
    if (!PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != 2)
        why = PTAC_ARGUMENT;
    for (int i = 0; i < 2 && !why; i++) {
        s->inputs[i] = ptac_value_number(plan, PyTuple_GetItem(args[1], i));
        if (s->inputs[i] < 0)
            why = PTAC_ARGUMENT;
        else
            s->p.call.inputs[i] = plan->values[s->inputs[i]].view;
    }
    if (!why)
        why = take_outputs(plan, s, args[3]);
    if (!why)
        why = flatten(&s->p.call);
    if (!why)
        s->p.row = ptac_probe(&s->p.call, &why);
    return why ? refuse(s, why) : add(plan, s, args[4]);
}
