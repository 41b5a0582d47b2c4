/*
 * optimizer.c - torch.optim's SGD, Adam and AdamW: from param_groups to one kernel call.
 *
 * Everything is looked at in each step, since gradients, states and hyperparameters may
 * change between steps in any way. Nothing is written before all of a group is known to
 * be plain; what is missing or unusual sends the group to stock.
 */
#include "bind/python/pybind.h"

#include "ops/optim/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a group gathers. */
typedef struct gathering {
    ptac_op op;
    ptac_step step;
    ptac_step_item *items;
    PyObject **params;  /* of the items; borrowed from the group, which stays */
    PyObject **written; /* tensors that the kernel writes, owned */
    Py_ssize_t n_written, n_items, capacity;
    ptac_dtype dtype;
    int64_t n_elements;
    double beta1, lr;
} gathering;

/* Why a group cannot be gathered; PTAC_TAKE when it can. Or a Python error is set. */
typedef struct verdict {
    ptac_reason why;
    bool error;       /* a Python exception is set */
    bool needs_state; /* torch has to make the states first */
} verdict;

static const verdict fine = {PTAC_TAKE, false, false};
static const verdict raised = {PTAC_TAKE, true, false};

static verdict refused(ptac_reason why)
{
    return (verdict){why, false, false};
}

static bool is_fine(verdict v)
{
    return !v.why && !v.error && !v.needs_state;
}

/* Interned once; looked up thousands of times. */
#define NAMES(X)                                                                       \
    X(param_groups)                                                                    \
    X(params)                                                                          \
    X(state)                                                                           \
    X(grad)                                                                            \
    X(lr)                                                                              \
    X(momentum)                                                                        \
    X(dampening)                                                                       \
    X(weight_decay)                                                                    \
    X(nesterov)                                                                        \
    X(maximize)                                                                        \
    X(foreach)                                                                         \
    X(fused)                                                                           \
    X(capturable)                                                                      \
    X(differentiable)                                                                  \
    X(betas)                                                                           \
    X(eps)                                                                             \
    X(amsgrad)                                                                         \
    X(decoupled_weight_decay)                                                          \
    X(momentum_buffer)                                                                 \
    X(step)                                                                            \
    X(exp_avg)                                                                         \
    X(exp_avg_sq)                                                                      \
    X(max_exp_avg_sq)

static struct {
#define X(name) PyObject *name;
    NAMES(X)
#undef X
} s;

