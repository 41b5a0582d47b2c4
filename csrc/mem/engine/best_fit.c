/*
 * best_fit.c - the smallest free block that is large enough, or nearly so, in O(1).
 *
 * TLSF takes any block of the next class up. We look through the first few of the
 * request's own class as well, and take the smallest of them, which on traces of
 * training comes within a percent of an exact best fit. Of equal blocks the one freed
 * last is taken: it is still in the cache.
 */
#include "mem/engine/policy.h"
#include "mem/engine/size_classes.h"

enum {
    N_LOOK = 16, /* blocks of a class looked at */
};

/* The smallest of the first few that are large enough. */
static ptac_block *best_of(ptac_block *head, size_t bytes)
{
    ptac_block *best = NULL;
    int n = 0;

    for (ptac_block *b = head; b && n < N_LOOK; b = b->next, n++) {
        if (b->bytes == bytes)
            return b;
        if (b->bytes > bytes && (!best || b->bytes < best->bytes))
            best = b;
    }
    return best;
}

static ptac_block *find(void *index, size_t bytes)
{
    const ptac_size_classes *lists = index;
    const int own = ptac_size_class(bytes);
    ptac_block *found = best_of(lists->heads[own], bytes);

    if (!found) {
        const int next = ptac_size_next(lists, own + 1);

        found = next < 0 ? NULL : best_of(lists->heads[next], bytes);
    }
    return found;
}

PTAC_POLICY(best_fit, sizeof(ptac_size_classes), false, ptac_size_classes_add,
            ptac_size_classes_drop, find)
