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

/*
 * In use from one event to another, which it ends at. In steps that repeat, one that
 * ends before it begins lives to the end of a step and on into the next.
 */
typedef struct ptac_lifetime {
    size_t bytes;
    uint32_t from, to;
    size_t offset; /* filled in */
} ptac_lifetime;

/*
 * Places them; offsets are multiples of the granule, a power of two. Returns the height
 * of all together, or SIZE_MAX without memory for the work. O(n^2) for n that overlap.
 */
size_t ptac_plan_place(ptac_lifetime *blocks, size_t n, size_t granule);

#endif
