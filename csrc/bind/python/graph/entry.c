/*
 * entry.c - plans by the calls they are for.
 */
#include "bind/python/graph/entry.h"
#include "bind/python/callpath/lean.h"
#include "bind/python/module/names.h"

enum {
    PARAMETERS, /* of the homes */
};

#define OBJECTS(X) X(described) X(held) X(plan) X(rebuild)

void ptac_entry_clear(ptac_entry *e)
{
#define X(member) Py_CLEAR(e->member);
    OBJECTS(X)
#undef X
    for (int i = 0; i < e->n_places; i++)
        Py_CLEAR(e->places[i].name);
    for (int i = 0; i < e->n_learnt; i++)
        Py_CLEAR(e->learnt[i].name);
    PyMem_Free(e->places);
    PyMem_Free(e->learnt);
    PyMem_Free(e->given.tensors);
}

int ptac_entry_traverse(const ptac_entry *e, visitproc visit, void *arg)
{
#define X(member) Py_VISIT(e->member);
    OBJECTS(X)
#undef X
    return 0;
}

/* --- what a call gives it -------------------------------------------------------- */

static PyObject *parameter_at(const ptac_guards *guards, int module, PyObject *name)
{
    return PyDict_GetItemWithError(guards->modules[module].homes[PARAMETERS], name);
}

/* A tensor's gradient, borrowed from it; NULL without one. */
static PyObject *gradient_of(PyObject *tensor)
{
    PyObject *grad = tensor ? PyObject_GetAttr(tensor, ptac_names.grad) : NULL;

    Py_XDECREF(grad);
    return grad == Py_None ? NULL : grad;
}

static PyObject *tensor_at(const ptac_guards *guards, const ptac_place *at)
{
    if (at->home == PTAC_N_HOMES)
        return gradient_of(parameter_at(guards, at->module, at->name));
    return PyDict_GetItemWithError(guards->modules[at->module].homes[at->home],
                                   at->name);
}

static bool add_places(const ptac_guards *guards, ptac_entry *e)
{
    for (int i = 0; i < e->n_places; i++) {
        const ptac_place *at = &e->places[i];
        PyObject *tensor = tensor_at(guards, at);

        if (at->same_as < 0 ? !ptac_found_add(&e->given, tensor)
                            : tensor != tensor_at(guards, &e->places[at->same_as]))
            return false;
        if (e->is_step && at->home != PARAMETERS && ptac_requires_grad(tensor) != 0)
            return false;
    }
    return true;
}

static bool add_held(ptac_entry *e)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(e->held); i++) {
        PyObject *tensor = PyTuple_GetItem(e->held, i);

        if (!ptac_found_add(&e->given, tensor) ||
            (e->is_step && ptac_requires_grad(tensor) != 0))
            return false;
    }
    return true;
}

/* Nobody listens to a gradient. */
static bool is_unheard(PyObject *parameter)
{
    PyObject *const names[] = {ptac_names._backward_hooks,
                               ptac_names._post_accumulate_grad_hooks};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *hooks = PyObject_GetAttr(parameter, names[i]);
        const bool are_none = hooks == Py_None ||
                              (hooks && PyDict_Check(hooks) && PyDict_Size(hooks) == 0);

        Py_XDECREF(hooks);
        if (!are_none)
            return false;
    }
    return true;
}

PTAC_LENT(is_anomaly_enabled) /* torch's function */

/* The program looks at what autograd does, which a plan does without it. */
static bool is_autograd_watched(void)
{
    PyObject *looks_for_anomaly = PyObject_CallNoArgs(is_anomaly_enabled);

    Py_XDECREF(looks_for_anomaly);
    return looks_for_anomaly != Py_False || ptac_saving_is_hooked() != 0;
}

/* Parameters are learnt as they were, and have gradients where they had. */
static bool learnt_are(const ptac_guards *guards, const ptac_entry *e)
{
    if (e->is_step && is_autograd_watched())
        return false;
    for (int i = 0; i < e->n_learnt; i++) {
        const ptac_learnt *l = &e->learnt[i];
        PyObject *parameter = parameter_at(guards, l->module, l->name);

        if (parameter != l->parameter || !ptac_is_plain(parameter) ||
            (ptac_requires_grad(parameter) != 0) != l->requires_grad ||
            (l->requires_grad && !is_unheard(parameter)) ||
            (l->has_none && gradient_of(parameter)))
            return false;
    }
    return true;
}

