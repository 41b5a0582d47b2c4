/*
 * plan.c - sites, which are planned function by function, when one is met first.
 *
 * Planning is done in Python, see fusion/sites. A site is found by the address of the
 * instruction that calls; functions are remembered, so that each is read once.
 */
#include "bind/python/callpath/module_guards.h"
#include "bind/python/callpath/site/window.h"

#include <string.h>

enum {
    BITS = 13,
    PLACES = 1 << BITS, /* of a table */
    MOST = PLACES / 2,
    WORD = (int)sizeof(ptac_instruction),
};

PTAC_LENT(plan_code) /* plan_code(code) -> [see read_site()] */

static ptac_site *sites[PLACES];
static PyObject *codes[PLACES]; /* functions that have been read, owned */
static int n_sites, n_codes;
static __thread bool is_planning;

static unsigned place_of(const void *address)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;

    return (unsigned)((uint64_t)(uintptr_t)address * golden >> (64 - BITS));
}

static ptac_site *find(const ptac_instruction *call)
{
    unsigned at = place_of(call);

    while (sites[at] && sites[at]->call != call)
        at = (at + 1) % PLACES;
    return sites[at];
}

static bool is_read(PyObject *code)
{
    unsigned at = place_of(code);

    while (codes[at] && codes[at] != code)
        at = (at + 1) % PLACES;
    return codes[at];
}

/* When there are many the others are forgotten: sites keep those that matter. */
static void note_read(PyObject *code)
{
    unsigned at;

    if (is_read(code)) /* by another thread meanwhile */
        return;
    if (n_codes == MOST) {
        for (int i = 0; i < PLACES; i++)
            Py_CLEAR(codes[i]);
        n_codes = 0;
    }
    for (at = place_of(code); codes[at]; at = (at + 1) % PLACES)
        ;
    codes[at] = Py_NewRef(code);
    n_codes++;
}

static bool read_step(PyObject *entry, const ptac_instruction *first, ptac_step *s)
{
    int begin, end, base, dies, has_setting, in_place;

    if (!PyArg_ParseTuple(entry, "iiiiOO!ppp", &begin, &end, &base, &s->slot, &s->name,
                          &PyTuple_Type, &s->path, &dies, &has_setting, &in_place))
        return false;
    if (base < 0 || base >= PTAC_N_BASES)
        return PyErr_Format(PyExc_ValueError, "no such base");
    s->begin = first + begin / WORD;
    s->end = first + end / WORD;
    s->base = (ptac_base)base;
    s->dies = dies;
    s->has_setting = has_setting;
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
 * (offset, slot of the result, whether it is an operator, line, [(begin, end, base,
 * slot, name, path, dies, has a setting, in place)]), offsets in bytes.
 */
static bool read_site(PyObject *plan, const ptac_instruction *first, ptac_site *site)
{
    PyObject *steps;
    int is_operator;

    if (!PyArg_ParseTuple(plan, "iipiO!", &site->offset, &site->slot, &is_operator,
                          &site->line, &PyList_Type, &steps))
        return false;
    site->call = first + site->offset / WORD;
    site->is_operator = is_operator;
    if (PyList_Size(steps) > PTAC_MOST_STEPS || site->slot < 0)
        return PyErr_Format(PyExc_ValueError, "no such site");
    for (Py_ssize_t i = 0; i < PyList_Size(steps); i++, site->n_steps++)
        if (!read_step(PyList_GetItem(steps, i), first, &site->steps[i]))
            return false;
    return true;
}

static bool add_site(PyObject *plan, PyObject *code, const ptac_instruction *first)
{
    ptac_site *site = PyMem_Calloc(1, sizeof *site);
    unsigned at;

    if (!site)
        return PyErr_NoMemory();
    site->code = Py_NewRef(code);
    if (!read_site(plan, first, site)) {
        forget(site);
        return false;
    }
    if (n_sites == MOST || find(site->call)) {
        forget(site);
        return true;
    }
    for (at = place_of(site->call); sites[at]; at = (at + 1) % PLACES)
        ;
    sites[at] = site;
    n_sites++;
    return true;
}

/* Depth of recursion or memory forbids the planning: there are no sites for now. */
static bool is_for_want_of_room(void)
{
    if (!PyErr_ExceptionMatches(PyExc_RecursionError) &&
        !PyErr_ExceptionMatches(PyExc_MemoryError))
        return false;
    PyErr_Clear();
    return true;
}

/* False with an exception set, which a signal's handler may have raised. */
static bool read_code(PyObject *code, const ptac_instruction *first)
{
    PTAC_OWNED PyObject *plans = NULL;

    is_planning = true;
    plans = PyObject_CallFunctionObjArgs(plan_code, code, NULL);
    is_planning = false;
    if (!plans)
        return is_for_want_of_room();
    for (Py_ssize_t i = 0; i < PyList_Size(plans); i++)
        if (!add_site(PyList_GetItem(plans, i), code, first))
            return false;
    if (!PyErr_Occurred())
        note_read(code);
    return !PyErr_Occurred();
}

ptac_site *ptac_site_of(const ptac_frame *frame)
{
    const ptac_instruction *call = frame->at;
    ptac_site *site = find(call);
    int offset;

    if (site || is_planning || plan_code == Py_None || is_read(frame->code))
        return site;
    offset = ptac_frame_offset();
    return offset >= 0 && read_code(frame->code, call - offset / WORD) ? find(call)
                                                                       : NULL;
}

static void begin_anew(ptac_site *site)
{
    site->n_hits = 0;
    memset(site->n_misses, 0, sizeof site->n_misses);
    site->saved_ns = 0;
    site->n_kinds = 0;
}

/* sites_begin_anew(): forget what they have done. */
PTAC_DOES(sites_begin_anew, {
    for (int i = 0; i < PLACES; i++)
        if (sites[i])
            begin_anew(sites[i]);
})

/* sites_forget() -> whether all are forgotten, as they are when none is used */
PTAC_NOARGS(sites_forget)
{
    if (ptac_sites_in_use > 0)
        Py_RETURN_FALSE;
    for (int i = 0; i < PLACES; i++) {
        ptac_site *site = sites[i];

        sites[i] = NULL;
        if (site)
            forget(site);
        Py_CLEAR(codes[i]);
    }
    n_sites = n_codes = 0;
    ptac_site_forget_classes();
    Py_RETURN_TRUE;
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
    return Py_BuildValue("(OiiNLNd)", site->code, site->offset, site->line,
                         kinds_of(site), (long long)site->n_hits, misses_of(site),
                         site->saved_ns);
}

/*
 * sites_list() -> [(code, offset, line, kinds of modules, hits, misses by reason, ns
 * saved)] of sites that were called since they began anew
 */
PTAC_NOARGS(sites_list)
{
    PyObject *list = PyList_New(0);

    ptac_sites_in_use++; /* what is collected meanwhile may switch them off */
    ptac_sites_in_use_here++;
    for (int i = 0; list && i < PLACES; i++)
        if (sites[i] && sites[i]->n_kinds > 0)
            ptac_append(&list, describe(sites[i]));
    ptac_sites_in_use_here--;
    ptac_sites_in_use--;
    return list;
}
