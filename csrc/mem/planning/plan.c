/*
 * plan.c - greedy placement by size, tried again with what stuck out placed first.
 */
#include "mem/planning/plan.h"

#include "mem/engine/block.h"

#include <string.h>

enum {
    MOST_COMPARISONS = 20 << 20, /* of blocks: a few hundredths of a second */
    MOST_TRIES = 200,
};

void ptac_sort(void **items, size_t n, bool (*is_before)(const void *a, const void *b))
{
    for (size_t root = n / 2, end = n, child; end > 1;) {
        void *item;
        size_t hole;

        if (root > 0) {
            item = items[--root];
        } else {
            item = items[--end];
            items[end] = items[0];
        }
        for (hole = root; (child = 2 * hole + 1) < end; hole = child) {
            child += child + 1 < end && is_before(items[child], items[child + 1]);
            if (!is_before(item, items[child]))
                break;
            items[hole] = items[child];
        }
        items[hole] = item;
    }
}

static bool is_larger(const void *a, const void *b)
{
    const ptac_lifetime *x = a, *y = b;

    return x->bytes != y->bytes ? x->bytes > y->bytes : x->from < y->from;
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
static size_t lowest_gap(void *const *placed, size_t n, const ptac_lifetime *block,
                         size_t granule)
{
    size_t offset = 0;

    for (size_t i = 0; i < n; i++) {
        const ptac_lifetime *other = placed[i];
        const size_t end = other->offset + ptac_round_up(other->bytes, granule);

        if (!meet(block, other))
            continue;
        if (other->offset >= offset && other->offset - offset >= block->bytes)
            break;
        if (offset < end)
            offset = end;
    }
    return offset;
}

/* Places all of them in this order; the height. */
static size_t place_in_order(void *const *order, void **placed, size_t n,
                             size_t granule)
{
    size_t height = 0;

    for (size_t i = 0; i < n; i++) {
        ptac_lifetime *block = order[i];
        size_t end, at = i;

        block->offset = lowest_gap(placed, i, block, granule);
        for (; at > 0; at--) {
            placed[at] = placed[at - 1];
            if (((ptac_lifetime *)placed[at])->offset <= block->offset)
                break;
        }
        placed[at] = block;
        end = block->offset + ptac_round_up(block->bytes, granule);
        height = end > height ? end : height;
    }
    return height;
}

/* The blocks that reach the height come first from now on, the others as before. */
static void put_highest_first(void **order, void **spare, size_t n, size_t height,
                              size_t granule)
{
    size_t n_first = 0, n_rest = 0;

    for (size_t i = 0; i < n; i++) {
        const ptac_lifetime *block = order[i];

        if (block->offset + ptac_round_up(block->bytes, granule) == height)
            order[n_first++] = order[i];
        else
            spare[n_rest++] = order[i];
    }
    memcpy(order + n_first, spare, n_rest * sizeof *order);
}

/*
 * The most bytes in use at a time, below which no placement can stay. What ends where
 * another begins does not meet it. change: by how much each event changes the sum,
 * modulo 2^64.
 */
static size_t live_peak(void *const *order, size_t n, size_t granule, size_t *change,
                        size_t n_events)
{
    size_t live = 0, most = 0;

    memset(change, 0, n_events * sizeof *change);
    for (size_t i = 0; i < n; i++) {
        const ptac_lifetime *b = order[i];
        const size_t bytes = ptac_round_up(b->bytes, granule);

        change[b->from] += bytes;
        change[b->to] -= bytes;
        live += b->to < b->from ? bytes : 0;
    }
    for (size_t i = 0; i < n_events; i++) {
        live += change[i];
        most = live > most ? live : most;
    }
    return most;
}

size_t ptac_plan_place(ptac_lifetime *blocks, size_t n, size_t granule, size_t n_events,
                       ptac_plan_word *work)
{
    size_t *kept = (size_t *)(work + 2 * n), n_placed = 0, best = SIZE_MAX, least,
           n_tries;
    void **order = (void **)work, **spare = order + n;

    for (size_t i = 0; i < n; i++) {
        kept[i] = blocks[i].offset = SIZE_MAX;
        if (blocks[i].to != PTAC_NOT_PLACED)
            order[n_placed++] = &blocks[i];
    }
    least = live_peak(order, n_placed, granule, kept + n, n_events);
    n_tries = 1 + MOST_COMPARISONS / (n_placed * n_placed + 1);
    ptac_sort(order, n_placed, is_larger);
    for (size_t try = 0; try < n_tries && try < MOST_TRIES && best > least; try++) {
        const size_t height = place_in_order(order, spare, n_placed, granule);

        for (size_t i = 0; height < best && i < n; i++)
            kept[i] = blocks[i].offset;
        best = height < best ? height : best;
        put_highest_first(order, spare, n_placed, height, granule);
    }
    for (size_t i = 0; i < n; i++)
        blocks[i].offset = kept[i];
    return best;
}
