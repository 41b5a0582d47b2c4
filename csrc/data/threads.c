/*
 * threads.c - loops in several threads, but for forked processes.
 */
#include "data/threads.h"

#include <pthread.h>

static bool is_forked;

static void note_fork(void)
{
    is_forked = true;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

void ptac_data_parallel_for(int64_t begin, int64_t end, int64_t grain,
                            ptac_range_fn body, void *context)
{
    if (is_forked)
        body(begin, end, context);
    else
        ptac_parallel_for(begin, end, grain, body, context);
}
