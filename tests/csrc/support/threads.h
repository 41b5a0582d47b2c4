/*
 * threads.h - a host with threads of its own, for rows that share work out.
 */
#ifndef PTAC_TESTS_THREADS_H
#define PTAC_TESTS_THREADS_H

#include "random.h"

enum {
    MAX_THREADS = 3,
};

/*
 * From now on ptac_the_host has n_threads threads. Work is cut either evenly, as torch
 * does, or into crumbs of random length: a row may count on neither. 0 threads: the
 * core's own serial host again. What else the host lends stays as it is.
 */
void threads_install(int n_threads, rng *r);

/* How often work was shared out since the program started. */
int64_t threads_n_shared(void);

#endif