static int intern_names(void)
{
#define X(name)                                                                        \
    if (!s.name && !(s.name = PyUnicode_InternFromString(#name)))                      \
        return -1;
    NAMES(X)
#undef X
    return 0;
}

/* A hyperparameter as Python computes with it; tensors and other numbers are stock's. */
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
    return true;
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
        {s.foreach, PTAC_FOREACH},
        {s.fused, PTAC_FUSED},
        {s.capturable, PTAC_CAPTURABLE},
        {s.differentiable, PTAC_DIFFERENTIABLE},
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool flag;

        if (!read_flag(group, others[i].key, &flag) || flag)
            return others[i].why;
    }
    return PTAC_TAKE;
}

static bool read_sgd(PyObject *group, ptac_sgd *sgd)
{
    double lr, dampening;

    if (!read_number(group, s.lr, &lr) ||
        !read_number(group, s.momentum, &sgd->momentum) ||
        !read_number(group, s.dampening, &dampening) ||
        !read_number(group, s.weight_decay, &sgd->weight_decay) ||
        !read_flag(group, s.nesterov, &sgd->nesterov) ||
        !read_flag(group, s.maximize, &sgd->maximize))
        return false;
    sgd->lr_neg = -lr;
    sgd->one_minus_dampening = 1 - dampening;
    return true;
}

static bool read_adam(PyObject *group, gathering *g)
{
    ptac_adam *adam = &g->step.adam;
    PyObject *betas = PyDict_GetItemWithError(group, s.betas);
    double weight_decay, beta2;
    bool is_decoupled;

    if (!betas || !PyTuple_Check(betas) || PyTuple_Size(betas) != 2 ||
        !PyFloat_CheckExact(PyTuple_GetItem(betas, 0)) ||
        !PyFloat_CheckExact(PyTuple_GetItem(betas, 1)))
        return false;
    if (!read_number(group, s.lr, &g->lr) || !read_number(group, s.eps, &adam->eps) ||
        !read_number(group, s.weight_decay, &weight_decay) ||
        !read_flag(group, s.amsgrad, &adam->amsgrad) ||
        !read_flag(group, s.maximize, &adam->maximize) ||
        !read_flag(group, s.decoupled_weight_decay, &is_decoupled))
        return false;
    g->beta1 = PyFloat_AsDouble(PyTuple_GetItem(betas, 0));
    beta2 = PyFloat_AsDouble(PyTuple_GetItem(betas, 1));
    adam->one_minus_beta1 = 1 - g->beta1;
    adam->beta2 = beta2;
    adam->one_minus_beta2 = 1 - beta2;
    adam->weight_decay = is_decoupled ? 0 : weight_decay;
    adam->decay_factor =
        is_decoupled && weight_decay != 0 ? 1 - g->lr * weight_decay : 1;
    g->op = is_decoupled ? PTAC_OP_ADAMW_STEP : PTAC_OP_ADAM_STEP;
    return true;
}

static void release(gathering *g)
{
    for (Py_ssize_t i = 0; i < g->n_written; i++)
        Py_DECREF(g->written[i]);
    PyMem_Free(g->items);
    PyMem_Free(g->params);
    PyMem_Free(g->written);
    memset(g, 0, sizeof *g);
}

/* Room for another item and the five tensors that it may write. */
static bool make_room(gathering *g)
{
    if (g->n_items < g->capacity)
        return true;

    const Py_ssize_t more = g->capacity ? 2 * g->capacity : 64;
    ptac_step_item *items = PyMem_Realloc(g->items, (size_t)more * sizeof *items);
    PyObject **params = PyMem_Realloc(g->params, (size_t)more * sizeof *params);
    PyObject **written = PyMem_Realloc(g->written, 5 * (size_t)more * sizeof *written);

    g->items = items ? items : g->items;
    g->params = params ? params : g->params;
    g->written = written ? written : g->written;
    if (!items || !params || !written) {
        PyErr_NoMemory();
        return false;
    }
    g->capacity = more;
    return true;
}

static void will_write(gathering *g, PyObject *tensor)
{
    Py_INCREF(tensor);
    g->written[g->n_written++] = tensor;
}

/* A state tensor that lies exactly as its parameter does. */
static bool takes_after(PyObject *tensor, const ptac_view *param, void **data)
{
    ptac_view view;

    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), &view);
    *data = view.data;
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

static verdict gather_momentum(gathering *g, PyObject *states, PyObject *param,
                               Py_ssize_t *position, const ptac_view *view,
                               ptac_step_item *item)
{
    PyObject *state = find_state(states, param, position);
    PyObject *buffer = state && PyDict_Check(state)
                           ? PyDict_GetItemWithError(state, s.momentum_buffer)
                           : NULL;

    if (PyErr_Occurred())
        return raised;
    if (!buffer || buffer == Py_None) {
        item->is_first = true; /* create_momenta() makes it, once nothing can refuse */
        return fine;
    }
    if (!takes_after(buffer, view, &item->state[0]))
        return refused(PTAC_STATE);
    will_write(g, buffer);
    return fine;
}

/* A new momentum buffer like the parameter, put into its state; owned. */
static PyObject *new_momentum(PyObject *states, PyObject *param)
{
    at_tensor made = NULL;
    ptac_view view;

    ptac_view_of(ptac_borrow(param), &view);
    if (T.aoti_torch_empty_strided(view.n_dims, view.sizes, view.strides,
                                   ptac_torch_dtype_of(view.dtype), AT_DEVICE_CPU, 0,
                                   &made)) {
        PyErr_NoMemory();
        return NULL;
    }

    PyObject *buffer = ptac_wrap(made);
    PyObject *state = buffer ? PyObject_GetItem(states, param) : NULL;

    if (!state || PyObject_SetItem(state, s.momentum_buffer, buffer) < 0)
        Py_CLEAR(buffer);
    Py_XDECREF(state);
    return buffer;
}

