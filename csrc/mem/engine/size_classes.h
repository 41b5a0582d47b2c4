/*
 * size_classes.h - free blocks in lists by size, with bitmaps of those that hold any.
 *
 * Two-level segregated lists (Masmano, Ripoll, Crespo, Real: TLSF, ECRTS 2004): a class
 * for every 1/32 of a power of two. Adding, dropping and finding the next class that
 * has a block are O(1). Policies search them as they see fit.
 */
#ifndef PTAC_MEM_ENGINE_SIZE_CLASSES_H
#define PTAC_MEM_ENGINE_SIZE_CLASSES_H

#include "mem/engine/block.h"

enum {
    PTAC_LOG2_SUB = 5,
    PTAC_N_SUB = 1 << PTAC_LOG2_SUB,
    PTAC_N_SIZE_CLASSES = 64 * PTAC_N_SUB,
};

typedef struct ptac_size_classes {
    uint64_t powers;                        /* bit p: powers of two with a block */
    uint32_t subs[64];                      /* bit s: classes with a block */
    ptac_block *heads[PTAC_N_SIZE_CLASSES]; /* the block added last */
} ptac_size_classes;

/* The class that holds blocks of so many bytes, at least 32; larger ones follow. */
static inline int ptac_size_class(size_t bytes)
{
    const int power = 63 - __builtin_clzll(bytes | PTAC_N_SUB);

    return power * PTAC_N_SUB +
           ((int)(bytes >> (power - PTAC_LOG2_SUB)) & (PTAC_N_SUB - 1));
}

/* The next class from this one on that is not empty; -1 when there is none. */
static inline int ptac_size_next(const ptac_size_classes *lists, int class)
{
    const int power = class / PTAC_N_SUB;

    if (class >= PTAC_N_SIZE_CLASSES)
        return -1;

    const uint32_t subs = lists->subs[power] & (UINT32_MAX << (class % PTAC_N_SUB));

    if (subs)
        return power * PTAC_N_SUB + __builtin_ctz(subs);

    const uint64_t powers =
        power == 63 ? 0 : lists->powers & (UINT64_MAX << (power + 1));

    if (!powers)
        return -1;

    const int larger = __builtin_ctzll(powers);

    return larger * PTAC_N_SUB + __builtin_ctz(lists->subs[larger]);
}

/* For the rows of policies, whose index begins with such lists. */
void ptac_size_classes_add(void *index, ptac_block *block);
void ptac_size_classes_drop(void *index, ptac_block *block);

#endif
