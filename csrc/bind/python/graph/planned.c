/*
 * planned.c - the object that calls come to: it finds the plan of a call, or has it
 * made eagerly.
 */
#include "bind/python/graph/graph.h"
#include "bind/python/graph/entry.h"
#include "bind/python/interpreter/dynamo.h"
#include "bind/python/interpreter/vectorcall.h"
#include "bind/python/module/names.h"

#include <string.h>

static PyTypeObject *planned_type;
static bool is_open;           /* the switch is on */
static PyObject *hooks_of_all; /* dictionaries */

enum {
    MOST_GIVEN_BACK = 3, /* runs on end, after which calls are made eagerly */
};

typedef ptac_entry entry;

typedef struct planned {
    PyObject_HEAD PyObject *eager, *miss;
    PyObject *root; /* a weak reference to a module planned unasked, or NULL */
    ptac_guards guards;
    entry *entries;
    int n_entries;
    long long n_hits, n_misses, n_gave_back, n_given_up, n_busy;
    long long n_alone;             /* calls in training, or with a gradient to come */
    long long n_compiled;          /* calls that torch.compile looks at */
    long long n_resting, n_rested; /* calls to come, and made, that nobody looks at */
    long long n_aside[PTAC_N_REASONS];
} planned;

/* --- entries ---------------------------------------------------------------------- */

/* What goes may call the program, which may call us. */
static void clear_entries(planned *s)
{
    while (s->n_entries > 0) {
        entry last = s->entries[--s->n_entries];

        ptac_entry_clear(&last);
    }
}

static PyObject *rebuilt(PyObject *rebuild, PyObject *results)
{
    if (rebuild == Py_None)
        return Py_NewRef(PyTuple_GetItem(results, 0));
    return PyObject_CallFunctionObjArgs(rebuild, results, NULL);
}

/* --- a call ----------------------------------------------------------------------- */

/* The plan that is for this call, or NULL. */
static entry *find(planned *s, PyObject *args, PyObject *kwargs)
{
    const ptac_circumstances now = ptac_circumstances_now();

    if (s->n_entries == 0 || !ptac_guards_hold(&s->guards))
        return NULL;
    for (int i = 0; i < s->n_entries; i++) {
        entry *e = &s->entries[i];

        if (ptac_circumstances_are(&e->circumstances, &now) &&
            ptac_entry_collect(e, &s->guards, args, kwargs))
            return e;
    }
    return NULL;
}

/* Entries may have gone meanwhile. */
static void note_outcome(planned *s, PyObject *plan, ptac_plan_outcome outcome)
{
    s->n_hits += outcome == PTAC_PLAN_DONE;
    s->n_busy += outcome == PTAC_PLAN_BUSY;
    s->n_gave_back += outcome == PTAC_PLAN_GAVE_BACK;
    for (int i = 0; i < s->n_entries && outcome != PTAC_PLAN_BUSY; i++) {
        entry *e = &s->entries[i];

        if (e->plan == plan)
            e->n_given_back = outcome == PTAC_PLAN_GAVE_BACK ? e->n_given_back + 1 : 0;
    }
}

/* A step's operators are run without autograd, whose part is among them. */
static ptac_plan_outcome run_step(PyObject *plan, PyObject *const *tensors,
                                  PyObject **results)
{
    ptac_plan_outcome outcome;
    PyObject *type, *error, *traceback;

    if (!ptac_set_grad(false))
        return PTAC_PLAN_RAISED;
    outcome = ptac_plan_run(plan, tensors, results, NULL);
    PyErr_Fetch(&type, &error, &traceback);
    if (!ptac_set_grad(true))
        PyErr_Clear();
    PyErr_Restore(type, error, traceback);
    return outcome;
}

