/*
 * foreach.h - a list of tensors on its way to one call of a row.
 *
 *     PTAC_TENSORS l = {.call.op = ...};
 *     for each tensor: why = ptac_tensors_add(&l, tensor, other);
 *     why = ptac_tensors_ready(&l); row = ptac_admit(&l.call); ptac_run(row, &l.call);
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_FOREACH_FOREACH_H
#define PTAC_BIND_TORCH_OVERRIDES_FOREACH_FOREACH_H

#include "bind/torch/dispatch.h"
#include "ops/foreach/foreach.h"

typedef struct ptac_tensors {
    ptac_call call; /* the operator's: inputs[0] stands for all */
    ptac_foreach params;
    ptac_foreach_item *items;
    int64_t capacity;
} ptac_tensors;

void ptac_tensors_drop(ptac_tensors *l);

/* Released when it goes out of scope. Tensors are borrowed. */
#define PTAC_TENSORS __attribute__((cleanup(ptac_tensors_drop))) ptac_tensors

/*
 * One more: of the first one's dtype, dense, and other, unless that is NULL, alike; or
 * why stock has to do the whole list.
 */
ptac_reason ptac_tensors_add(ptac_tensors *l, at_tensor self, at_tensor other);

/*
 * All are there: call is complete but for the params' numbers. Refuses lists of which
 * two tensors share memory, where threads would share the work: torch takes them one
 * after the other.
 */
ptac_reason ptac_tensors_ready(ptac_tensors *l);

#endif
