/*
 * candidates.h - modules that may be planned although nobody has asked for it.
 *
 * While graph_optimization plans unedited programs, calls of modules that ask for no
 * gradient are counted here. One that is called again is shown to the package, which
 * has its calls come to a plan or refuses it. Only the outermost module of a thread is
 * looked at; those within it are, once it is refused.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_CALL_CANDIDATES_H
#define PTAC_BIND_PYTHON_CALLPATH_CALL_CANDIDATES_H

#include "bind/python/module/pybind.h"

/* Whether any are looked for: false costs a call this look. */
extern bool ptac_candidates_are_sought;

typedef enum ptac_candidacy {
    PTAC_CANDIDACY_NONE,  /* the call is as ever, and so are those within it */
    PTAC_CANDIDACY_ITS,   /* those within it are none: see below */
    PTAC_CANDIDACY_ERROR, /* an exception is set: an interrupt's, say */
} ptac_candidacy;

/*
 * What a module is that is about to be called. ITS: ptac_candidate_leave() is due when
 * the call is over, however it ends, and *plan, owned, is to be called with the
 * arguments behind the module unless it is NULL, as it is otherwise.
 */
ptac_candidacy ptac_candidate_enter(PyObject *module, PyObject **plan);
void ptac_candidate_leave(void);

#endif
