/*
 * size_classes.c - blocks into and out of their lists.
 */
#include "mem/engine/size_classes.h"

void ptac_size_classes_add(void *index, ptac_block *block)
{
    ptac_size_classes *lists = index;
    const int class = ptac_size_class(block->bytes);

    block->previous = NULL;
    block->next = lists->heads[class];
    if (block->next)
        block->next->previous = block;
    lists->heads[class] = block;
    lists->subs[class / PTAC_N_SUB] |= UINT32_C(1) << (class % PTAC_N_SUB);
    lists->powers |= UINT64_C(1) << (class / PTAC_N_SUB);
}

void ptac_size_classes_drop(void *index, ptac_block *block)
{
    ptac_size_classes *lists = index;

    if (block->next)
        block->next->previous = block->previous;
    if (block->previous) {
        block->previous->next = block->next;
        return;
    }

    const int class = ptac_size_class(block->bytes), power = class / PTAC_N_SUB;

    lists->heads[class] = block->next;
    if (block->next)
        return;
    lists->subs[power] &= ~(UINT32_C(1) << (class % PTAC_N_SUB));
    if (!lists->subs[power])
        lists->powers &= ~(UINT64_C(1) << power);
}
