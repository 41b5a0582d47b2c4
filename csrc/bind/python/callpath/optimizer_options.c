/*
 * optimizer_options.c - reading a parameter group's hyperparameters.
 */
#include "bind/python/callpath/optimizer_args.h"

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

/* Options that send a group to torch's other implementations. */
static ptac_reason read_implementation(PyObject *group)
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

        if (!read_flag(group, others[i].key, &flag) || flag)
            return others[i].why;
    }
    return PTAC_TAKE;
}

ptac_op ptac_optim_op(PyObject *group, bool is_sgd)
{
    PyObject *flag;
    bool is_decoupled;

    if (is_sgd)
        return PTAC_OP_SGD_STEP;
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
    if (!read_number(group, ptac_names.lr, &g->lr) ||
        !read_number(group, ptac_names.eps, &adam->eps) ||
        !read_number(group, ptac_names.weight_decay, &weight_decay) ||
        !read_flag(group, ptac_names.amsgrad, &adam->amsgrad) ||
        !read_flag(group, ptac_names.maximize, &adam->maximize))
        return false;
    adam->one_minus_beta1 = 1 - g->beta1;
    adam->beta2 = beta2;
    adam->one_minus_beta2 = 1 - beta2;
    adam->weight_decay = is_decoupled ? 0 : weight_decay;
    adam->decay_factor =
        is_decoupled && weight_decay != 0 ? 1 - g->lr * weight_decay : 1;
    g->lr *= multiplier;
    return true;
}

ptac_verdict ptac_optimizer_options_read(ptac_optimizer_args *g, PyObject *group,
                                         bool is_sgd, double multiplier)
{
    const ptac_reason why = read_implementation(group);
    const bool is_read = is_sgd ? read_sgd(group, &g->step.sgd, multiplier)
                                : read_adam(group, g, multiplier);
    if (PyErr_Occurred())
        return PTAC_RAISED;
    return is_read ? why : PTAC_ARGUMENT;
}