/* Take the new buffers out of the states again, whatever exception is set. */
static void forget_momenta(const gathering *g, PyObject *states)
{
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = 0; i < g->n_items; i++) {
        PyObject *state =
            g->items[i].is_first ? PyObject_GetItem(states, g->params[i]) : NULL;

        if (state)
            PyObject_DelItem(state, s.momentum_buffer);
        Py_XDECREF(state);
        PyErr_Clear();
    }
    PyErr_Restore(type, value, trace);
}

/* The buffers that a first step needs; all of them, or a Python exception is set. */
static bool create_momenta(gathering *g, PyObject *states)
{
    for (Py_ssize_t i = 0; i < g->n_items; i++) {
        PyObject *buffer;

        if (!g->items[i].is_first)
            continue;
        buffer = new_momentum(states, g->params[i]);
        if (!buffer)
            return false;
        T.aoti_torch_get_data_ptr(ptac_borrow(buffer), &g->items[i].state[0]);
        g->written[g->n_written++] = buffer;
    }
    return true;
}

/* step counts as a float; stock's comes on the CPU, float32 or float64, 0-d. */
static bool read_step(PyObject *tensor, ptac_view *view, double *count)
{
    if (!ptac_is_plain_and_versioned(tensor))
        return false;
    ptac_view_of(ptac_borrow(tensor), view);
    if (view->n_elements != 1 || (view->dtype != PTAC_F32 && view->dtype != PTAC_F64))
        return false;
    *count = view->dtype == PTAC_F32 ? *(float *)view->data : *(double *)view->data;
    return true;
}

static verdict gather_moments(gathering *g, PyObject *states, PyObject *param,
                              Py_ssize_t *position, const ptac_view *view,
                              ptac_step_item *item)
{
    PyObject *state = find_state(states, param, position);
    PyObject *keys[] = {s.exp_avg, s.exp_avg_sq, s.max_exp_avg_sq};
    const int n_keys = g->step.adam.amsgrad ? 3 : 2;
    ptac_view step_view;
    double count;

    if (PyErr_Occurred())
        return raised;
    if (!state || !PyDict_Check(state) || PyDict_Size(state) == 0)
        return (verdict){.needs_state = true};
    for (int i = 0; i < n_keys; i++) {
        PyObject *tensor = PyDict_GetItemWithError(state, keys[i]);

        if (!tensor || !takes_after(tensor, view, &item->state[i]))
            return refused(PTAC_STATE);
        will_write(g, tensor);
    }

    PyObject *step = PyDict_GetItemWithError(state, s.step);

    if (!step || !read_step(step, &step_view, &count))
        return refused(PTAC_STATE);
    will_write(g, step);
    count += 1;
    item->step_size_neg = -(g->lr / (1 - pow(g->beta1, count)));
    item->bias_correction2_sqrt = pow(1 - pow(g->step.adam.beta2, count), 0.5);
    return fine;
}

/* One parameter with its gradient and state, if it has a gradient. */
static verdict gather_param(gathering *g, PyObject *states, PyObject *param,
                            Py_ssize_t *position)
{
    ptac_step_item item = {.begin = g->n_elements};
    ptac_view view, grad_view;
    verdict result = fine;

    Py_INCREF(param);

    PyObject *grad = PyObject_GetAttr(param, s.grad);

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
    if (!is_fine(result))
        goto done;
    if (!make_room(g)) {
        result = raised;
        goto done;
    }
    item.n = view.n_elements;
    item.param = view.data;
    item.grad = grad_view.data;
    will_write(g, param);
    if (g->op != PTAC_OP_SGD_STEP)
        result = gather_moments(g, states, param, position, &view, &item);
    else if (g->step.sgd.momentum != 0)
        result = gather_momentum(g, states, param, position, &view, &item);
    if (is_fine(result)) {
        g->params[g->n_items] = param;
        g->items[g->n_items++] = item;
        g->n_elements += item.n;
    }
done:
    /* The parameter keeps its gradient alive, and the list its parameter. */
    Py_DECREF(grad);
    Py_DECREF(param);
    return result;
}

/* Two parameters that share memory would race, where threads share the work. */
static int by_address(const void *left, const void *right)
{
    const ptac_step_item *a = *(const ptac_step_item *const *)left;
    const ptac_step_item *b = *(const ptac_step_item *const *)right;

    return (a->param > b->param) - (a->param < b->param);
}

