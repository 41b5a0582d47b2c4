/*
 * dynamo.h - whether torch.compile looks at what this thread executes.
 */
#ifndef PTAC_BIND_PYTHON_INTERPRETER_DYNAMO_H
#define PTAC_BIND_PYTHON_INTERPRETER_DYNAMO_H

#include "bind/python/module/pybind.h"

/*
 * Dynamo compiles each function of Python's that is called from now on. No exception is
 * set; false where torch does not tell.
 */
bool ptac_dynamo_looks(void);

#endif