/* A gradient would be asked for of what comes from one of the first n of them. */
static bool is_one_learnt(const ptac_entry *e, int n)
{
    if (!e->circumstances.with_grad)
        return false;
    for (int i = 0; i < n; i++)
        if (ptac_requires_grad(e->given.tensors[i]) != 0)
            return true;
    return false;
}

bool ptac_entry_collect(ptac_entry *e, const ptac_guards *guards, PyObject *args,
                        PyObject *kwargs)
{
    bool is_for_it;
    int n_arguments;

    e->given.n = 0;
    is_for_it =
        ptac_arguments_match(PyTuple_GetItem(e->described, 0), args, &e->given) &&
        ptac_arguments_match(PyTuple_GetItem(e->described, 1), kwargs, &e->given);
    n_arguments = e->given.n;
    is_for_it = is_for_it && add_places(guards, e) && add_held(e) &&
                !is_one_learnt(e, e->is_step ? n_arguments : e->given.n) &&
                learnt_are(guards, e) && e->given.n == e->given.most &&
                ptac_plan_fits(e->plan, e->given.tensors);
    PyErr_Clear();
    return is_for_it;
}

/* --- reading one ------------------------------------------------------------------ */

static bool read_places(const ptac_guards *guards, PyObject *tuple, ptac_entry *e)
{
    const Py_ssize_t n = PyTuple_Size(tuple);

    e->places = PyMem_Calloc((size_t)n + 1, sizeof *e->places);
    if (!e->places)
        return PyErr_NoMemory();
    for (; e->n_places < n; e->n_places++) {
        ptac_place *at = &e->places[e->n_places];

        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, e->n_places), "iiUi", &at->module,
                              &at->home, &at->name, &at->same_as))
            return false;
        if (at->module < 0 || at->module >= guards->n_modules || at->home < 0 ||
            at->home > PTAC_N_HOMES || at->same_as >= e->n_places)
            return PyErr_Format(PyExc_ValueError, "there is no such place");
        Py_INCREF(at->name);
    }
    return true;
}

/* A step's parameters, or None: (module, name, learns, has no gradient before). */
static bool read_learnt(const ptac_guards *guards, PyObject *given, ptac_entry *e)
{
    const Py_ssize_t n = PyTuple_Check(given) ? PyTuple_Size(given) : 0;

    e->is_step = given != Py_None;
    e->learnt = PyMem_Calloc((size_t)n + 1, sizeof *e->learnt);
    if (!e->learnt)
        return PyErr_NoMemory();
    for (; e->n_learnt < n; e->n_learnt++) {
        ptac_learnt *l = &e->learnt[e->n_learnt];
        int requires_grad, has_none;
        PyObject *address;

        if (!PyArg_ParseTuple(PyTuple_GetItem(given, e->n_learnt), "iUppO", &l->module,
                              &l->name, &requires_grad, &has_none, &address))
            return false;
        l->parameter = PyLong_AsVoidPtr(address);
        if (PyErr_Occurred())
            return false;
        if (l->module < 0 || l->module >= guards->n_modules)
            return PyErr_Format(PyExc_ValueError, "there is no such module");
        l->requires_grad = requires_grad;
        l->has_none = has_none;
        Py_INCREF(l->name);
    }
    return true;
}

bool ptac_entry_read(ptac_entry *e, const ptac_guards *guards, PyObject *const *args)
{
    const ptac_plan *plan = ptac_plan_of(args[3]);

    if (!plan || !read_places(guards, args[1], e) || !read_learnt(guards, args[6], e))
        return false;
    e->given.most = plan->n_given;
    e->given.tensors = PyMem_Calloc((size_t)plan->n_given + 1, sizeof(PyObject *));
    if (!e->given.tensors)
        return PyErr_NoMemory();
    e->described = Py_NewRef(args[0]);
    e->held = Py_NewRef(args[2]);
    e->plan = Py_NewRef(args[3]);
    e->rebuild = Py_NewRef(args[4]);
    e->circumstances = ptac_circumstances_now();
    return true;
}
