/*
 * stack.h - tensors stacked along a new last dimension. Level exact.
 *
 * Inputs: 2 to PTAC_MAX_INPUTS tensors of float32, of the same sizes, without gaps. The
 * output has their elements in turn: the first of each, the second of each, and so on.
 */
#ifndef PTAC_OPS_COPY_STACK_H
#define PTAC_OPS_COPY_STACK_H

#include "core/host.h"
#include "core/kernel.h"

ptac_reason ptac_stack_accepts(const ptac_call *call);

/* Threads share the elements of an input. */
static inline void ptac_share_stack(const ptac_call *call, ptac_range_fn body)
{
    ptac_parallel_for(0, call->inputs[0].n_elements, 16384 / call->n_inputs, body,
                      (void *)call);
}

#endif
