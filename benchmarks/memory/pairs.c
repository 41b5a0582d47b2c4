/*
 * pairs.c - how long the memory pool takes for a block and its release.
 */
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* Nanoseconds for a pair, of n that take and give are called for; -1: no memory. */
double pair_ns(void *(*take)(size_t, bool *), bool (*give)(void *), size_t bytes,
               long n)
{
    struct timespec from, to;
    bool is_refused;

    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = 0; i < n; i++) {
        void *memory = take(bytes, &is_refused);

        if (!memory)
            return -1;
        give(memory);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 +
            (double)(to.tv_nsec - from.tv_nsec)) /
           (double)n;
}