static verdict check_overlap(const gathering *g)
{
    const size_t width = g->dtype == PTAC_F32 ? 4 : 8;
    const ptac_step_item **sorted;
    verdict result = fine;

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

static verdict read_group(gathering *g, PyObject *group, bool is_sgd)
{
    const ptac_reason why = read_implementation(group);

    g->op = is_sgd ? PTAC_OP_SGD_STEP : PTAC_OP_ADAM_STEP;
    if (is_sgd ? !read_sgd(group, &g->step.sgd) : !read_adam(group, g)) {
        if (PyErr_Occurred())
            return raised;
        return refused(PTAC_ARGUMENT);
    }
    return refused(why);
}

static verdict gather_group(gathering *g, PyObject *group, PyObject *states,
                            bool is_sgd)
{
    PyObject *params;
    Py_ssize_t position = 0;
    verdict result;

    memset(g, 0, sizeof *g);
    if (!PyDict_Check(group) || !PyDict_Check(states))
        return refused(PTAC_ARGUMENT);
    result = read_group(g, group, is_sgd);
    params = PyDict_GetItemWithError(group, s.params);
    if (is_fine(result) && (!params || !PyList_Check(params)))
        result = PyErr_Occurred() ? raised : refused(PTAC_ARGUMENT);
    for (Py_ssize_t i = 0; is_fine(result) && i < PyList_Size(params); i++)
        result = gather_param(g, states, PyList_GetItem(params, i), &position);
    if (is_fine(result))
        result = check_overlap(g);
    return result;
}

/* The row for what was gathered. */
static const ptac_kernel *consider(gathering *g, ptac_call *call, ptac_reason *why)
{
    g->step.items = g->items;
    g->step.n_items = g->n_items;
    *call = (ptac_call){.op = g->op, .n_inputs = 1, .params = &g->step};
    call->inputs[0].dtype = g->dtype;
    call->inputs[0].n_elements = g->n_elements;
    return ptac_consider(call, why);
}

static void count_step(PyObject *tensor)
{
    ptac_view view;

    ptac_view_of(ptac_borrow(tensor), &view);
    if (view.dtype == PTAC_F32)
        *(float *)view.data += 1;
    else
        *(double *)view.data += 1;
}

/* Adam's step counters stand last among the tensors that each item writes. */
static void count_steps(const gathering *g)
{
    const Py_ssize_t each = g->step.adam.amsgrad ? 5 : 4;

    for (Py_ssize_t i = each - 1; i < g->n_written; i += each)
        count_step(g->written[i]);
}

/*
 * Write. A row of this kind cannot fail; should one say that it did, before writing, the
 * definition does the work, since other groups of the step may be done already.
 */
static void run_gathered(const ptac_kernel *row, const ptac_call *call,
                         const gathering *g)
{
    PyThreadState *thread = g->n_elements < 4096 ? NULL : PyEval_SaveThread();

    if (!ptac_run(row, call))
        ptac_registry_find(row->op, "scalar")->run(call);
    if (thread)
        PyEval_RestoreThread(thread);
    if (g->op != PTAC_OP_SGD_STEP)
        count_steps(g);
    for (Py_ssize_t i = 0; i < g->n_written; i++)
        ptac_bump_version(g->written[i]);
}

/*
 * optimizer_group(is_sgd, states, group) -> 1: done; 0: stock has to do it; -1: stock
 * has to make the states, then ask again.
 */
static PyObject *optimizer_group(PyObject *self, PyObject *const *args,
                                 Py_ssize_t n_args)
{
    gathering g;
    ptac_call call;
    ptac_reason why = PTAC_TAKE;
    const ptac_kernel *row = NULL;
    long answer = 0;

    (void)self;
    if (n_args != 3)
        return PyErr_Format(PyExc_TypeError, "is_sgd, states, group");

    const bool is_sgd = args[0] == Py_True;
    const ptac_op op = is_sgd ? PTAC_OP_SGD_STEP : PTAC_OP_ADAM_STEP;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        return PyLong_FromLong(0);
    if (!ptac_thread_is_plain()) {
        ptac_refuse(op, PTAC_MODE);
        return PyLong_FromLong(0);
    }

    const verdict result = gather_group(&g, args[2], args[1], is_sgd);
    bool error = result.error;

    if (result.needs_state) {
        answer = -1;
    } else if (!error) {
        why = result.why;
        if (!why && g.n_items > 0)
            row = consider(&g, &call, &why);
        if (why)
            ptac_refuse(g.op, why);
        error = row && !create_momenta(&g, args[1]);
        if (error)
            forget_momenta(&g, args[1]);
        else if (row)
            run_gathered(row, &call, &g);
        answer = row || (!why && g.n_items == 0);
    }
    release(&g);
    return error ? NULL : PyLong_FromLong(answer);
}

enum {
    MAX_GROUPS = 64,
};

/* Gather every group and find a row for each, or leave everything as it was. */
static bool gather_all(PyObject *groups, PyObject *states, bool is_sgd,
                       gathering *gathered, ptac_call *calls, const ptac_kernel **rows,
                       int *n_gathered)
{
    ptac_reason why;

    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        const verdict result =
            gather_group(&gathered[i], PyList_GetItem(groups, i), states, is_sgd);

        *n_gathered = (int)i + 1;
        if (!is_fine(result))
            return false;
        if (gathered[i].n_items == 0)
            continue;
        rows[i] = consider(&gathered[i], &calls[i], &why);
        if (!rows[i])
            return false;
    }
    return true;
}

