/*
 * cuda_allocator.h - what torch's CUDAPluggableAllocator is given: functions of C.
 *
 * A pool a device, opened at the first request. Every function may be called from any
 * thread. Errors are thrown as torch's, so that callers must be C++ or let it pass.
 */
#ifndef PTAC_BIND_TORCH_ALLOCATOR_CUDA_ALLOCATOR_H
#define PTAC_BIND_TORCH_ALLOCATOR_CUDA_ALLOCATOR_H

#include "mem/cuda/stream_pool.h"

enum {
    PTAC_MAX_DEVICES = 64,
};

/* Loads the driver. NULL, or why these cannot be served; the text stays good. */
const char *ptac_cuda_allocator_open(const ptac_stream_pool_options *options);

/* The pool of a device that has been asked for memory, or NULL. */
ptac_stream_pool *ptac_cuda_pool(int device);

/* X(name in torch, result, parameters) */
#define PTAC_CUDA_ENTRIES(X)                                                           \
    X(alloc, void *, (size_t bytes, int device, cu_stream stream))                     \
    X(free, void, (void *memory, size_t bytes, int device, cu_stream stream))          \
    X(record_stream, void, (void *memory, cu_stream stream))                           \
    X(reset, size_t, (void)) /* what all pools give back; bytes */                     \
    X(memory_fraction, void, (double fraction, int device))                            \
    X(base_alloc, void *, (void *memory, size_t *bytes))                               \
    X(begin_allocate_to_pool, void,                                                    \
      (int device, uint64_t id_0, uint64_t id_1, void *filter))                        \
    X(end_allocate_to_pool, void, (int device, uint64_t id_0, uint64_t id_1))          \
    X(release_pool, void, (int device, uint64_t id_0, uint64_t id_1))

#define X(name, result, parameters) result ptac_cuda_##name parameters;
PTAC_CUDA_ENTRIES(X)
#undef X

#endif
