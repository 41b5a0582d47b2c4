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

/* None counts as false. Where the key is missing, stock raises; others are stock's. */
static bool read_flag(PyObject *group, PyObject *key, bool *flag)
{
    PyObject *value = PyDict_GetItemWithError(group, key);

    *flag = value == Py_True;
    return value && (value == Py_None || PyBool_Check(value));
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
        unsigned without; /* kinds whose step() asks for no such key, a bit each */
    } others[] = {
        {ptac_names.foreach, PTAC_FOREACH, 0},
        {ptac_names.fused, PTAC_FUSED,
         1u << PTAC_OPTIM_ADADELTA | 1u << PTAC_OPTIM_RMSPROP | 1u << PTAC_OPTIM_NADAM},
        {ptac_names.capturable, PTAC_CAPTURABLE,
         1u << PTAC_OPTIM_SGD | 1u << PTAC_OPTIM_ADAGRAD},
        {ptac_names.differentiable, PTAC_DIFFERENTIABLE, 0},
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool flag;

        if (others[i].without >> g->kind & 1)
            continue;
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
    static const char *const kinds[] = {"sgd",     "adam",    "adadelta",
                                        "rmsprop", "adagrad", "nadam"};

    _Static_assert(sizeof kinds / sizeof *kinds == PTAC_OPTIM_KINDS, "a name each");
    for (int i = 0; PyUnicode_Check(name) && i < PTAC_OPTIM_KINDS; i++) {
        *kind = (ptac_optim_kind)i;
        if (PyUnicode_CompareWithASCIIString(name, kinds[i]) == 0)
            return true;
    }
    PyErr_SetString(PyExc_ValueError, "kinds of optimizers are sgd, adam, adadelta, "
                                      "rmsprop, adagrad and nadam");
    return false;
}

ptac_op ptac_optim_op(PyObject *group, ptac_optim_kind kind)
{
    static const ptac_op ops[] = {
        [PTAC_OPTIM_SGD] = PTAC_OP_SGD_STEP,
        [PTAC_OPTIM_ADADELTA] = PTAC_OP_ADADELTA_STEP,
        [PTAC_OPTIM_RMSPROP] = PTAC_OP_RMSPROP_STEP,
        [PTAC_OPTIM_ADAGRAD] = PTAC_OP_ADAGRAD_STEP,
        [PTAC_OPTIM_NADAM] = PTAC_OP_NADAM_STEP,
    };
    PyObject *flag;
    bool is_decoupled;

    if (kind != PTAC_OPTIM_ADAM)
        return ops[kind];
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

static bool read_betas(PyObject *group, ptac_optimizer_args *g)
{
    PyObject *betas = PyDict_GetItemWithError(group, ptac_names.betas);

    return betas && PyTuple_Check(betas) && PyTuple_Size(betas) == 2 &&
           read_beta(PyTuple_GetItem(betas, 0), &g->beta1) &&
           read_beta(PyTuple_GetItem(betas, 1), &g->beta2);
}

static bool read_adam(PyObject *group, ptac_optimizer_args *g, double multiplier)
{
    ptac_adam *adam = &g->step.adam;
    double weight_decay;
    bool is_decoupled;

    if (!read_flag(group, ptac_names.decoupled_weight_decay, &is_decoupled) ||
        !read_betas(group, g))
        return false;
    if (!read_rate(group, g, multiplier) ||
        !read_number(group, ptac_names.eps, &adam->eps) ||
        !read_number(group, ptac_names.weight_decay, &weight_decay) ||
        !read_flag(group, ptac_names.amsgrad, &adam->amsgrad) ||
        !read_flag(group, ptac_names.maximize, &adam->maximize))
        return false;
    adam->one_minus_beta1 = 1 - g->beta1;
    adam->beta2 = g->beta2;
    adam->one_minus_beta2 = 1 - g->beta2;
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

static bool read_rmsprop(PyObject *group, ptac_rmsprop *rmsprop, double multiplier)
{
    double lr;

    if (!read_number(group, ptac_names.lr, &lr) ||
        !read_number(group, ptac_names.alpha, &rmsprop->alpha) ||
        !read_number(group, ptac_names.eps, &rmsprop->eps) ||
        !read_number(group, ptac_names.weight_decay, &rmsprop->weight_decay) ||
        !read_number(group, ptac_names.momentum, &rmsprop->momentum) ||
        !read_flag(group, ptac_names.centered, &rmsprop->centered) ||
        !read_flag(group, ptac_names.maximize, &rmsprop->maximize))
        return false;
    rmsprop->lr_neg = -(lr * multiplier);
    rmsprop->one_minus_alpha = 1 - rmsprop->alpha;
    return true;
}

static bool read_adagrad(PyObject *group, ptac_optimizer_args *g, double multiplier)
{
    ptac_adagrad *adagrad = &g->step.adagrad;

    if (!read_number(group, ptac_names.lr, &g->lr) ||
        !read_number(group, ptac_names.lr_decay, &g->lr_decay) ||
        !read_number(group, ptac_names.eps, &adagrad->eps) ||
        !read_number(group, ptac_names.weight_decay, &adagrad->weight_decay) ||
        !read_flag(group, ptac_names.maximize, &adagrad->maximize))
        return false;
    g->lr *= multiplier;
    return true;
}

static bool read_nadam(PyObject *group, ptac_optimizer_args *g, double multiplier)
{
    ptac_nadam *nadam = &g->step.nadam;
    double weight_decay;
    bool is_decoupled;

    if (!read_flag(group, ptac_names.decoupled_weight_decay, &is_decoupled) ||
        !read_betas(group, g) || !read_number(group, ptac_names.lr, &g->lr) ||
        !read_number(group, ptac_names.eps, &nadam->eps) ||
        !read_number(group, ptac_names.weight_decay, &weight_decay) ||
        !read_number(group, ptac_names.momentum_decay, &g->momentum_decay) ||
        !read_flag(group, ptac_names.maximize, &nadam->maximize))
        return false;
    nadam->one_minus_beta1 = 1 - g->beta1;
    nadam->beta2 = g->beta2;
    nadam->one_minus_beta2 = 1 - g->beta2;
    nadam->weight_decay = is_decoupled ? 0 : weight_decay;
    nadam->decay_factor =
        is_decoupled && weight_decay != 0 ? 1 - g->lr * weight_decay : 1;
    g->lr *= multiplier;
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
    case PTAC_OPTIM_ADADELTA:
        return read_adadelta(group, &g->step.adadelta, multiplier);
    case PTAC_OPTIM_RMSPROP:
        return read_rmsprop(group, &g->step.rmsprop, multiplier);
    case PTAC_OPTIM_ADAGRAD:
        return read_adagrad(group, g, multiplier);
    default:
        return read_nadam(group, g, multiplier);
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
