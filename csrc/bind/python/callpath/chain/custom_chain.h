/*
 * custom_chain.h - modules in nn.Sequential that a function of the program computes.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_CHAIN_CUSTOM_CHAIN_H
#define PTAC_BIND_PYTHON_CALLPATH_CHAIN_CUSTOM_CHAIN_H

#include "bind/python/callpath/chain/chain.h"

enum { PTAC_LONGEST_CUSTOM_CHAIN = 8 }; /* modules */

bool ptac_has_custom_chains(void);

/*
 * What the first function that takes them makes of the modules from start on; *n is how
 * many these are. None where they have to be called.
 */
PyObject *ptac_custom_chain(const ptac_chain_start *start, Py_ssize_t *n);

#endif
