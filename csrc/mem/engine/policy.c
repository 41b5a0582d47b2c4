/*
 * policy.c - the list of placement policies, in the order of their names; and blocks
 * into and out of lists by size, for the policies that keep such lists.
 */
#include "mem/engine/policy.h"
#include "mem/engine/size_classes.h"

#include <string.h>

static const ptac_policy *rows[PTAC_MAX_POLICIES];
static int n_rows;

void ptac_policy_register(const ptac_policy *row)
{
    int i = n_rows;

    if (n_rows == PTAC_MAX_POLICIES)
        return;
    for (; i > 0 && strcmp(rows[i - 1]->name, row->name) > 0; i--)
        rows[i] = rows[i - 1];
    rows[i] = row;
    n_rows++;
}

const ptac_policy *ptac_policy_find(const char *name)
{
    for (int i = 0; i < n_rows; i++)
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    return NULL;
}

const ptac_policy *ptac_policy_at(int i)
{
    return i >= 0 && i < n_rows ? rows[i] : NULL;
}

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
