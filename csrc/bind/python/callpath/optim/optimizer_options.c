/*
 * optimizer_options.c - reading a parameter group's hyperparameters.
 */
#include "bind/python/callpath/optim/optimizer_args.h"

#include <float.h>
#include <math.h>

/*
 * A hyperparameter as Python computes with it; tensors and other numbers are stock's.
 * So are those that torch refuses to convert to float, infinities, and integers whose
 * products a double may not hold.
 */
static bool read_number(PyObject *group, PyObject *key, double *number)
{
    PyObject *value = PyDict_GetItemWithError(group, key);

    if (!value || (!PyFloat_CheckExact(value) && !PyLong_CheckExact(value)))
        return false;
    *number = PyFloat_AsDouble(value);
    if (*number == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return fabs(*number) <= (PyLong_CheckExact(value) ? 0x1p26 : FLT_MAX);
}

/* A decay rate for which stock's bias corrections exist: it computes them first. */
static bool read_beta(PyObject *value, double *beta)
{
    if (!PyFloat_CheckExact(value))
        return false;
    *beta = PyFloat_AsDouble(value);
    return *beta >= 0 && *beta < 1;
}

/* None and a missing key count as false; anything but a bool is stock's. */
static bool read_flag(PyObject *group, PyObject *key, bool *flag)
{
    PyObject *value = PyDict_GetItemWithError(group, key);

    *flag = value == Py_True;
    return !value || value == Py_None || PyBool_Check(value);
}

unsigned ptac_optim_ways[PTAC_N_OPS];

/* One of torch's implementations: whether the rows give its numbers. */
static ptac_reason take_way(ptac_optimizer_args *g, ptac_step_way way, ptac_reason why)
{
    if (g->step.way != PTAC_STEP_LOOP || (ptac_optim_ways[g->op] & 1u << way) == 0)
        return why; /* both are asked for, or it is another's arithmetic */
    g->step.way = way;
    return PTAC_TAKE;
}

/* Options that ask for one of torch's implementations. */
static ptac_reason read_implementation(PyObject *group, ptac_optimizer_args *g,
                                       bool *is_capturable)
{
    const struct {
        PyObject *key;
        ptac_reason why;
    } others[] = {
        {ptac_names.foreach, PTAC_FOREACH},
        {ptac_names.fused, PTAC_FUSED},
        {ptac_names.capturable, PTAC_CAPTURABLE},
        {ptac_names.differentiable, PTAC_DIFFERENTIABLE},
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool flag;

        if (!read_flag(group, others[i].key, &flag))
            return others[i].why;
        if (!flag)
            continue;
        if (others[i].why == PTAC_CAPTURABLE) {
            *is_capturable = true; /* what that means depends on the device */
            continue;
        }
        if (i > 1 ||
            take_way(g, i == 0 ? PTAC_STEP_FOREACH : PTAC_STEP_FUSED, others[i].why))
            return others[i].why;
    }
    return PTAC_TAKE;
}

bool ptac_optim_kind_of(PyObject *name, ptac_optim_kind *kind)
{
    static const char *const kinds[] = {"sgd", "adam", "adadelta"};

    _Static_assert(sizeof kinds / sizeof *kinds == PTAC_OPTIM_KINDS, "a name each");
    for (int i = 0; PyUnicode_Check(name) && i < PTAC_OPTIM_KINDS; i++) {
        *kind = (ptac_optim_kind)i;
        if (PyUnicode_CompareWithASCIIString(name, kinds[i]) == 0)
            return true;
    }
    PyErr_SetString(PyExc_ValueError, "kinds of optimizers are sgd, adam and adadelta");
    return false;
}

ptac_op ptac_optim_op(PyObject *group, ptac_optim_kind kind)
{
    PyObject *flag;
    bool is_decoupled;

    if (kind != PTAC_OPTIM_ADAM)
        return kind == PTAC_OPTIM_SGD ? PTAC_OP_SGD_STEP : PTAC_OP_ADADELTA_STEP;
    flag = PyObject_GetItem(group, ptac_names.decoupled_weight_decay);
    is_decoupled = flag == Py_True;
    Py_XDECREF(flag);
    PyErr_Clear();
    return is_decoupled ? PTAC_OP_ADAMW_STEP : PTAC_OP_ADAM_STEP;
}

static bool read_sgd(PyObject *group, ptac_sgd *sgd, double multiplier)
{
    double lr, dampening;

    if (!read_number(group, ptac_names.lr, &lr) ||
        !read_number(group, ptac_names.momentum, &sgd->momentum) ||
        !read_number(group, ptac_names.dampening, &dampening) ||
        !read_number(group, ptac_names.weight_decay, &sgd->weight_decay) ||
        !read_flag(group, ptac_names.nesterov, &sgd->nesterov) ||
        !read_flag(group, ptac_names.maximize, &sgd->maximize))
        return false;
    sgd->lr_neg = -(lr * multiplier);
    sgd->one_minus_dampening = 1 - dampening;
    return true;
}

/*
 * A rate that lies on a CUDA device, where captured steps read it; nobody here knows
 * its value, so it cannot be multiplied.
 */
static bool read_rate(PyObject *group, ptac_optimizer_args *g, double multiplier)
{
    PyObject *value = PyDict_GetItemWithError(group, ptac_names.lr);
    ptac_view view;

    if (!g->step.adam.is_capturable || !value || !ptac_is_plain_on_cuda(value))
        return read_number(group, ptac_names.lr, &g->lr);
    ptac_cuda_view_of(ptac_borrow(value), &view);
    if (multiplier != 1 || view.n_elements != 1 ||
        (view.dtype != PTAC_F32 && view.dtype != PTAC_F64))
        return false;
    g->lr_tensor = Py_NewRef(value);
    g->step.adam.lr_at = view.data;
    g->step.adam.lr_dtype = view.dtype;
    return true;
}

static bool read_adam(PyObject *group, ptac_optimizer_args *g, double multiplier)
{
    ptac_adam *adam = &g->step.adam;
    PyObject *betas = PyDict_GetItemWithError(group, ptac_names.betas);
    double weight_decay, beta2;
    bool is_decoupled;

    if (!read_flag(group, ptac_names.decoupled_weight_decay, &is_decoupled))
        return false;
    if (!betas || !PyTuple_Check(betas) || PyTuple_Size(betas) != 2 ||
        !read_beta(PyTuple_GetItem(betas, 0), &g->beta1) ||
        !read_beta(PyTuple_GetItem(betas, 1), &beta2))
        return false;
    if (!read_rate(group, g, multiplier) ||
        !read_number(group, ptac_names.eps, &adam->eps) ||
        !read_number(group, ptac_names.weight_decay, &weight_decay) ||
        !read_flag(group, ptac_names.amsgrad, &adam->amsgrad) ||
        !read_flag(group, ptac_names.maximize, &adam->maximize))
        return false;
    adam->one_minus_beta1 = 1 - g->beta1;
    adam->beta2 = beta2;
    adam->one_minus_beta2 = 1 - beta2;
    adam->weight_decay = is_decoupled ? 0 : weight_decay;
    adam->decoupled_decay = is_decoupled ? weight_decay : 0;
    adam->decay_factor =
        adam->decoupled_decay != 0 && !adam->lr_at ? 1 - g->lr * weight_decay : 1;
    g->lr *= multiplier;
    adam->beta1 = g->beta1;
    adam->lr = g->lr;
    return true;
}

static bool read_adadelta(PyObject *group, ptac_adadelta *adadelta, double multiplier)
{
    double lr;

    if (!read_number(group, ptac_names.lr, &lr) ||
        !read_number(group, ptac_names.rho, &adadelta->rho) ||
        !read_number(group, ptac_names.eps, &adadelta->eps) ||
        !read_number(group, ptac_names.weight_decay, &adadelta->weight_decay) ||
        !read_flag(group, ptac_names.maximize, &adadelta->maximize))
        return false;
    adadelta->lr_neg = -(lr * multiplier);
    adadelta->one_minus_rho = 1 - adadelta->rho;
    return true;
}

static bool read_numbers(PyObject *group, ptac_optimizer_args *g, bool is_capturable,
                         double multiplier)
{
    switch (g->kind) {
    case PTAC_OPTIM_SGD:
        return read_sgd(group, &g->step.sgd, multiplier);
    case PTAC_OPTIM_ADAM:
        g->step.adam.is_capturable = is_capturable;
        return read_adam(group, g, multiplier);
    default:
        return read_adadelta(group, &g->step.adadelta, multiplier);
    }
}

/* Nesterov's SGD by "foreach" leaves its directions in the gradients. */
static bool writes_gradients(const ptac_optimizer_args *g)
{
    const ptac_sgd *sgd = &g->step.sgd;

    return g->kind == PTAC_OPTIM_SGD && g->step.way == PTAC_STEP_FOREACH &&
           sgd->momentum != 0 && sgd->nesterov && sgd->weight_decay == 0 &&
           !sgd->maximize;
}

ptac_verdict ptac_optimizer_options_read(ptac_optimizer_args *g, PyObject *group,
                                         double multiplier)
{
    bool is_capturable = false;
    const ptac_reason why = read_implementation(group, g, &is_capturable);
    const bool is_read = read_numbers(group, g, is_capturable, multiplier);

    if (PyErr_Occurred())
        return PTAC_RAISED;
    if (!why && is_capturable && g->kind != PTAC_OPTIM_ADAM)
        return PTAC_CAPTURABLE;
    if (why || !is_read)
        return is_read ? why : PTAC_ARGUMENT;
    if (g->step.way == PTAC_STEP_FUSED && multiplier != 1)
        return PTAC_FUSED;
    return writes_gradients(g) ? PTAC_FOREACH : PTAC_TAKE;
}
