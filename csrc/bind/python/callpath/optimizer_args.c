/*
 * optimizer_args.c - reading hyperparameters, parameters, gradients and states.
 *
 * Everything is looked at in each step, since all of it may change between steps in any
 * way. What is missing or unusual sends the group to stock.
 */
#include "bind/python/callpath/optimizer_args.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const ptac_verdict fine = {PTAC_TAKE, false, false};
static const ptac_verdict raised = {PTAC_TAKE, true, false};

static ptac_verdict refused(ptac_reason why)
{
    return (ptac_verdict){why, false, false};
}

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

void ptac_optimizer_args_release(ptac_optimizer_args *g)
{
    for (Py_ssize_t i = 0; i < g->n_written; i++)
        Py_DECREF(g->written[i].tensor);
    for (Py_ssize_t i = 0; i < g->n_items; i++)
        Py_DECREF(g->owners[i].grad);
    PyMem_Free(g->items);
    PyMem_Free(g->owners);
    PyMem_Free(g->written);
    memset(g, 0, sizeof *g);
}

/* Room for another item and the five tensors that it may write. */
static bool make_room(ptac_optimizer_args *g)
{
    if (g->n_items < g->capacity)
        return true;

    const Py_ssize_t more = g->capacity ? 2 * g->capacity : 64;
    ptac_step_item *items = PyMem_Realloc(g->items, (size_t)more * sizeof *items);
    ptac_item_owner *owners = PyMem_Realloc(g->owners, (size_t)more * sizeof *owners);
    ptac_written *written =
        PyMem_Realloc(g->written, 5 * (size_t)more * sizeof *written);

    g->items = items ? items : g->items;
    g->owners = owners ? owners : g->owners;
    g->written = written ? written : g->written;
    if (!items || !owners || !written) {
        PyErr_NoMemory();
        return false;
    }
    g->capacity = more;
    return true;
}

static void will_write(ptac_optimizer_args *g, PyObject *tensor, const void *data)
{
    g->written[g->n_written++] = (ptac_written){Py_NewRef(tensor), data};
}

/* A state tensor that lies exactly as its parameter does. */
static bool takes_after(PyObject *tensor, const ptac_view *param, void **data)
{
    ptac_view view;

    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), &view);
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
        return raised;
    item->is_first = !buffer || buffer == Py_None;
    if (item->is_first) /* ptac_sgd_state_create() makes it, once nothing can refuse */
        return fine;
    if (!takes_after(buffer, view, &item->state[0]))
        return refused(PTAC_STATE);
    will_write(g, buffer, item->state[0]);
    return fine;
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

static ptac_verdict gather_moments(ptac_optimizer_args *g, PyObject *state,
                                   const ptac_view *view, ptac_step_item *item)
{
    PyObject *keys[] = {ptac_names.exp_avg, ptac_names.exp_avg_sq,
                        ptac_names.max_exp_avg_sq},
             *step;
    const int n_keys = g->step.adam.amsgrad ? 3 : 2;
    ptac_view step_view;
    double count;

    if (!state || PyDict_Size(state) == 0)
        return (ptac_verdict){.needs_state = true};
    for (int i = 0; i < n_keys; i++) {
        PyObject *tensor = PyDict_GetItemWithError(state, keys[i]);

        if (!tensor || !takes_after(tensor, view, &item->state[i]))
            return refused(PTAC_STATE);
        will_write(g, tensor, item->state[i]);
    }
    step = PyDict_GetItemWithError(state, ptac_names.step);
    if (!step || !read_step(step, &step_view, &count))
        return refused(PTAC_STATE);
    will_write(g, step, step_view.data);
    item->step_size_neg = -(g->lr / (1 - pow(g->beta1, count)));
    if (!(fabs(item->step_size_neg) <= FLT_MAX))
        return refused(PTAC_ARGUMENT);
    item->bias_correction2_sqrt = pow(1 - pow(g->step.adam.beta2, count), 0.5);
    return fine;
}