/* Run an entry's plan; where that is done, *result is what the call returns. */
static ptac_plan_outcome run_entry(planned *s, entry *e, PyObject **result)
{
    PTAC_OWNED PyObject *plan = Py_NewRef(e->plan);
    PTAC_OWNED PyObject *rebuild = Py_NewRef(e->rebuild);
    PTAC_OWNED PyObject *results = NULL;
    const ptac_plan_outcome outcome =
        e->is_step ? run_step(plan, e->given.tensors, &results)
                   : ptac_plan_run(plan, e->given.tensors, &results, NULL);

    note_outcome(s, plan, outcome);
    *result = outcome == PTAC_PLAN_DONE ? rebuilt(rebuild, results) : NULL;
    return outcome;
}

/* A hook listens to all modules. */
static bool are_heard(void)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(hooks_of_all); i++)
        if (PyDict_Size(PyTuple_GetItem(hooks_of_all, i)) != 0)
            return true;
    return false;
}

/* Why a call is not even looked at. */
static ptac_reason why_aside(void)
{
    if (!is_open)
        return PTAC_OFF;
    if (ptac_thread_is_disabled() || ptac_shadow_is_on())
        return PTAC_DISABLED;
    return are_heard() ? PTAC_HOOKS : ptac_why_not_lean();
}

/*
 * A module that is planned unasked is so in evaluation without gradients; what was
 * proved of it stays so while it is trained.
 */
static bool is_left_alone(PyObject *root)
{
    PTAC_OWNED PyObject *attributes = root ? PyObject_GenericGetDict(root, NULL) : NULL;

    if (!root)
        return false;
    if (T.aoti_torch_grad_mode_is_enabled() || !attributes)
        return true;
    return PyDict_GetItemWithError(attributes, ptac_names.training) != Py_False;
}

/* The module planned unasked, borrowed; NULL where there is none, or none any more. */
static PyObject *root_of(const planned *s)
{
    PyObject *root = s->root ? PyWeakref_GetObject(s->root) : NULL;

    return root == Py_None ? NULL : root;
}

static PyObject *call_eagerly(const planned *s, PyObject *args, PyObject *kwargs)
{
    PyObject *root = root_of(s);
    PTAC_OWNED PyObject *eager =
        root ? PyObject_GetAttr(root, ptac_names._call_impl) : Py_NewRef(s->eager);

    return eager ? PyObject_Call(eager, args, kwargs) : NULL;
}

static PyObject *call_missing(const planned *s, PyObject *args, PyObject *kwargs)
{
    PTAC_OWNED PyObject *miss = Py_NewRef(s->miss);

    return PyObject_Call(miss, args, kwargs);
}

static PyObject *planned_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    planned *s = (planned *)self;
    const ptac_reason why = why_aside();
    PTAC_OWNED PyObject *alive = Py_NewRef(self);
    PTAC_OWNED PyObject *root = Py_XNewRef(root_of(s));
    ptac_plan_outcome outcome = PTAC_PLAN_GAVE_BACK;
    PyObject *result = NULL;
    entry *e;

    if (!s->eager || !s->miss || (s->root && !root))
        return PyErr_Format(PyExc_RuntimeError, "a planned callable that is gone");
    if (why) {
        s->n_aside[why]++;
        return call_eagerly(s, args, kwargs);
    }
    if (ptac_dynamo_looks()) {
        s->n_compiled++;
        return call_eagerly(s, args, kwargs);
    }
    if (is_left_alone(root)) {
        s->n_alone++;
        return call_eagerly(s, args, kwargs);
    }
    e = find(s, args, kwargs);
    if (e && e->n_given_back >= MOST_GIVEN_BACK) {
        s->n_given_up++;
        return call_eagerly(s, args, kwargs);
    }
    if (e)
        outcome = run_entry(s, e, &result);
    if (outcome == PTAC_PLAN_DONE || outcome == PTAC_PLAN_RAISED)
        return result;
    if (outcome == PTAC_PLAN_BUSY)
        return call_eagerly(s, args, kwargs);
    s->n_misses++;
    if (s->n_resting == 0)
        return call_missing(s, args, kwargs);
    s->n_resting--;
    s->n_rested++;
    return call_eagerly(s, args, kwargs);
}

/* --- the object ------------------------------------------------------------------- */

