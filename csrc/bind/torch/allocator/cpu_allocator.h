/*
 * cpu_allocator.h - torch's CPU storages from our pool: the ways to get there.
 *
 * A route is a way of having torch ask us; one is in force at a time. They are tried in
 * the order of the list, and whoever switches one on checks that it works.
 */
#ifndef PTAC_BIND_TORCH_ALLOCATOR_CPU_ALLOCATOR_H
#define PTAC_BIND_TORCH_ALLOCATOR_CPU_ALLOCATOR_H

#include "mem/cpu/cpu_pool.h"

/*
 * find() looks for what the route needs; NULL, or what is missing. The others are
 * called with the pool's lock held and restore by identity what they have changed; what
 * others have changed since is left to them.
 */
typedef struct ptac_cpu_route {
    const char *name;
    const char *(*find)(ptac_cpu_state before);
    bool (*install)(ptac_cpu_state before);
    void (*stop_requests)(void);
    void (*stop_frees)(void);
} ptac_cpu_route;

extern const ptac_cpu_route ptac_route_imports; /* libc10's posix_memalign and free */
extern const ptac_cpu_route ptac_route_object;  /* an allocator of our own for c10 */

/* The i-th to try, or NULL beyond the last. */
const ptac_cpu_route *ptac_cpu_route_at(int i);

/*
 * From now on torch's requests for memory of 64 KiB and more are served by the pool.
 * NULL, or why that cannot be: another route's blocks are still in use, say. Options of
 * a pool that is on are changed.
 */
const char *ptac_cpu_allocator_enable(const ptac_cpu_route *route,
                                      const ptac_cpu_pool_options *options);

/*
 * Requests go to libc at once. Frees pass through us until the last block is back; then
 * nothing of ours is left.
 */
void ptac_cpu_allocator_disable(void);

/*
 * Between these the calling thread's requests of 64 KiB and more are served by whoever
 * was asked before us, and count nowhere: a probe. The second tells whether the last of
 * them came to us, and came back to us: one that only came would, from the pool, be
 * freed by libc. One thread probes at a time.
 */
void ptac_cpu_allocator_begin_probe(void);
bool ptac_cpu_allocator_end_probe(void);

/*
 * For routes: memory for a storage, from the pool or by `other`, filled as the options
 * say; 0, or an error number. And whether a free was one of the pool's, and is done.
 */
int ptac_cpu_serve(void **memory, size_t alignment, size_t bytes,
                   int (*other)(void **memory, size_t alignment, size_t bytes));
bool ptac_cpu_take_back(void *memory);

#endif
