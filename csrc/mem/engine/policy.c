/*
 * policy.c - the list of placement policies, in the order of their names.
 */
#include "mem/engine/policy.h"

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
