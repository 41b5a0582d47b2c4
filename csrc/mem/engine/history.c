/*
 * history.c - the ring of a pool's last events.
 */
#include "mem/engine/history.h"

#include <sys/mman.h>
#include <time.h>

bool ptac_history_open(ptac_history *history, size_t n)
{
    ptac_event *ring = NULL;

    if (n == history->n_slots)
        return true;
    if (n > SIZE_MAX / sizeof *ring)
        return false;
    if (n)
        ring = mmap(NULL, n * sizeof *ring, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED)
        return false;
    ptac_history_close(history);
    *history = (ptac_history){.ring = ring, .n_slots = n};
    return true;
}

void ptac_history_close(ptac_history *history)
{
    if (history->ring)
        munmap(history->ring, history->n_slots * sizeof *history->ring);
    *history = (ptac_history){0};
}

void ptac_history_write(ptac_history *history, ptac_event_kind kind, uintptr_t address,
                        size_t bytes, uintptr_t stream)
{
    ptac_event *slot = &history->ring[history->n_written++ % history->n_slots];
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    *slot = (ptac_event){
        .t_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec,
        .address = address,
        .bytes = bytes,
        .stream = stream,
        .kind = kind,
    };
}

size_t ptac_history_copy(const ptac_history *history, ptac_event *events, size_t n)
{
    const uint64_t kept =
        history->n_written < history->n_slots ? history->n_written : history->n_slots;
    const uint64_t copied = kept < n ? kept : n;

    for (uint64_t i = 0; i < copied; i++)
        events[i] = history->ring[(history->n_written - copied + i) % history->n_slots];
    return (size_t)copied;
}
