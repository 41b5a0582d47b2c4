/*
 * chooser_cuda.c - which row serves a call on a CUDA device.
 *
 * A row that needs fewer launches and moves fewer bytes than stock, at equal
 * arithmetic, cannot lose: it serves unmeasured, and until a table of the call's device
 * has it slower. Rows of which that is not known ask a table (asks_table) and wait for
 * one.
 */
#include "core/chooser.h"

#include <string.h>

enum {
    MOST_DEVICES = 64, /* a bit each; calls on others ask no table */
};

static ptac_level most = PTAC_CLOSE;
static ptac_calibration *current;
static ptac_device_test *is_called;
static bool is_measuring;

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

void ptac_chooser_set_measuring(bool on)
{
    __atomic_store_n(&is_measuring, on, __ATOMIC_RELAXED);
}

ptac_status ptac_chooser_install_on_cuda(const ptac_point *points, int n_points,
                                         const char *device, ptac_device_test *test)
{
    PTAC_STORE(is_called, test);
    if (n_points)
        return ptac_calibration_replace(&current, points, n_points, device);
    ptac_calibration_drop(&current);
    return PTAC_OK;
}

/* The table, where it is meant for that device, which is asked once for its name. */
static const ptac_calibration *table_of(int device)
{
    ptac_calibration *now = PTAC_LOAD(current);
    uint64_t bit;

    if (!now || device < 0 || device >= MOST_DEVICES)
        return NULL;
    bit = UINT64_C(1) << device;
    if (!(PTAC_LOAD(now->asked) & bit)) {
        if (PTAC_LOAD(is_called)(device, now->device))
            __atomic_fetch_or(&now->meant, bit, __ATOMIC_SEQ_CST);
        __atomic_fetch_or(&now->asked, bit, __ATOMIC_SEQ_CST);
    }
    return PTAC_LOAD(now->meant) & bit ? now : NULL;
}

static ptac_measured look_up(const ptac_calibration *table, const ptac_call *call,
                             const ptac_kernel **row)
{
    const ptac_op_shapes *shapes = ptac_registry_shapes(call->op);
    const ptac_dtype dtype = call->inputs[shapes->typed_input].dtype;
    ptac_neighbours found;
    ptac_shape shape = {0};

    if (dtype >= PTAC_N_DTYPES || shapes->classify(call, &shape))
        return PTAC_NOT_MEASURED;
    *row = ptac_calibration_find(table, call->op, &shape, dtype, 1, &found);
    if (found.n == 0)
        return PTAC_NOT_MEASURED;
    ptac_point_estimate(found.at[0], &shape);
    return *row ? PTAC_MEASURED_FASTER : PTAC_MEASURED_SLOWER;
}

ptac_measured ptac_chooser_measured(const ptac_call *call, const ptac_kernel **row)
{
    const ptac_calibration *table;

    *row = NULL;
    if (__atomic_load_n(&is_measuring, __ATOMIC_RELAXED))
        return PTAC_MEASURED_NOW;
    table = table_of(call->device);
    return table && table->knows[call->op] ? look_up(table, call, row)
                                           : PTAC_NOT_MEASURED;
}

/* The table says whether; which of several rows that cannot lose, ranks say. */
static bool may_serve(const ptac_kernel *row, ptac_measured measured,
                      const ptac_kernel *named)
{
    if (row->asks_table)
        return measured == PTAC_MEASURED_NOW || row == named;
    return measured != PTAC_MEASURED_SLOWER;
}

static ptac_reason ask(const ptac_kernel *row, const ptac_call *call)
{
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
    const ptac_kernel *named;
    ptac_measured measured;

    *why = ptac_chooser_gate_on(PTAC_ON_CUDA, call->op);
    if (!*why && call->inputs[0].n_elements == 0)
        *why = PTAC_EMPTY;
    if (*why)
        return NULL;
    measured = ptac_chooser_measured(call, &named);
    *why = PTAC_DEVICE;
    for (int i = 0; i < n; i++) {
        *why =
            may_serve(rows[i], measured, named) ? ask(rows[i], call) : PTAC_NOT_FASTER;
        if (!*why)
            return rows[i];
    }
    return NULL;
}
