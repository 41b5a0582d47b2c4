/*
 * cuda_close.h - the end of a stream pool, which in programs lives as long as they do.
 */
#ifndef PTAC_TESTS_MEMORY_CUDA_CLOSE_H
#define PTAC_TESTS_MEMORY_CUDA_CLOSE_H

#include "mem/cuda/stream_pool.h"

/* Whether no block was used or pending, and the driver has everything back. */
bool cuda_close(ptac_stream_pool *pool);

#endif
