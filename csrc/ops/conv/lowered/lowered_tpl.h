/*
 * lowered_tpl.h - the rows of conv2d that lower.
 *
 * The includer defines, besides lanes, ISA, NEEDS, and PANELS_WAY, whose products are
 * taken.
 */
#include "ops/conv/lowered/lowered_columns_last_tpl.h"
#include "ops/conv/lowered/lowered_columns_tpl.h"

static ptac_status run_lowered(const ptac_call *call)
{
    static const ptac_lowered_way way = {&PANELS_WAY, lower_channels,
                                         lower_channels_last};

    return ptac_lowered_run(call, &way);
}

/* The same, of a name of its own for tables. */
static ptac_status run_lowered_batch(const ptac_call *call)
{
    return run_lowered(call);
}

PTAC_ROW(CONV2D, "lowered_" ISA, PTAC_CLOSE, NEEDS, ptac_lowered_accepts, run_lowered,
         .spreads = true, .pays = ptac_lowered_pays)
PTAC_ROW(CONV2D, "lowered_batch_" ISA, PTAC_CLOSE, NEEDS, ptac_lowered_accepts,
         run_lowered_batch, .spreads = true, .pays = ptac_lowered_batch_pays)
