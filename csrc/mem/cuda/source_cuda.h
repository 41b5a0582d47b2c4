/*
 * source_cuda.h - a device's memory: a handle a chunk, mapped and unmapped whole.
 */
#ifndef PTAC_MEM_CUDA_SOURCE_CUDA_H
#define PTAC_MEM_CUDA_SOURCE_CUDA_H

#include "device/cuda/driver.h"
#include "mem/engine/source.h"

typedef struct ptac_cuda_chunk {
    cu_handle handle;
    bool is_owned, is_mapped;
} ptac_cuda_chunk;

/* A source of one range; its memory is unmapped only when nobody's work uses it. */
typedef struct ptac_source_cuda {
    ptac_source source;
    const ptac_cuda_device *device;
    uintptr_t base;
    ptac_cuda_chunk *chunks;
    size_t n_chunks;
    cu_result error; /* of the last call that failed */
} ptac_source_cuda;

/* chunk_bytes: a power of two, a multiple of the device's granularity. */
void ptac_source_cuda_init(ptac_source_cuda *cuda, const ptac_cuda_device *device,
                           size_t chunk_bytes);

#endif
