/*
 * history.h - the last events of a pool, for snapshots and replay.
 *
 * A ring that the pool writes under its lock; nothing is kept until it has been opened.
 */
#ifndef PTAC_MEM_ENGINE_HISTORY_H
#define PTAC_MEM_ENGINE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, text in torch's snapshots) */
#define PTAC_EVENTS(X)                                                                 \
    X(ALLOC, "alloc")                                                                  \
    X(FREE_REQUESTED, "free_requested")                                                \
    X(FREE_COMPLETED, "free_completed")                                                \
    X(OOM, "oom")

typedef enum ptac_event_kind {
#define X(name, text) PTAC_EVENT_##name,
    PTAC_EVENTS(X)
#undef X
} ptac_event_kind;

typedef struct ptac_event {
    int64_t t_ns; /* CLOCK_REALTIME */
    uintptr_t address;
    size_t bytes;
    uintptr_t stream;
    uint32_t kind;
} ptac_event;

typedef struct ptac_history {
    ptac_event *ring;
    size_t n_slots;
    uint64_t n_written;
} ptac_history;

/* Keep the last n events from now on; 0 ends it. False without memory for them. */
bool ptac_history_open(ptac_history *history, size_t n);
void ptac_history_close(ptac_history *history);

/* Out of line: most pools keep none. */
void ptac_history_write(ptac_history *history, ptac_event_kind kind, uintptr_t address,
                        size_t bytes, uintptr_t stream);

/* The last events, at most n, the oldest first; how many. */
size_t ptac_history_copy(const ptac_history *history, ptac_event *events, size_t n);

static inline void ptac_history_note(ptac_history *history, ptac_event_kind kind,
                                     uintptr_t address, size_t bytes, uintptr_t stream)
{
    if (__builtin_expect(history->ring != NULL, 0))
        ptac_history_write(history, kind, address, bytes, stream);
}

#endif
