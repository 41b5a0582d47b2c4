/*
 * scratch.h - memory that a kernel works in, kept for the next call.
 *
 * A kernel that works in blocks needs a few mebibytes for the time of a call. Fresh
 * memory would fault at each, so what is given back waits in a cache of a few places,
 * for all threads, until somebody asks for that much, larger memory needs the place, or
 * the cache is cleared: 8 MiB for each CPU at most, 64 MiB on small machines. More goes
 * back to the system at once.
 * Lock-free, and so safe around fork.
 */
#ifndef PTAC_CORE_SCRATCH_H
#define PTAC_CORE_SCRATCH_H

#include "core/base.h"

/* That many bytes at least, at a cache line, with anything in them; NULL: no memory. */
void *ptac_scratch_take(size_t n_bytes);

/* Back to the cache; NULL is ignored. */
void ptac_scratch_give(void *scratch);

/* Bytes on the cache, and clearing it, which returns how many there were. */
size_t ptac_scratch_kept(void);
size_t ptac_scratch_clear(void);

#endif
