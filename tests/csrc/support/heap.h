/*
 * heap.h - what the core asks of the heap, counted, and refused on demand.
 *
 * The unit tests are linked with --wrap for these functions, so this is about calls
 * from our own objects alone.
 */
#ifndef PTAC_TESTS_HEAP_H
#define PTAC_TESTS_HEAP_H

typedef struct heap_counts {
    int n_callocs, n_aligned_allocs, n_frees;
} heap_counts;

heap_counts heap_count(void);

/* While refused, allocation fails in the calling thread. */
void heap_refuse(int refused);

#endif