/*
 * optimizer_step(is_sgd, optimizer) -> whether the whole step is done. When it is not,
 * nothing was written or counted, and the optimizer's own step() finds out group by
 * group what can be accelerated.
 */
static PyObject *optimizer_step(PyObject *self, PyObject *const *args,
                                Py_ssize_t n_args)
{
    gathering gathered[MAX_GROUPS];
    ptac_call calls[MAX_GROUPS];
    const ptac_kernel *rows[MAX_GROUPS] = {NULL};
    PyObject *groups = NULL, *states = NULL;
    int n_gathered = 0;
    bool done = false;

    (void)self;
    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "is_sgd, optimizer");
    PTAC_IN_FLIGHT;
    if (ptac_chooser_gate(PTAC_OP_SGD_STEP) == PTAC_OFF || !ptac_thread_is_plain())
        Py_RETURN_FALSE;
    groups = PyObject_GetAttr(args[1], s.param_groups);
    states = groups ? PyObject_GetAttr(args[1], s.state) : NULL;
    if (!states)
        goto done;
    if (!PyList_Check(groups) || PyList_Size(groups) > MAX_GROUPS)
        goto done;
    if (!gather_all(groups, states, args[0] == Py_True, gathered, calls, rows,
                    &n_gathered))
        goto done;
    for (int i = 0; i < n_gathered; i++) {
        if (rows[i] && !create_momenta(&gathered[i], states)) {
            for (int j = 0; j <= i; j++)
                forget_momenta(&gathered[j], states);
            goto done;
        }
    }
    for (int i = 0; i < n_gathered; i++)
        if (rows[i])
            run_gathered(rows[i], &calls[i], &gathered[i]);
    done = true;
done:
    for (int i = 0; i < n_gathered; i++)
        release(&gathered[i]);
    Py_XDECREF(groups);
    Py_XDECREF(states);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

/* zero_grads(param_groups) -> whether all gradients are None now. */
static PyObject *zero_grads(PyObject *self, PyObject *groups)
{
    const ptac_reason gate = ptac_chooser_gate(PTAC_OP_ZERO_GRAD);

    (void)self;
    if (gate || ptac_thread_is_disabled() || !PyList_Check(groups)) {
        ptac_refuse(PTAC_OP_ZERO_GRAD, gate ? gate : PTAC_DISABLED);
        Py_RETURN_FALSE;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        PyObject *params = PyDict_GetItemWithError(PyList_GetItem(groups, i), s.params);

        for (Py_ssize_t j = 0; params && j < PyList_Size(params); j++)
            if (PyObject_SetAttr(PyList_GetItem(params, j), s.grad, Py_None) < 0)
                return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    ptac_count_accelerated(PTAC_OP_ZERO_GRAD);
    Py_RETURN_TRUE;
}

/* optimizer_prepare(): to be called once before the others. */
static PyObject *optimizer_prepare(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    if (intern_names() < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef ptac_optimizer_methods[] = {
    PTAC_FASTCALL(optimizer_group, NULL),
    PTAC_FASTCALL(optimizer_step, NULL),
    {"zero_grads", zero_grads, METH_O, NULL},
    {"optimizer_prepare", optimizer_prepare, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