static ptac_verdict gather_state(ptac_optimizer_args *g, PyObject *states,
                                 PyObject *param, Py_ssize_t *position,
                                 const ptac_view *view, ptac_step_item *item)
{
    PyObject *state;

    if (g->op == PTAC_OP_SGD_STEP && g->step.sgd.momentum == 0)
        return fine;
    state = find_state(states, param, position);
    if (PyErr_Occurred())
        return raised;
    if (state && !PyDict_CheckExact(state))
        return refused(PTAC_STATE);
    return g->op == PTAC_OP_SGD_STEP ? gather_momentum(g, state, view, item)
                                     : gather_moments(g, state, view, item);
}

/* One parameter with its gradient and state, if it has a gradient. */
static ptac_verdict gather_param(ptac_optimizer_args *g, PyObject *states,
                                 PyObject *param, Py_ssize_t *position)
{
    ptac_step_item item = {.begin = g->n_elements};
    ptac_view view, grad_view;
    ptac_verdict result = fine;

    Py_INCREF(param);

    PyObject *grad = PyObject_GetAttr(param, ptac_names.grad);

    if (!grad) {
        Py_DECREF(param);
        return raised;
    }
    if (grad == Py_None)
        goto done;
    if (!ptac_is_plain_and_versioned(param) || !ptac_is_plain(grad)) {
        result = refused(
            ptac_why_not_plain(ptac_is_plain_and_versioned(param) ? grad : param));
        goto done;
    }
    ptac_view_of(ptac_borrow(param), &view);
    ptac_view_of(ptac_borrow(grad), &grad_view);
    if (g->n_items == 0)
        g->dtype = view.dtype;
    if (view.dtype != g->dtype || grad_view.dtype != g->dtype ||
        (g->dtype != PTAC_F32 && g->dtype != PTAC_F64))
        result = refused(PTAC_DTYPE);
    else if (!ptac_view_is_dense(&view) || !ptac_view_is_alike(&view, &grad_view))
        result = refused(PTAC_LAYOUT);
    if (!ptac_is_fine(result))
        goto done;
    if (!make_room(g)) {
        result = raised;
        goto done;
    }
    item.n = view.n_elements;
    item.param = view.data;
    item.grad = grad_view.data;
    will_write(g, param, item.n ? item.param : NULL);
    result = gather_state(g, states, param, position, &view, &item);
    if (ptac_is_fine(result)) {
        g->owners[g->n_items] = (ptac_item_owner){param, Py_NewRef(grad), false};
        g->items[g->n_items++] = item;
        g->n_elements += item.n;
    }
done:
    Py_DECREF(grad);
    Py_DECREF(param);
    return result;
}

static int by_address(const void *left, const void *right)
{
    const ptac_step_item *a = *(const ptac_step_item *const *)left;
    const ptac_step_item *b = *(const ptac_step_item *const *)right;

    return (a->param > b->param) - (a->param < b->param);
}

/* Parameters that share memory would race, where threads share the work. */
static ptac_verdict check_overlap(const ptac_optimizer_args *g)
{
    const size_t width = g->dtype == PTAC_F32 ? 4 : 8;
    const ptac_step_item **sorted;
    ptac_verdict result = fine;

    if (g->n_elements <= PTAC_STEP_GRAIN || ptac_the_host.n_threads() == 1)
        return fine;
    sorted = PyMem_Malloc((size_t)g->n_items * sizeof *sorted);
    if (!sorted) {
        PyErr_NoMemory();
        return raised;
    }
    for (Py_ssize_t i = 0; i < g->n_items; i++)
        sorted[i] = &g->items[i];
    qsort(sorted, (size_t)g->n_items, sizeof *sorted, by_address);
    for (Py_ssize_t i = 1; i < g->n_items; i++)
        if ((char *)sorted[i - 1]->param + (size_t)sorted[i - 1]->n * width >
            (char *)sorted[i]->param)
            result = refused(PTAC_OVERLAP);
    PyMem_Free(sorted);
    return result;
}

