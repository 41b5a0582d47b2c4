/*
 * reclaim_thread.h - a thread that looks after a pool once a second.
 *
 * It blocks all signals and sleeps otherwise. A forked child has none until it starts
 * one of its own.
 */
#ifndef PTAC_MEM_CPU_RECLAIM_THREAD_H
#define PTAC_MEM_CPU_RECLAIM_THREAD_H

#include <stdbool.h>

/*
 * tick is called once a second until it returns false, before which it has cleared
 * is_running. A lock of the pool's guards that, and every start.
 */
typedef struct ptac_reclaim_thread {
    bool (*tick)(void);
    bool is_running;
} ptac_reclaim_thread;

/* Starts it unless it runs; false when there can be no thread. */
bool ptac_reclaim_thread_start(ptac_reclaim_thread *reclaimer);

#endif
