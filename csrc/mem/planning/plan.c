/*
 * plan.c - greedy placement by size, tried again with what stuck out placed first.
 */
#include "mem/planning/plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_COMPARISONS = 20 << 20, /* of blocks: a few hundredths of a second */
    MOST_TRIES = 200,
};

static int by_size(const void *a, const void *b)
{
    const ptac_lifetime *x = *(ptac_lifetime *const *)a;
    const ptac_lifetime *y = *(ptac_lifetime *const *)b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static size_t up(size_t bytes, size_t granule)
{
    return (bytes + granule - 1) & ~(granule - 1);
}

/* Whether two are in use at the same time. */
static bool meet(const ptac_lifetime *a, const ptac_lifetime *b)
{
    const bool a_wraps = a->to < a->from, b_wraps = b->to < b->from;

    if (a_wraps && b_wraps)
        return true;
    if (a_wraps)
        return b->from < a->to || b->to > a->from;
    if (b_wraps)
        return a->from < b->to || a->to > b->from;
    return a->from < b->to && b->from < a->to;
}

/*
 * The lowest offset for a block: placed[] are n earlier ones by their offsets, so that
 * the first gap that is wide enough is the lowest.
 */
static size_t lowest_gap(ptac_lifetime *const *placed, size_t n,
                         const ptac_lifetime *block, size_t granule)
{
    size_t offset = 0;

    for (size_t i = 0; i < n; i++) {
        const ptac_lifetime *other = placed[i];

        if (!meet(block, other))
            continue;
        if (other->offset >= offset && other->offset - offset >= block->bytes)
            break;
        if (offset < other->offset + up(other->bytes, granule))
            offset = other->offset + up(other->bytes, granule);
    }
    return offset;
}

static void insert_by_offset(ptac_lifetime **placed, size_t n, ptac_lifetime *block)
{
    for (; n > 0 && placed[n - 1]->offset > block->offset; n--)
        placed[n] = placed[n - 1];
    placed[n] = block;
}

/* Places all of them in this order; the height. */
static size_t place_in_order(ptac_lifetime *const *order, ptac_lifetime **placed,
                             size_t n, size_t granule)
{
    size_t height = 0;

    for (size_t i = 0; i < n; i++) {
        ptac_lifetime *block = order[i];
        size_t end;

        block->offset = lowest_gap(placed, i, block, granule);
        insert_by_offset(placed, i, block);
        end = block->offset + up(block->bytes, granule);
        height = end > height ? end : height;
    }
    return height;
}

/* The blocks that reach the height come first from now on, the others as before. */
static void put_highest_first(ptac_lifetime **order, ptac_lifetime **spare, size_t n,
                              size_t height, size_t granule)
{
    size_t n_first = 0, n_rest = 0;

    for (size_t i = 0; i < n; i++) {
        if (order[i]->offset + up(order[i]->bytes, granule) == height)
            order[n_first++] = order[i];
        else
            spare[n_rest++] = order[i];
    }
    memcpy(order + n_first, spare, n_rest * sizeof *order);
}

/* Where a block's use begins or ends. */
typedef struct edge {
    size_t bytes;
    uint32_t at;
    bool begins;
} edge;

/* Ends come first: what ends where another begins does not meet it. */
static int by_time(const void *a, const void *b)
{
    const edge *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->begins - y->begins;
}

/*
 * The most bytes in use at a time, below which no placement can stay; 0 without memory
 * to find out.
 */
static size_t live_peak(const ptac_lifetime *blocks, size_t n, size_t granule)
{
    edge *edges = malloc((2 * n + 1) * sizeof *edges);
    size_t n_edges = 0, live = 0, most = 0;

    for (size_t i = 0; edges && i < n; i++) {
        const ptac_lifetime *b = &blocks[i];
        const size_t bytes = up(b->bytes, granule);

        if (b->from == b->to)
            continue;
        edges[n_edges++] = (edge){.bytes = bytes, .at = b->from, .begins = true};
        edges[n_edges++] = (edge){.bytes = bytes, .at = b->to};
        live += b->to < b->from ? bytes : 0;
    }
    if (edges)
        qsort(edges, n_edges, sizeof *edges, by_time);
    for (size_t i = 0; i < n_edges; i++) {
        live = edges[i].begins ? live + edges[i].bytes : live - edges[i].bytes;
        most = live > most ? live : most;
    }
    free(edges);
    return most;
}

static void keep_offsets(const ptac_lifetime *blocks, size_t n, size_t *offsets)
{
    for (size_t i = 0; i < n; i++)
        offsets[i] = blocks[i].offset;
}

size_t ptac_plan_place(ptac_lifetime *blocks, size_t n, size_t granule)
{
    ptac_lifetime **order = calloc(2 * n + 1, sizeof *order);
    size_t *offsets = calloc(n + 1, sizeof *offsets);
    size_t best = SIZE_MAX;

    if (order && offsets) {
        const size_t least = live_peak(blocks, n, granule);
        const size_t n_tries = 1 + MOST_COMPARISONS / (n * n + 1);

        for (size_t i = 0; i < n; i++)
            order[i] = &blocks[i];
        qsort(order, n, sizeof *order, by_size);
        for (size_t try = 0; try < n_tries && try < MOST_TRIES && best > least; try++) {
            const size_t height = place_in_order(order, order + n, n, granule);

            if (height < best) {
                best = height;
                keep_offsets(blocks, n, offsets);
            }
            put_highest_first(order, order + n, n, height, granule);
        }
        for (size_t i = 0; i < n; i++)
            blocks[i].offset = offsets[i];
    }
    free(offsets);
    free(order);
    return best;
}
