/*
 * first_fit.c - the lowest free block that is large enough.
 *
 * A treap (Seidel, Aragon 1996) of the free blocks by address, each node with the
 * largest size below it; priorities are mixed from addresses, so the same requests
 * always give the same tree. Expected O(log n) in the number of free blocks.
 */
#include "mem/engine/policy.h"

typedef struct treap {
    ptac_block *root;
} treap;

/* A listed block's own fields are the tree's. */
static ptac_block **left(ptac_block *b)
{
    return &b->previous;
}

static ptac_block **right(ptac_block *b)
{
    return &b->next;
}

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
    const size_t below = largest(*left(b)), above = largest(*right(b));
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
        split(*right(tree), address, right(tree), high);
        *low = tree;
        update(tree);
    } else {
        split(*left(tree), address, low, left(tree));
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
        *right(low) = join(*right(low), high);
        update(low);
        return low;
    }
    *left(high) = join(low, *left(high));
    update(high);
    return high;
}

static void add(void *index, ptac_block *block)
{
    treap *t = index;
    ptac_block *low, *high;

    *left(block) = *right(block) = NULL;
    update(block);
    split(t->root, block->address, &low, &high);
    t->root = join(join(low, block), high);
}

static void drop(void *index, ptac_block *block)
{
    treap *t = index;
    ptac_block *low, *rest, *self, *high;

    split(t->root, block->address, &low, &rest);
    split(rest, block->address + 1, &self, &high);
    t->root = join(low, high);
}

static ptac_block *find(void *index, size_t bytes)
{
    ptac_block *b = ((treap *)index)->root;

    if (largest(b) < bytes)
        return NULL;
    for (;;) {
        if (largest(*left(b)) >= bytes)
            b = *left(b);
        else if (b->bytes >= bytes)
            return b;
        else
            b = *right(b);
    }
}

PTAC_POLICY(first_fit, sizeof(treap), true, add, drop, find)