static ptac_verdict read_group(ptac_optimizer_args *g, PyObject *group, bool is_sgd,
                               double multiplier)
{
    const ptac_reason why = read_implementation(group);
    bool is_read;

    is_read = is_sgd ? read_sgd(group, &g->step.sgd, multiplier)
                     : read_adam(group, g, multiplier);
    if (PyErr_Occurred())
        return raised;
    return refused(is_read ? why : PTAC_ARGUMENT);
}

/* Where an address stands in an open hash table, or would stand: there is NULL. */
static const void **place(const void **table, size_t mask, const void *data)
{
    size_t at = ((uintptr_t)data >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 32;

    at &= mask;
    while (table[at] && table[at] != data)
        at = (at + 1) & mask;
    return &table[at];
}

/* Put all that is written into the table; false when something is there already. */
static bool note_written(const ptac_optimizer_args *g, const void **table, size_t mask)
{
    for (Py_ssize_t i = 0; i < g->n_written; i++) {
        const void *data = g->written[i].data;
        const void **at = data ? place(table, mask, data) : NULL;

        /* A tensor without elements has no address of its own. */
        if (!at)
            continue;
        if (*at)
            return false;
        *at = data;
    }
    return true;
}

static bool reads_written(const ptac_optimizer_args *g, const void **table, size_t mask)
{
    for (Py_ssize_t i = 0; i < g->n_items; i++)
        if (g->items[i].n && *place(table, mask, g->items[i].grad))
            return true;
    return false;
}

ptac_verdict ptac_optimizer_args_repeat(const ptac_optimizer_args *gathered, int n)
{
    enum { SMALL = 512 };
    const void *small[SMALL] = {NULL}, **table = small;
    ptac_verdict result = fine;
    size_t n_written = 0, size = SMALL;

    for (int i = 0; i < n; i++)
        n_written += (size_t)gathered[i].n_written;
    while (size < 2 * n_written)
        size *= 2;
    if (size > SMALL)
        table = PyMem_Calloc(size, sizeof *table);
    if (!table) {
        PyErr_NoMemory();
        return raised;
    }
    for (int i = 0; i < n && ptac_is_fine(result); i++)
        if (!note_written(&gathered[i], table, size - 1))
            result = refused(PTAC_OVERLAP);
    for (int i = 0; i < n && ptac_is_fine(result); i++)
        if (reads_written(&gathered[i], table, size - 1))
            result = refused(PTAC_OVERLAP);
    if (table != small)
        PyMem_Free(table);
    return result;
}

ptac_verdict ptac_optimizer_args_read(ptac_optimizer_args *g, PyObject *group,
                                      PyObject *states, bool is_sgd, double multiplier)
{
    PyObject *params;
    Py_ssize_t position = 0;
    ptac_verdict result;

    memset(g, 0, sizeof *g);
    g->op = ptac_optim_op(group, is_sgd);
    if (!PyDict_CheckExact(group) || !PyDict_Check(states))
        return refused(PTAC_ARGUMENT);
    result = read_group(g, group, is_sgd, multiplier);
    if (!ptac_is_fine(result))
        return result;
    params = PyDict_GetItemWithError(group, ptac_names.params);
    if (!params || !PyList_CheckExact(params))
        return PyErr_Occurred() ? raised : refused(PTAC_ARGUMENT);
    /* Reading a gradient may run code of the user's, which may do anything to them. */
    Py_INCREF(group);
    Py_INCREF(params);
    for (Py_ssize_t i = 0; ptac_is_fine(result) && i < PyList_Size(params); i++)
        result = gather_param(g, states, PyList_GetItem(params, i), &position);
    Py_DECREF(params);
    Py_DECREF(group);
    if (ptac_is_fine(result))
        result = check_overlap(g);
    return result;
}
