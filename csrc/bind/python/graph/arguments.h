/*
 * arguments.h - arguments of an operator of aten as a plan describes them.
 */
#ifndef PTAC_BIND_PYTHON_GRAPH_ARGUMENTS_H
#define PTAC_BIND_PYTHON_GRAPH_ARGUMENTS_H

#include "bind/python/graph/graph.h"
#include "bind/torch/overrides/prepared.h"

/*
 * Fill in the arguments of a described operator from a tuple, which has to outlive
 * them. Tensors are tuples of a value's number, others Python's numbers, texts, lists
 * and None; ScalarTypes are torch's numbers. values becomes the number of each
 * argument's value, or -1. False where they are not the operator's.
 */
bool ptac_plan_arguments(ptac_plan *plan, PyObject *tuple, ptac_arguments *args,
                         int values[PTAC_MAX_ARGUMENTS]);

/* Frees what they own, lists; tensors are the plan's. */
void ptac_plan_arguments_drop(ptac_arguments *args);

#endif
