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
 * tick is called once a second until it returns false; false when there can be no
 * thread. To be called without a lock: the thread's stack may come from the heap.
 */
bool ptac_reclaim_thread_start(bool (*tick)(void));

#endif
