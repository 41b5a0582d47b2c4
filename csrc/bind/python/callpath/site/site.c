/*
 * site.c - computing ahead what a site calls.
 */
#include "bind/python/callpath/site/window.h"

#include "bind/python/callpath/call/leaf.h"
#include "bind/python/callpath/chain/chain.h"

int ptac_sites_in_use;
__thread int ptac_sites_in_use_here;

static bool is_open;
static int n_holds;
static __thread int n_holds_here;

/* What follows a module at a site, as a chain reads it. */
typedef struct sequence {
    PyObject *modules; /* a list, the first one included; owned */
    int n_steps;       /* that were found */
    ptac_site_reason why_no_more;
    /* Of a step: the place of its module in the list, or of the one before where a step
       does nothing; and whether it writes to what it is called with. */
    int entries[PTAC_MOST_STEPS];
    bool in_place[PTAC_MOST_STEPS];
    bool is_written; /* by one of them */
} sequence;

/* It hands on what it gets. */
static bool does_nothing(ptac_module_kind kind, PyObject *attributes)
{
    return kind == PTAC_MODULE_IDENTITY ||
           (kind == PTAC_MODULE_DROPOUT && ptac_dropout_is_idle(attributes));
}

/*
 * Find the step's module. False where it is none that a chain may take, or the program
 * would see what it is called with.
 */
static bool add_step(const ptac_step *step, const ptac_frame *frame, sequence *s)
{
    bool in_place = false, may;
    PyObject *module = ptac_site_module(step, frame, &in_place), *attributes;
    const ptac_module_kind kind = module ? ptac_module_kind_of(module) : PTAC_N_MODULES;

    attributes = ptac_module_attributes(module, kind);
    s->why_no_more = attributes ? PTAC_SITE_SEEN : PTAC_SITE_UNKNOWN;
    if (!attributes)
        return false;
    /* What is written to has counted that, as a new tensor behind it has not. */
    may = (step->dies && !s->is_written) || in_place || does_nothing(kind, attributes);
    s->entries[s->n_steps] = (int)PyList_Size(s->modules) - 1;
    if (may && !does_nothing(kind, attributes)) {
        may = PyList_Append(s->modules, module) == 0;
        s->entries[s->n_steps]++;
        s->in_place[s->n_steps] = in_place;
        s->is_written |= in_place;
    }
    Py_DECREF(attributes);
    PyErr_Clear();
    s->n_steps += may;
    return may;
}

static bool read_sequence(const ptac_site *site, const ptac_frame *frame,
                          PyObject *module, sequence *s)
{
    s->modules = PyList_New(1);
    if (!s->modules) {
        PyErr_Clear();
        return false;
    }
    PyList_SetItem(s->modules, 0, Py_NewRef(module));
    while (s->n_steps < site->n_steps && add_step(&site->steps[s->n_steps], frame, s))
        ;
    return true;
}

/* The steps whose modules are among the first n. */
static int steps_in(const sequence *s, Py_ssize_t n)
{
    int steps = 0;

    while (steps < s->n_steps && s->entries[steps] < n)
        steps++;
    return steps;
}

/* The frame's instruction calls this module of x alone, and nobody in between. */
static bool is_calls_own(const ptac_site *site, const ptac_frame *frame,
                         PyObject *module, PyObject *x)
{
    PyObject *const *from = &frame->slots[site->slot];

    return !site->is_operator && !from[0] && from[1] == module && from[2] == x;
}

/* Of a module whose result goes to a norm, which works in place if it may. */
static bool feeds_norm(const sequence *s, PyObject *module)
{
    const ptac_module_kind kind = ptac_module_kind_of(module);
    ptac_module_kind next;

    if (PyList_Size(s->modules) < 2 || s->entries[0] != 1 ||
        (kind != PTAC_MODULE_CONV2D && kind != PTAC_MODULE_LINEAR) ||
        T.aoti_torch_grad_mode_is_enabled() ||
        ptac_chooser_gate(PTAC_OP_BATCH_NORM_ACT) != PTAC_TAKE)
        return false;
    next = ptac_module_kind_of(PyList_GetItem(s->modules, 1));
    return next == PTAC_MODULE_BATCH_NORM2D || next == PTAC_MODULE_BATCH_NORM1D;
}

/* The module alone, and the norm is told that nobody else has what it gets. */
static PyObject *call_before_norm(const ptac_site *site, const ptac_frame *frame,
                                  PyObject *module, PyObject *x)
{
    const ptac_module_kind kind = ptac_module_kind_of(module);
    PTAC_OWNED PyObject *attributes = ptac_module_attributes(module, kind);
    PyObject *y = attributes ? ptac_leaf_call(kind, attributes, x) : Py_NewRef(Py_None);

    if (y && y != Py_None)
        ptac_window_note_fresh(frame, site, y);
    return y;
}

