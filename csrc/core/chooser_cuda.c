/*
 * chooser_cuda.c - which row serves a call on a CUDA device, where no table is asked.
 *
 * A row that needs fewer launches and moves fewer bytes than stock, at equal
 * arithmetic, cannot lose: it serves unmeasured. Rows of which that is not known ask a
 * table (asks_table) and wait for one.
 */
#include "core/chooser.h"

#include <string.h>

static ptac_level most = PTAC_CLOSE;

void ptac_chooser_set_level(ptac_level level)
{
    __atomic_store_n(&most, level, __ATOMIC_RELAXED);
}

/* Quantization, which is asked for by name, carries a bound of its own. */
static bool is_within_level(const ptac_kernel *row)
{
    return row->level <= __atomic_load_n(&most, __ATOMIC_RELAXED) ||
           strcmp(ptac_op_switch(row->op), PTAC_SWITCH_QUANTIZATION) == 0;
}

static ptac_reason ask(const ptac_kernel *row, const ptac_call *call)
{
    if (row->asks_table)
        return PTAC_NOT_FASTER;
    if (!is_within_level(row))
        return PTAC_NUMERICS;
    if (ptac_chooser_is_quarantined(row))
        return PTAC_QUARANTINED;
    return row->accepts(call);
}

const ptac_kernel *ptac_select_on_cuda(const ptac_call *call, ptac_reason *why)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(PTAC_ON_CUDA, call->op, &n);

    *why = ptac_chooser_gate_on(PTAC_ON_CUDA, call->op);
    if (!*why && call->inputs[0].n_elements == 0)
        *why = PTAC_EMPTY;
    if (*why)
        return NULL;
    *why = PTAC_DEVICE;
    for (int i = 0; i < n; i++) {
        *why = ask(rows[i], call);
        if (!*why)
            return rows[i];
    }
    return NULL;
}
