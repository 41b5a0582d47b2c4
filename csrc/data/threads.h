/*
 * threads.h - loops in several threads, but for forked processes.
 *
 * Workers of data loaders are forked. Teams of OpenMP do not survive that: a loop that
 * asked for one would wait for ever.
 */
#ifndef PTAC_DATA_THREADS_H
#define PTAC_DATA_THREADS_H

#include "core/host.h"

/* As ptac_parallel_for(); by the calling thread alone in a process that was forked. */
void ptac_data_parallel_for(int64_t begin, int64_t end, int64_t grain,
                            ptac_range_fn body, void *context);

#endif