static int planned_traverse(PyObject *self, visitproc visit, void *arg)
{
    const planned *s = (planned *)self;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(s->eager);
    Py_VISIT(s->miss);
    Py_VISIT(s->root);
    for (int i = 0; i < s->n_entries; i++) {
        const int found = ptac_entry_traverse(&s->entries[i], visit, arg);

        if (found)
            return found;
    }
    return ptac_guards_traverse(&s->guards, visit, arg);
}

static int planned_clear(PyObject *self)
{
    planned *s = (planned *)self;

    clear_entries(s);
    ptac_guards_clear(&s->guards);
    Py_CLEAR(s->eager);
    Py_CLEAR(s->miss);
    Py_CLEAR(s->root);
    return 0;
}

static void planned_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    planned_clear(self);
    PyMem_Free(((planned *)self)->entries);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot planned_slots[] = {
    {Py_tp_dealloc, (void *)planned_dealloc},
    {Py_tp_traverse, (void *)planned_traverse},
    {Py_tp_clear, (void *)planned_clear},
    {Py_tp_call, (void *)planned_call},
    {0, NULL},
};

static PyType_Spec planned_spec = {
    .name = "pai_torchacc._C.Planned",
    .basicsize = sizeof(planned),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = planned_slots,
};

bool ptac_is_planned(PyObject *object)
{
    return planned_type && Py_TYPE(object) == planned_type;
}

static planned *planned_of(PyObject *object)
{
    if (ptac_is_planned(object))
        return (planned *)object;
    PyErr_Format(PyExc_TypeError, "a planned callable is expected, not %R", object);
    return NULL;
}

/*
 * planned_make(eager, miss, root) -> a callable: it calls eager while plans stand
 * aside, and miss where none is for the call. root is a module that nobody has asked to
 * plan; else None. It is not kept alive. Its own _call_impl is called in place of
 * eager, also in training, and where a gradient may be asked for.
 */
PTAC_ARGS(planned_make, 3)
{
    planned *s;

    if (!planned_type)
        planned_type = (PyTypeObject *)PyType_FromSpec(&planned_spec);
    s = planned_type ? (planned *)PyType_GenericAlloc(planned_type, 0) : NULL;
    if (!s)
        return NULL;
    s->eager = Py_NewRef(args[0]);
    s->miss = Py_NewRef(args[1]);
    s->root = args[2] == Py_None ? NULL : PyWeakref_NewRef(args[2], NULL);
    if (args[2] != Py_None && !s->root)
        Py_CLEAR(s);
    return (PyObject *)s;
}

/*
 * planned_reset(planned, modules, bindings): forget all plans, and guard these modules
 * and names, which are (dictionary or cell, name or None, object).
 */
PTAC_ARGS(planned_reset, 3)
{
    planned *s = planned_of(args[0]);
    ptac_guards guards = {0};

    if (!s)
        return NULL;
    if (!PyList_Check(args[1]) || !PyList_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "lists are expected");
    if (!ptac_guards_read(&guards, args[1], args[2], root_of(s))) {
        ptac_guards_clear(&guards);
        return NULL;
    }
    clear_entries(s);
    ptac_guards_clear(&s->guards);
    s->guards = guards;
    s->n_resting = 0;
    Py_RETURN_NONE;
}

/* Modules are as they were when they were put under guard. */
PTAC_O(planned_holds, object)
{
    planned *s = planned_of(object);

    if (!s)
        return NULL;
    return PyBool_FromLong((!s->root || root_of(s)) && ptac_guards_hold(&s->guards));
}

/*
 * planned_add(planned, (args, kwargs) described, places, held, plan, rebuild or None,
 * generation, learnt) -> True: a plan for calls like this one, under circumstances like
 * now. It is given the tensors of the arguments, those at the places, and those held;
 * rebuild makes of its results what the call returns. places are (module, home, name,
 * -1), or with an earlier place that has to be the same tensor in place of -1; learnt
 * is None, or of a training step its parameters: (module, name, whether it learns,
 * whether it has no gradient before, id()). False, and nothing is added, where rows may
 * have become others since that generation.
 */
