/*
 * registry.c - the table of rows, an array an operator.
 */
#include "core/kernel.h"

#include "core/debug.h"

#include <stdlib.h>
#include <string.h>

typedef struct op_entry {
    const ptac_op_shapes *shapes;
    struct {
        const ptac_kernel *rows[PTAC_MAX_ROWS];
        int n;
    } on[PTAC_N_DEVICES];
} op_entry;

static op_entry entries[PTAC_N_OPS];

static const struct {
    const char *name, *owner;
} ops[PTAC_N_OPS] = {
#define X(name, text, owner) {text, PTAC_SWITCH_##owner},
    PTAC_OPERATORS(X)
#undef X
};

const char *ptac_op_switch(ptac_op op)
{
    return op < PTAC_N_OPS ? ops[op].owner : "unknown";
}

const char *ptac_op_name(ptac_op op)
{
    return op < PTAC_N_OPS ? ops[op].name : "unknown";
}

ptac_op ptac_op_find(const char *name)
{
    int op = 0;

    while (op < PTAC_N_OPS && strcmp(ops[op].name, name) != 0)
        op++;
    return (ptac_op)op;
}

void ptac_registry_add(const ptac_kernel *kernel)
{
    op_entry *entry = &entries[kernel->op];
    int *n = &entry->on[kernel->device].n;

    PTAC_ASSERT(kernel->op < PTAC_N_OPS && kernel->device < PTAC_N_DEVICES);
    PTAC_ASSERT(kernel->name && kernel->name[0]);
    PTAC_ASSERT(kernel->level <= PTAC_FAST);
    PTAC_ASSERT(kernel->accepts && kernel->run);
    PTAC_ASSERT(!kernel->in_bf16 || kernel->level == PTAC_FAST);
    /* A table that is too small is a mistake of the build, not of a user. */
    if (*n == PTAC_MAX_ROWS)
        abort();

    const ptac_kernel **rows = entry->on[kernel->device].rows;
    int place = (*n)++;

    for (; kernel->device && place && rows[place - 1]->rank < kernel->rank; place--)
        rows[place] = rows[place - 1];
    rows[place] = kernel;
}

void ptac_registry_add_shapes(const ptac_op_shapes *shapes)
{
    PTAC_ASSERT(shapes->op < PTAC_N_OPS && shapes->classify && shapes->kinds[0]);
    PTAC_ASSERT(shapes->typed_input >= 0 && shapes->typed_input < PTAC_MAX_INPUTS);
    PTAC_ASSERT(!entries[shapes->op].shapes); /* one an operator */
    entries[shapes->op].shapes = shapes;
}

const ptac_kernel *const *ptac_registry_rows_on(ptac_device device, ptac_op op, int *n)
{
    *n = entries[op].on[device].n;
    return entries[op].on[device].rows;
}

const ptac_kernel *const *ptac_registry_rows(ptac_op op, int *n)
{
    return ptac_registry_rows_on(PTAC_ON_CPU, op, n);
}

ptac_reason ptac_classify_elements(const ptac_call *call, ptac_shape *shape)
{
    const ptac_view *x = &call->inputs[0];

    if (x->dtype != PTAC_F32 && x->dtype != PTAC_BF16 && x->dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    shape->kind = 0;
    shape->work = x->n_elements;
    return PTAC_TAKE;
}

ptac_reason ptac_accept_all(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

const ptac_op_shapes *ptac_registry_shapes(ptac_op op)
{
    return entries[op].shapes;
}

const ptac_kernel *ptac_registry_find(ptac_op op, const char *name)
{
    return ptac_registry_find_on(PTAC_ON_CPU, op, name);
}

const ptac_kernel *ptac_registry_find_on(ptac_device device, ptac_op op,
                                         const char *name)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(device, op, &n);

    for (int i = 0; i < n; i++)
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    return NULL;
}

static bool is_before(const ptac_kernel *row, const ptac_kernel *other)
{
    return row->needs != other->needs ? row->needs > other->needs
                                      : row->rank > other->rank;
}

const ptac_kernel *ptac_registry_preferred(ptac_op op, ptac_level most)
{
    const uint32_t have = ptac_cpu_features();
    const ptac_kernel *best = NULL;
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows(op, &n);

    for (int i = 0; i < n; i++) {
        const ptac_kernel *row = rows[i];

        if (!(row->needs & ~have) && !row->asks_table && !row->is_definition &&
            row->level <= most && (!best || is_before(row, best)))
            best = row;
    }
    return best;
}
