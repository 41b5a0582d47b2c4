/*
 * pinned_pool.h - host memory that devices read directly, cut from one registration.
 *
 * torch rounds such memory to powers of two and registers each block by itself. Here it
 * is brought into memory by several threads at once, registered once, and cut to size;
 * a transfer never spans two registrations. One a process. Any thread may call.
 * Forked children do not have it: they are given none, and cannot close it.
 */
#ifndef PTAC_MEM_CUDA_PINNED_POOL_H
#define PTAC_MEM_CUDA_PINNED_POOL_H

#include "mem/engine/pool.h"

enum {
    PTAC_PINNED_GRANULE = 512,
};

/*
 * The driver is loaded. bytes are rounded up to 2 MiB; 1 <= n_threads. NULL, or why it
 * cannot be; the text stays good.
 */
const char *ptac_pinned_open(size_t bytes, int n_threads);
/* False, and nothing done, while a block is used or the driver does not let go. */
bool ptac_pinned_close(void);

/*
 * A block, or NULL when there is no room. Whoever frees it has seen to it that no
 * transfer uses it any more.
 */
void *ptac_pinned_alloc(size_t bytes);
/* False, and nothing done, when no used block begins there. */
bool ptac_pinned_free(void *memory);

#endif
