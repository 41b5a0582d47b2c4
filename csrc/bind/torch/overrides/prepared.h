/*
 * prepared.h - a call of a described operator that is read once and run many times,
 * with other data of the same geometry.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_PREPARED_H
#define PTAC_BIND_TORCH_OVERRIDES_PREPARED_H

#include "bind/torch/overrides/override.h"

#include <stdalign.h>

/*
 * Who prepares fills in args: what the call is of, its arguments, and the views of
 * those that are tensors, whose sizes and strides live as long as this. It stays where
 * it is.
 */
typedef struct ptac_prepared {
    ptac_arguments args;
    ptac_call call;
    ptac_outputs outputs;
    const ptac_kernel *row;
    at_tensors work; /* outputs that torch does not want, owned */
    alignas(max_align_t) char params[PTAC_PARAMS_BYTES];
} ptac_prepared;

/* Read the call: its operator, inputs, parameters and what its outputs look like. */
ptac_reason ptac_prepare_call(ptac_prepared *p);

/*
 * Then find its row, and have room for what the row works in; or why it has none. What
 * an override refuses by a hook of its own is counted.
 */
ptac_reason ptac_prepare_row(ptac_prepared *p);

void ptac_prepared_drop(ptac_prepared *p);

#endif
