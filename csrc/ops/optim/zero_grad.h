/*
 * zero_grad.h - the gradients of many parameters set to zero as one call.
 *
 * Of the CPU there is no row: torch's own loop is as fast there.
 */
#ifndef PTAC_OPS_OPTIM_ZERO_GRAD_H
#define PTAC_OPS_OPTIM_ZERO_GRAD_H

#include "core/kernel.h"

/* A gradient of any dtype, with all elements side by side, aligned to its dtype. */
typedef struct ptac_zero_item {
    void *data;
    int64_t bytes;
} ptac_zero_item;

/* params. inputs[0] stands for all: the first one's dtype, n_elements together. */
typedef struct ptac_zero_grad {
    const ptac_zero_item *items;
    int64_t n_items;
} ptac_zero_grad;

#endif
