/*
 * plan.c - sites, each planned when it is met first.
 *
 * Planning is done in Python, see fusion/sites. A site is found by the address of the
 * instruction that calls.
 */
#include "bind/python/callpath/module_guards.h"
#include "bind/python/callpath/site/window.h"

#include <string.h>

enum {
    PLACES = 8192, /* of the table: a power of two */
    MOST = PLACES / 2,
    WORD = (int)sizeof(ptac_instruction),
};

PTAC_LENT(plan_site) /* plan_site(code, offset) -> see read_site(), or None */

static ptac_site *sites[PLACES];
static int n_sites;
static bool is_planning;

int ptac_sites_in_use;
__thread int ptac_sites_in_use_here;

static unsigned place_of(const ptac_instruction *call)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;

    return (unsigned)((uint64_t)(uintptr_t)call * golden >> 51) % PLACES;
}

static bool read_step(PyObject *entry, const ptac_instruction *first, ptac_step *s)
{
    int begin, end, base, dies, in_place;

    if (!PyArg_ParseTuple(entry, "iiiiOO!pp", &begin, &end, &base, &s->slot, &s->name,
                          &PyTuple_Type, &s->path, &dies, &in_place))
        return false;
    if (base < 0 || base >= PTAC_N_BASES)
        return PyErr_Format(PyExc_ValueError, "no such base");
    s->begin = first + begin / WORD;
    s->end = first + end / WORD;
    s->base = (ptac_base)base;
    s->dies = dies;
    s->in_place = in_place;
    Py_INCREF(s->name);
    Py_INCREF(s->path);
    return true;
}

static void forget(ptac_site *site)
{
    for (int i = 0; i < site->n_steps; i++) {
        Py_CLEAR(site->steps[i].name);
        Py_CLEAR(site->steps[i].path);
    }
    Py_CLEAR(site->code);
    Py_CLEAR(site->function);
    PyMem_Free(site);
}

/*
 * (slot of the result, whether it is an operator, line, [(begin, end, base, slot, name,
 * path, dies, in place)]), offsets in bytes.
 */
static bool read_site(PyObject *plan, int offset, ptac_site *site)
{
    PyObject *steps;
    int is_operator;

    if (!PyArg_ParseTuple(plan, "ipiO!", &site->slot, &is_operator, &site->line,
                          &PyList_Type, &steps))
        return false;
    site->is_operator = is_operator;
    if (PyList_Size(steps) > PTAC_MOST_STEPS || site->slot < 0)
        return PyErr_Format(PyExc_ValueError, "no such site");
    for (Py_ssize_t i = 0; i < PyList_Size(steps); i++, site->n_steps++)
        if (!read_step(PyList_GetItem(steps, i), site->call - offset / WORD,
                       &site->steps[i]))
            return false;
    return true;
}

/* An error of the planner's is none of the program's, but for an interrupt. */
static void drop_error(void)
{
    const bool is_interrupt = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);

    PyErr_Clear();
    if (is_interrupt)
        PyErr_SetInterrupt();
}

static PyObject *ask(PyObject *code, int offset)
{
    PyObject *plan;

    is_planning = true;
    plan = PyObject_CallFunction(plan_site, "Oi", code, offset);
    is_planning = false;
    return plan;
}

/* Without steps where the planner finds none; NULL where it fails. */
static ptac_site *make(const ptac_frame *frame, const ptac_instruction *call)
{
    ptac_site *site = PyMem_Calloc(1, sizeof *site);
    const int offset = ptac_frame_offset(frame);
    PTAC_OWNED PyObject *plan = NULL;

    if (!site)
        return NULL;
    site->call = call;
    site->code = Py_NewRef(frame->code);
    plan = ask(frame->code, offset);
    if (plan && (plan == Py_None || read_site(plan, offset, site)))
        return site;
    drop_error();
    forget(site);
    return NULL;
}

ptac_site *ptac_site_of(const ptac_frame *frame)
{
    const ptac_instruction *call = frame->at;
    unsigned at = place_of(call);
    ptac_site *site;

    for (; sites[at]; at = (at + 1) % PLACES)
        if (sites[at]->call == call)
            return sites[at];
    if (n_sites == MOST || is_planning || plan_site == Py_None)
        return NULL;
    site = make(frame, call); /* which runs Python: look for a place anew */
    if (!site)
        return NULL;
    for (at = place_of(call); sites[at]; at = (at + 1) % PLACES) {
        if (sites[at]->call == call) {
            forget(site);
            return sites[at];
        }
    }
    n_sites++;
    sites[at] = site;
    return site;
}

static void begin_anew(ptac_site *site)
{
    site->n_hits = 0;
    memset(site->n_misses, 0, sizeof site->n_misses);
    site->saved_ns = 0;
    site->n_kinds = 0;
}

/* sites_forget(): all, so that their code may go; of those in use, what they did. */
PTAC_NOARGS(sites_forget)
{
    for (int i = 0; i < PLACES; i++) {
        ptac_site *site = sites[i];

        if (site && ptac_sites_in_use > 0) {
            begin_anew(site);
        } else if (site) {
            sites[i] = NULL;
            forget(site);
        }
    }
    if (ptac_sites_in_use == 0)
        n_sites = 0;
    Py_RETURN_NONE;
}

static PyObject *name_of(const ptac_site *site, int i)
{
    static const char signs[] = "+-*/+*"; /* by the planner's codes of operators */
    const ptac_step *step = &site->steps[i - 1];

    if (!site->function)
        return PyUnicode_FromString(
            ptac_module_kind_name((ptac_module_kind)site->kinds[i]));
    if (i == 0)
        return Py_NewRef(site->function);
    return step->base == PTAC_NUMBER
               ? PyUnicode_FromFormat("%c %S", signs[step->slot], step->name)
               : PyUnicode_FromString(ptac_module_kind_name(PTAC_MODULE_RELU));
}

static PyObject *kinds_of(const ptac_site *site)
{
    PyObject *list = PyList_New(0);

    for (int i = 0; list && i < site->n_kinds; i++)
        ptac_append(&list, name_of(site, i));
    return list;
}

static PyObject *misses_of(const ptac_site *site)
{
    PyObject *list = PyList_New(0);

    for (int i = 0; list && i < PTAC_SITE_N_REASONS; i++)
        ptac_append(&list, PyLong_FromLongLong(site->n_misses[i]));
    return list;
}

static PyObject *describe(const ptac_site *site)
{
    return Py_BuildValue("(OiNLNd)", site->code, site->line, kinds_of(site),
                         (long long)site->n_hits, misses_of(site), site->saved_ns);
}

/*
 * sites_list() -> [(code, line, kinds of modules, hits, misses by reason, ns saved)] of
 * sites that something follows and that were called since sites_forget().
 */
PTAC_NOARGS(sites_list)
{
    PyObject *list = PyList_New(0);

    for (int i = 0; list && i < PLACES; i++)
        if (sites[i] && sites[i]->n_steps > 0 && sites[i]->n_kinds > 0)
            ptac_append(&list, describe(sites[i]));
    return list;
}

/* windows_open() -> how many there are, dead ones included */
PTAC_GIVES(windows_open, PyLong_FromLong(ptac_n_windows))
