/*
 * dynamo.c - whether torch.compile looks at what this thread executes.
 */
#include "bind/python/interpreter/dynamo.h"

PTAC_LENT(dynamo_callback) /* torch's function: what frames are shown to */

bool ptac_dynamo_looks(void)
{
    PTAC_OWNED PyObject *callback =
        dynamo_callback ? PyObject_CallNoArgs(dynamo_callback) : NULL;

    PyErr_Clear();
    return callback && callback != Py_None && callback != Py_False;
}
