/*
 * vectorcall.c - finding CPython's functions.
 */
#include "bind/python/interpreter/vectorcall.h"

#include <dlfcn.h>

ptac_vectorcall_fn ptac_vectorcall, ptac_vectorcall_method;
ptac_vectorcall_fn (*ptac_vectorcall_of)(PyObject *callable);

bool ptac_vectorcall_find(void)
{
    ptac_vectorcall = dlsym(RTLD_DEFAULT, "PyObject_Vectorcall");
    ptac_vectorcall_method = dlsym(RTLD_DEFAULT, "PyObject_VectorcallMethod");
    ptac_vectorcall_of = dlsym(RTLD_DEFAULT, "PyVectorcall_Function");
    return ptac_vectorcall && ptac_vectorcall_method && ptac_vectorcall_of;
}
