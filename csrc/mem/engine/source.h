/*
 * source.h - where an arena's memory comes from: addresses first, memory on demand.
 *
 * The engine reserves a range of addresses once, has memory put behind parts of it as
 * they are needed, and gives memory back without giving up the addresses. It never
 * reads or writes what it manages, so the memory may be any device's.
 */
#ifndef PTAC_MEM_ENGINE_SOURCE_H
#define PTAC_MEM_ENGINE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sources have the parameters that arenas give them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/*
 * All sizes and addresses that cross this line are multiples of chunk_bytes, a power
 * of two. A call that returns false has changed nothing. Called with the pool's lock
 * held; may not call back.
 */
typedef struct ptac_source {
    size_t chunk_bytes;

    /* A range of addresses without memory; 0 when there is none of this size. */
    uintptr_t (*reserve)(struct ptac_source *source, size_t bytes);
    /* Ends the range, which has no memory left where the source counts it. */
    void (*unreserve)(struct ptac_source *source, uintptr_t base, size_t bytes);

    /* Make a part of the range usable; its chunks have no memory yet. */
    bool (*commit)(struct ptac_source *source, uintptr_t at, size_t bytes);
    /* Give back the memory of committed chunks; contents are lost, in part if false. */
    bool (*release)(struct ptac_source *source, uintptr_t at, size_t bytes);
    /* Ask for huge pages behind a part of the range; NULL where there are none. */
    bool (*want_huge)(struct ptac_source *source, uintptr_t at, size_t bytes);
    /* Goes with it: have none come any more. */
    bool (*want_small)(struct ptac_source *source, uintptr_t at, size_t bytes);
    /* Likewise: whether so much has memory that a huge page adds little. */
    bool (*is_touched)(struct ptac_source *source, uintptr_t at, size_t bytes);
    /* Have memory behind committed chunks now rather than at first touch; or NULL. */
    bool (*populate)(struct ptac_source *source, uintptr_t at, size_t bytes);

    int64_t n_created, n_released; /* handles, of a device that has such */
} ptac_source;

#endif
