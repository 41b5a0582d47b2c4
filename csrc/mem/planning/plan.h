/*
 * plan.h - offsets for blocks whose lifetimes are known beforehand.
 *
 * Greedy by size (Pisarchyk, Lee: Efficient Memory Management for Deep Neural Net
 * Inference, 2020): the largest first, each as low as those already placed allow that
 * live at the same time. Where that is above the live peak, which no placement can be
 * below, the blocks that reached highest go first, and so on for some tries.
 */
#ifndef PTAC_MEM_PLANNING_PLAN_H
#define PTAC_MEM_PLANNING_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PTAC_PLAN_WORDS = 3, /* of work: so many a block, and one an event */
};

#define PTAC_NOT_PLACED UINT32_MAX

/*
 * In use from one event to another, which it ends at. In steps that repeat, one that
 * ends before it begins lives to the end of a step and on into the next. One that ends
 * at PTAC_NOT_PLACED is left out, and its offset is SIZE_MAX.
 */
typedef struct ptac_lifetime {
    size_t bytes;
    uint32_t from, to;
    size_t offset; /* filled in */
} ptac_lifetime;

typedef union ptac_plan_word {
    void *block;
    size_t number;
} ptac_plan_word;

/*
 * Places them; offsets are multiples of the granule, a power of two. Returns the height
 * of all together. Events are 0 to n_events - 1. Allocates nothing: work is room for
 * PTAC_PLAN_WORDS * n + n_events words. O(n^2) for n that overlap.
 */
size_t ptac_plan_place(ptac_lifetime *blocks, size_t n, size_t granule, size_t n_events,
                       ptac_plan_word *work);

/* Sorts in place without memory, as qsort() may not (heapsort: Knuth, TAOCP 5.2.3). */
void ptac_sort(void **items, size_t n, bool (*is_before)(const void *a, const void *b));

#endif
