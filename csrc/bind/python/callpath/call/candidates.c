/*
 * candidates.c - a table of modules by address, with how often they were called, and
 * their plans.
 *
 * Nothing in it keeps a module alive: a weak reference says whether an address is still
 * the one that was meant. A plan is the table's alone, and its module knows nothing of
 * it: whatever is made of the module's attributes is another module. As the collector
 * does not look in here, no plan may keep its own module alive (automatic.py sees to
 * that). Under the interpreter's lock.
 */
#include "bind/python/callpath/call/candidates.h"

#include "bind/python/interpreter/dynamo.h"
#include "bind/python/module/names.h"

enum {
    PLACES = 4096, /* of the table: a power of two */
    MOST = PLACES / 2,
    CALLS_BEFORE = 2, /* eager ones, in which a program fills its caches */
};

typedef struct candidate {
    PyObject *module; /* borrowed, and alive while the reference says so */
    PyObject *reference;
    int n_calls;    /* or one of these: */
    PyObject *plan; /* owned: what calls of the module come to; or NULL */
} candidate;

enum {
    IS_REFUSED = -1,
    IS_SHOWN = -2,
};

bool ptac_candidates_are_sought;

static candidate *table;
static int n_used;
static PyObject *show; /* the package's function */
static __thread int depth;

static unsigned place_of(PyObject *module)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;

    return (unsigned)((uint64_t)(uintptr_t)module * golden >> 52) % PLACES;
}

static bool is_alive(const candidate *c)
{
    return PyWeakref_GetObject(c->reference) == c->module;
}

/* Where the module is, or would be. */
static candidate *place_for(PyObject *module)
{
    unsigned at = place_of(module);

    while (table[at].module && table[at].module != module)
        at = (at + 1) % PLACES;
    return &table[at];
}

/* What goes may call the program: the place is no part of the table by now. */
static void drop(candidate *c)
{
    Py_CLEAR(c->reference);
    Py_CLEAR(c->plan);
}

static void clear_table(void)
{
    candidate *const old = table;

    table = NULL;
    n_used = 0;
    for (int i = 0; old && i < PLACES; i++)
        drop(&old[i]);
    PyMem_Free(old);
}

/* Keep those that are alive. False: too many are, or there is no memory. */
static bool make_room(void)
{
    candidate *const old = table;

    table = PyMem_Calloc(PLACES, sizeof *table);
    if (!table) {
        table = old;
        return false;
    }
    n_used = 0;
    for (int i = 0; old && i < PLACES; i++) {
        if (old[i].module && is_alive(&old[i])) {
            *place_for(old[i].module) = old[i];
            old[i] = (candidate){0};
            n_used++;
        }
    }
    for (int i = 0; old && i < PLACES; i++)
        drop(&old[i]);
    PyMem_Free(old);
    return table && n_used < MOST;
}

/* The module's place, or NULL. */
static candidate *find(PyObject *module)
{
    candidate *found = table ? place_for(module) : NULL;

    return found && found->module && is_alive(found) ? found : NULL;
}

/* Likewise, and it has one from now on; NULL, without an exception: it cannot. */
static candidate *find_or_add(PyObject *module)
{
    candidate *found = find(module), before = {0};
    PyObject *reference;

    if (found)
        return found;
    reference = PyWeakref_NewRef(module, NULL); /* which may run the program */
    if (!reference || ((!table || n_used >= MOST) && !make_room())) {
        Py_XDECREF(reference);
        PyErr_Clear();
        return NULL;
    }
    found = place_for(module);
    if (found->module) /* another one lay at this address, or it came here meanwhile */
        before = *found;
    else
        n_used++;
    *found = (candidate){module, reference, 0, NULL};
    if (!before.module)
        return found;
    drop(&before);
    return find(module);
}

static PyObject *attribute_of(PyObject *module, PyObject *name)
{
    PTAC_OWNED PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    PyObject *found = attributes ? PyDict_GetItemWithError(attributes, name) : NULL;

    PyErr_Clear();
    return found; /* the module has it; only compared */
}

/* Somebody else's plan is in the place where torch looks for one. */
static bool is_taken(PyObject *module)
{
    PyObject *compiled = attribute_of(module, ptac_names._compiled_call_impl);

    return compiled && compiled != Py_None;
}

/* Have the package look at a module, and plan it or refuse it. */
static bool look_at(candidate *c, PyObject *module)
{
    PTAC_OWNED PyObject *answer = NULL;

    c->n_calls = IS_SHOWN;
    answer = PyObject_CallFunctionObjArgs(show, module, NULL);
    return answer;
}

ptac_candidacy ptac_candidate_enter(PyObject *module, PyObject **plan)
{
    candidate *c;

    if (depth > 0 || T.aoti_torch_grad_mode_is_enabled())
        return PTAC_CANDIDACY_NONE;
    c = find(module);
    if ((c && c->n_calls == IS_REFUSED) ||
        attribute_of(module, ptac_names.training) != Py_False || ptac_dynamo_looks())
        return PTAC_CANDIDACY_NONE;
    c = find_or_add(module); /* the table may have become another one */
    if (!c)
        return PTAC_CANDIDACY_NONE;
    depth++;
    if (is_taken(module))
        return PTAC_CANDIDACY_ITS;
    if (c->n_calls != IS_SHOWN && c->n_calls++ >= CALLS_BEFORE) {
        if (!look_at(c, module)) {
            depth--;
            return PTAC_CANDIDACY_ERROR;
        }
        c = find(module);
    }
    *plan = c && c->plan ? Py_NewRef(c->plan) : NULL;
    return PTAC_CANDIDACY_ITS;
}

void ptac_candidate_leave(void)
{
    depth--;
}

/*
 * candidates_seek(show): from now on show(module) is called before the third call of a
 * module without gradients; None: no more, and all are forgotten.
 */
PTAC_O(candidates_seek, function)
{
    ptac_candidates_are_sought = false;
    if (function == Py_None)
        clear_table();
    ptac_keep(&show, function);
    ptac_candidates_are_sought = function != Py_None;
    Py_RETURN_NONE;
}

/* candidates_refuse(module): look at it no more, but at those within it. */
PTAC_O(candidates_refuse, module)
{
    candidate *c = ptac_candidates_are_sought ? find_or_add(module) : NULL;

    if (c) {
        PTAC_OWNED PyObject *before = c->plan; /* which goes last */

        c->n_calls = IS_REFUSED;
        c->plan = NULL;
    }
    Py_RETURN_NONE;
}

/* candidates_plan(module, plan): have its calls come to that, in torch's place. */
PTAC_ARGS(candidates_plan, 2)
{
    candidate *c = ptac_candidates_are_sought ? find_or_add(args[0]) : NULL;

    if (c) {
        PTAC_OWNED PyObject *before = c->plan;

        c->n_calls = IS_SHOWN;
        c->plan = Py_NewRef(args[1]);
    }
    Py_RETURN_NONE;
}

/* candidates_find(module) -> what its calls come to, or None. */
PTAC_O(candidates_find, module)
{
    const candidate *c = find(module);

    return Py_NewRef(c && c->plan ? c->plan : Py_None);
}

/* candidates_forget(plan): no call comes to it any more; its module may be gone. */
PTAC_O(candidates_forget, plan)
{
    for (int i = 0; table && i < PLACES; i++) {
        if (table[i].plan != plan)
            continue;
        table[i].plan = NULL;
        Py_DECREF(plan); /* the caller has it */
        break;
    }
    Py_RETURN_NONE;
}