PTAC_ARGS(planned_add, 8)
{
    planned *s = planned_of(args[0]);
    entry e = {0}, *grown;

    if (!s)
        return NULL;
    if (!PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != 2 ||
        !PyTuple_Check(args[2]) || !PyTuple_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "tuples are expected");
    grown = PyMem_Realloc(s->entries, ((size_t)s->n_entries + 1) * sizeof *grown);
    if (grown)
        s->entries = grown;
    if (!grown || !ptac_entry_read(&e, &s->guards, args + 1)) {
        ptac_entry_clear(&e);
        return grown ? NULL : PyErr_NoMemory();
    }
    if (PyLong_AsUnsignedLongLong(args[6]) != e.circumstances.generation) {
        ptac_entry_clear(&e);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    s->entries[s->n_entries++] = e;
    Py_RETURN_TRUE;
}

/* planned_rest(planned, n): make the next n calls without a plan eagerly at once. */
PTAC_ARGS(planned_rest, 2)
{
    planned *s = planned_of(args[0]);

    if (!s)
        return NULL;
    s->n_resting = PyLong_AsLongLong(args[1]);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/*
 * planned_counts(planned) -> (plans, hits, misses, runs given back, calls while another
 * thread ran the plan, calls rested, {reason: calls aside})
 */
PTAC_O(planned_counts, object)
{
    const planned *s = planned_of(object);
    PyObject *aside = s ? PyDict_New() : NULL;

    for (int i = 0; aside && i < PTAC_N_REASONS; i++)
        if (s->n_aside[i])
            ptac_put(&aside, i == PTAC_OFF ? "switched off" : ptac_reason_text(i),
                     PyLong_FromLongLong(s->n_aside[i]));
    if (aside && s->n_alone)
        ptac_put(&aside, "in training, or a gradient may be asked for",
                 PyLong_FromLongLong(s->n_alone));
    if (aside && s->n_compiled)
        ptac_put(&aside, "torch.compile looks at the call",
                 PyLong_FromLongLong(s->n_compiled));
    if (aside && s->n_given_up)
        ptac_put(&aside, "its plan was given back by a kernel",
                 PyLong_FromLongLong(s->n_given_up));
    return aside ? Py_BuildValue("iLLLLLN", s->n_entries, s->n_hits, s->n_misses,
                                 s->n_gave_back, s->n_busy, s->n_rested, aside)
                 : NULL;
}

/* planned_count_anew(planned): begin counting calls. */
PTAC_O(planned_count_anew, object)
{
    planned *s = planned_of(object);

    if (!s)
        return NULL;
    s->n_hits = s->n_misses = s->n_gave_back = s->n_given_up = s->n_busy = 0;
    s->n_rested = s->n_alone = s->n_compiled = 0;
    memset(s->n_aside, 0, sizeof s->n_aside);
    Py_RETURN_NONE;
}

/*
 * plans_open((dictionary of hooks of all modules, ...)) -> whether calls go by plans
 * from now on, as long as those are empty: not where this Python lacks what we call.
 */
PTAC_O(plans_open, hooks)
{
    if (!PyTuple_Check(hooks))
        return PyErr_Format(PyExc_TypeError, "a tuple is expected");
    ptac_keep(&hooks_of_all, hooks);
    is_open = ptac_vectorcall_find();
    return PyBool_FromLong(is_open);
}

PTAC_DOES(plans_close, is_open = false)

/* circumstances() -> what a call depends on beside arguments and modules. */
PTAC_NOARGS(circumstances)
{
    const ptac_circumstances now = ptac_circumstances_now();

    return Py_BuildValue("KiOOOO", (unsigned long long)now.generation, now.n_threads,
                         now.with_grad ? Py_True : Py_False,
                         now.is_lowered ? Py_True : Py_False,
                         now.without_onednn ? Py_True : Py_False,
                         now.default_dtype ? now.default_dtype : Py_None);
}

/* Another number whenever rows may have changed: see ptac_chooser_generation(). */
PTAC_GIVES(chooser_generation, PyLong_FromUnsignedLongLong(ptac_chooser_generation()))