static void note_kinds(ptac_site *site, PyObject *modules, Py_ssize_t n)
{
    Py_CLEAR(site->function);
    site->n_kinds = (int)n;
    for (Py_ssize_t i = 0; i < n; i++)
        site->kinds[i] = (unsigned char)ptac_module_kind_of(PyList_GetItem(modules, i));
}

/* A Linear's node may save what it gives, which would then count as changed. */
static bool may_be_saved(const sequence *s, PyObject *y)
{
    const bool is_linear =
        ptac_module_kind_of(PyList_GetItem(s->modules, 0)) == PTAC_MODULE_LINEAR;
    const bool may = is_linear && ptac_requires_grad(y) != 0;

    PyErr_Clear();
    return may;
}

static PyObject *run_sequence(ptac_site *site, const ptac_frame *frame,
                              const sequence *s, const ptac_chain_start *start)
{
    const double saved_before = ptac_estimated_saved_here();
    Py_ssize_t n = 1;
    PyObject *y = ptac_chain_run(start, &n);

    if (y != Py_None) {
        site->n_hits += y && n > 1;
        site->saved_ns += ptac_estimated_saved_here() - saved_before;
        note_kinds(site, s->modules, n);
        if (y && n > 1)
            ptac_window_open(frame, site, steps_in(s, n), s->in_place, y,
                             may_be_saved(s, y));
        return y;
    }
    site->n_misses[PTAC_SITE_UNSERVED] += s->n_steps > 0;
    note_kinds(site, s->modules, PyList_Size(s->modules));
    if (!feeds_norm(s, PyList_GetItem(s->modules, 0)))
        return y;
    Py_DECREF(y);
    return call_before_norm(site, frame, PyList_GetItem(s->modules, 0), start->x);
}

static PyObject *run(const ptac_frame *frame, PyObject *module, PyObject *x,
                     bool is_x_unseen)
{
    ptac_site *site = ptac_site_of(frame); /* which may have run Python */
    sequence s = {0};
    PyObject *y = NULL;

    if (PyErr_Occurred())
        return NULL;
    if (!is_open || !site || !(site->n_steps > 0 || is_x_unseen) ||
        !is_calls_own(site, frame, module, x))
        Py_RETURN_NONE;
    if (read_sequence(site, frame, module, &s) && (s.n_steps > 0 || is_x_unseen)) {
        const ptac_chain_start start = {s.modules, 0, x, is_x_unseen};

        y = run_sequence(site, frame, &s, &start);
    } else {
        site->n_misses[s.why_no_more] += s.modules != NULL;
        y = Py_NewRef(Py_None);
    }
    Py_XDECREF(s.modules);
    return y;
}

const ptac_frame *ptac_site_frame(void)
{
    return is_open && n_holds == 0 && !ptac_has_function_mode() ? ptac_frame_now()
                                                                : NULL;
}

bool ptac_sites_are_open(void)
{
    return is_open;
}

static PyObject *call(const ptac_frame *frame, PyObject *module, PyObject *x)
{
    const bool is_x_unseen = ptac_window_is_fresh(frame, x);
    PyObject *y;

    if (!ptac_site_enter(frame))
        Py_RETURN_NONE;
    y = run(frame, module, x, is_x_unseen);
    ptac_site_leave();
    if (PyErr_Occurred())
        Py_CLEAR(y);
    return y;
}

PyObject *ptac_site_call(PyObject *module, PyObject *x)
{
    const ptac_frame *frame =
        ptac_chain_may_begin(module) && ptac_is_tensor(x) ? ptac_site_frame() : NULL;

    return frame ? call(frame, module, x) : Py_NewRef(Py_None);
}

/* sites_open(is_open): whether anything is computed ahead. */
PTAC_O(sites_open, truth)
{
    is_open = truth == Py_True;
    Py_RETURN_NONE;
}

/* sites_hold(by): nothing is while there are more of 1 than of -1. */
PTAC_OF_NUMBER(sites_hold)
{
    n_holds += (int)number;
    n_holds_here += (int)number;
    Py_RETURN_NONE;
}

/* In a child there is no other thread that could use a site, or hold them. */
void ptac_sites_after_fork(void)
{
    ptac_sites_in_use = ptac_sites_in_use_here;
    n_holds = n_holds_here;
}
