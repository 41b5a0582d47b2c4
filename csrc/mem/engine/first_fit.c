/*
 * first_fit.c - the lowest free block that is large enough.
 *
 * A treap (Seidel, Aragon 1996) of the free blocks by address, each node with the
 * largest size below it; priorities are mixed from addresses, so the same requests
 * always give the same tree. Expected O(log n) in the number of free blocks.
 *
 * The index is the root. Of a listed block, previous lies below it, next above it.
 */
#include "mem/engine/policy.h"

static size_t largest(const ptac_block *b)
{
    return b ? b->requested : 0;
}

static uint64_t priority(const ptac_block *b)
{
    uint64_t z = (uint64_t)b->address * UINT64_C(0xBF58476D1CE4E5B9);

    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void update(ptac_block *b)
{
    const size_t below = largest(b->previous), above = largest(b->next);
    const size_t most = below > above ? below : above;

    b->requested = most > b->bytes ? most : b->bytes;
}

/* Cuts a tree into what lies below this address and the rest. */
static void split(ptac_block *tree, uintptr_t address, ptac_block **low,
                  ptac_block **high)
{
    if (!tree) {
        *low = *high = NULL;
    } else if (tree->address < address) {
        split(tree->next, address, &tree->next, high);
        *low = tree;
        update(tree);
    } else {
        split(tree->previous, address, low, &tree->previous);
        *high = tree;
        update(tree);
    }
}

/* Joins trees of which the first lies wholly below the second. */
static ptac_block *join(ptac_block *low, ptac_block *high)
{
    if (!low || !high)
        return low ? low : high;
    if (priority(low) > priority(high)) {
        low->next = join(low->next, high);
        update(low);
        return low;
    }
    high->previous = join(low, high->previous);
    update(high);
    return high;
}

static void add(void *index, ptac_block *block)
{
    ptac_block **root = index, *low, *high;

    block->previous = block->next = NULL;
    update(block);
    split(*root, block->address, &low, &high);
    *root = join(join(low, block), high);
}

static void drop(void *index, ptac_block *block)
{
    ptac_block **root = index, *low, *rest, *self, *high;

    split(*root, block->address, &low, &rest);
    split(rest, block->address + 1, &self, &high);
    *root = join(low, high);
}

static ptac_block *find(void *index, size_t bytes)
{
    ptac_block *b = *(ptac_block **)index;

    if (largest(b) < bytes)
        return NULL;
    for (;;) {
        if (largest(b->previous) >= bytes)
            b = b->previous;
        else if (b->bytes >= bytes)
            return b;
        else
            b = b->next;
    }
}

PTAC_POLICY(first_fit, sizeof(ptac_block *), true, add, drop, find)
