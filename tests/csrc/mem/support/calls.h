/*
 * calls.h - what the engine asks of the system: counted, refused, answered by the test.
 *
 * The programs are linked with --wrap for these functions (the list is in
 * test_memory_engine.py), so this is about calls from our own objects alone.
 */
#ifndef PTAC_TESTS_MEMORY_CALLS_H
#define PTAC_TESTS_MEMORY_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(function): those that may be refused */
#define FAILING_CALLS(X)                                                               \
    X(mmap)                                                                            \
    X(munmap)                                                                          \
    X(mprotect)                                                                        \
    X(madvise)                                                                         \
    X(pthread_create)

typedef enum call_kind {
#define X(function) CALL_##function,
    FAILING_CALLS(X)
#undef X
        N_CALLS
} call_kind;

const char *call_name(call_kind kind);

/* The n-th call of this kind from now on fails: that one alone, or all since. */
void calls_refuse(call_kind kind, int n, bool and_later);
/* None fails any more. */
void calls_allow(void);
/* Calls of this kind since then, and whether one was refused. */
int calls_made(call_kind kind);
bool calls_were_refused(void);

/* Calls that allocate, or may, made while somebody had the CPU pool's lock. */
int calls_under_lock(void);

/* mmap of more bytes than these fails, as under a limit of addresses. */
void calls_limit_addresses(size_t bytes);

/* Bytes that mmap gave and munmap has not taken. */
int64_t calls_bytes_mapped(void);

/*
 * Sleeping threads, which is the reclaimer, wait for calls_tick() from now on: it lets
 * the sleeper go on and returns when it sleeps again (true) or has ended (false).
 */
void calls_stop_clock(void);
bool calls_tick(void);
/* Threads of the engine that have not ended. */
int calls_n_threads(void);

/* Absolute paths are read below this folder from now on; NULL: as they are. */
void calls_pretend_files(const char *folder);
/* The machine has so much memory; 0: what it has. */
void calls_pretend_memory(size_t bytes);

#endif
