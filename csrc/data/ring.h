/*
 * ring.h - slots of shared memory that are taken in one process and given in another.
 *
 * A slot has one byte: 0 while it is free. Only its worker takes it, only the loader's
 * process gives it back, so a byte has one writer at a time.
 */
#ifndef PTAC_DATA_RING_H
#define PTAC_DATA_RING_H

#include "core/base.h"

/*
 * Take the first free one of n slots; -1 where none is. What was read from the slot
 * before it was given back has been read by then.
 */
int64_t ptac_ring_take(uint8_t *states, int64_t first, int64_t n);

/* The slot is free; what was read from it before, has been read. */
void ptac_ring_give(uint8_t *states, int64_t slot);

#endif
