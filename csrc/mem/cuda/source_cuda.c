/*
 * source_cuda.c - addresses from the driver, memory mapped behind them chunk by chunk.
 *
 * Every call may fail. A commit that does gives back what it had taken. What the driver
 * does not take back stays with its chunk: the next commit there finds it.
 */
#include "mem/cuda/source_cuda.h"

#include "mem/engine/block.h"

#include <sys/mman.h>

static ptac_source_cuda *cuda_of(ptac_source *source)
{
    return (ptac_source_cuda *)source;
}

static bool is_done(ptac_source_cuda *cuda, cu_result result)
{
    if (result != PTAC_CU_OK)
        cuda->error = result;
    return result == PTAC_CU_OK;
}

static uintptr_t address_of(const ptac_source_cuda *cuda, size_t i)
{
    return cuda->base + i * cuda->source.chunk_bytes;
}

static uintptr_t reserve(ptac_source *source, size_t bytes)
{
    ptac_source_cuda *cuda = cuda_of(source);
    const size_t n = bytes / source->chunk_bytes;
    cu_address base = 0;
    void *table = ptac_pages_take(n * sizeof *cuda->chunks);

    if (!table)
        return 0;
    if (!is_done(cuda,
                 ptac_cuda.address_reserve(&base, bytes, source->chunk_bytes, 0, 0))) {
        munmap(table, n * sizeof *cuda->chunks);
        return 0;
    }
    cuda->base = (uintptr_t)base;
    cuda->chunks = table;
    cuda->n_chunks = n;
    return cuda->base;
}

/* As far as the driver does it; the rest waits for the next commit, or the end. */
static void give_back(ptac_source_cuda *cuda, size_t i)
{
    ptac_cuda_chunk *chunk = &cuda->chunks[i];

    if (chunk->is_mapped)
        chunk->is_mapped =
            !is_done(cuda, ptac_cuda.memory_unmap(address_of(cuda, i),
                                                  cuda->source.chunk_bytes));
    if (chunk->is_owned && !chunk->is_mapped) {
        chunk->is_owned = !is_done(cuda, ptac_cuda.memory_release(chunk->handle));
        cuda->source.n_released += !chunk->is_owned;
    }
}

static void unreserve(ptac_source *source, uintptr_t base, size_t bytes)
{
    ptac_source_cuda *cuda = cuda_of(source);

    if (cuda->source.n_created > cuda->source.n_released)
        for (size_t i = 0; i < cuda->n_chunks; i++)
            give_back(cuda, i);
    is_done(cuda, ptac_cuda.address_free(base, bytes));
    munmap(cuda->chunks, cuda->n_chunks * sizeof *cuda->chunks);
    cuda->chunks = NULL;
    cuda->n_chunks = 0;
    cuda->base = 0;
}

static bool take(ptac_source_cuda *cuda, size_t i)
{
    ptac_cuda_chunk *chunk = &cuda->chunks[i];
    const size_t bytes = cuda->source.chunk_bytes;

    if (!chunk->is_owned) {
        chunk->is_owned =
            is_done(cuda, ptac_cuda.memory_create(&chunk->handle, bytes,
                                                  &cuda->device->prop, 0));
        cuda->source.n_created += chunk->is_owned;
    }
    if (chunk->is_owned && !chunk->is_mapped)
        chunk->is_mapped =
            is_done(cuda, ptac_cuda.memory_map(address_of(cuda, i), bytes, 0,
                                               chunk->handle, 0));
    return chunk->is_mapped;
}

static bool commit(ptac_source *source, uintptr_t at, size_t bytes)
{
    ptac_source_cuda *cuda = cuda_of(source);
    const size_t first = (at - cuda->base) / source->chunk_bytes;
    const size_t end = first + bytes / source->chunk_bytes;
    size_t i = first;

    while (i < end && take(cuda, i))
        i++;
    if (i == end &&
        is_done(cuda, ptac_cuda.memory_access(at, bytes, &cuda->device->access, 1)))
        return true;

    const cu_result reason = cuda->error;

    for (i = first; i < end; i++)
        give_back(cuda, i);
    cuda->error = reason;
    return false;
}

static bool release(ptac_source *source, uintptr_t at, size_t bytes)
{
    ptac_source_cuda *cuda = cuda_of(source);
    const size_t first = (at - cuda->base) / source->chunk_bytes;

    for (size_t i = first; i < first + bytes / source->chunk_bytes; i++)
        give_back(cuda, i);
    return true;
}

void ptac_source_cuda_init(ptac_source_cuda *cuda, const ptac_cuda_device *device,
                           size_t chunk_bytes)
{
    *cuda = (ptac_source_cuda){
        .source = {chunk_bytes, reserve, unreserve, commit, release},
        .device = device,
    };
}
