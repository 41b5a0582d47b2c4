/*
 * entry.h - a plan, and the calls it is for.
 */
#ifndef PTAC_BIND_PYTHON_GRAPH_ENTRY_H
#define PTAC_BIND_PYTHON_GRAPH_ENTRY_H

#include "bind/python/graph/graph.h"
#include "bind/python/graph/guards.h"

/* A tensor of a module's; of the others that name the same one, only that they do. */
typedef struct ptac_place {
    int module, home;
    PyObject *name;
    int same_as; /* another place, or -1 */
} ptac_place;

/* A parameter as a training step finds it. */
typedef struct ptac_learnt {
    int module;
    PyObject *name;
    const void *parameter;        /* compared alone: each is another one, as then */
    bool requires_grad, has_none; /* no gradient before the step */
} ptac_learnt;

/* A plan, and the calls it is for. */
typedef struct ptac_entry {
    PyObject *described; /* of (args, kwargs), see ptac_arguments_match() */
    PyObject *held;      /* other tensors that it reads, a tuple */
    PyObject *plan, *rebuild;
    ptac_place *places;
    ptac_learnt *learnt;
    int n_places, n_learnt;
    bool is_step;     /* it trains */
    int n_given_back; /* runs on end */
    ptac_found given; /* of a call */
    ptac_circumstances circumstances;
} ptac_entry;

/*
 * From (described, places, held, plan, rebuild, generation, learnt), as planned_add()
 * is given them, under circumstances like now. False: an exception is set; what has
 * been read is to be cleared.
 */
bool ptac_entry_read(ptac_entry *e, const ptac_guards *guards, PyObject *const *args);
void ptac_entry_clear(ptac_entry *e);
int ptac_entry_traverse(const ptac_entry *e, visitproc visit, void *arg);

/*
 * Have e->given be what the plan is given, of modules that are under guard; false where
 * it is not for this call. No exception is set.
 */
bool ptac_entry_collect(ptac_entry *e, const ptac_guards *guards, PyObject *args,
                        PyObject *kwargs);

#endif
