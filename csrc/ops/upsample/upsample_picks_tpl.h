/*
 * upsample_picks_tpl.h - elements of an image's row in the order of outputs.
 *
 * Included behind typed_<isa>.h.
 */
#include "ops/upsample/upsample_plan.h"

/* Vector i of a row of outputs, from a row of the image. */
INLINE vec picked(const ptac_picks *picks, const float *row, int i)
{
    const ints lanes = (ints)v_load((const float *)picks->lanes + i * LANES);

    return v_permute(load_f32(row + picks->from[i], picks->n_loaded), lanes);
}

/* How many lanes of a vector are outputs. */
INLINE int picked_lanes(const ptac_picks *picks)
{
    return (int)ptac_least(picks->outputs, LANES);
}
