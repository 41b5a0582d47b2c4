/*
 * tracing.h - whether a debugger or a profiler of Python's looks at this thread.
 *
 * What sys.settrace() and sys.setprofile() set is called for each Python function, and
 * those who set it want to see torch's: paths that pass over these stand aside. Where a
 * thread's state keeps the two is learnt, see tracing.c.
 */
#ifndef PTAC_BIND_PYTHON_INTERPRETER_TRACING_H
#define PTAC_BIND_PYTHON_INTERPRETER_TRACING_H

#include "bind/python/module/pybind.h"

/* False also where it is not known. */
bool ptac_thread_is_traced(void);

#endif
