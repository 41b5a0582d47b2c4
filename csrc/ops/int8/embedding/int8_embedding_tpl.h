/*
 * int8_embedding_tpl.h - a row of an int8 table as floats, LANES at a time.
 *
 * The includer defines
 *
 *   TARGET, LANES, vec, v_*   by including ops/math/lanes_<isa>.h
 *   FLOATS(q)                 vec: the LANES int8 at q as floats
 */
#include "ops/int8/embedding/int8_embedding.h"

TARGET static void row_of(const int8_t *q, float scale, int64_t width, float *y)
{
    const vec by = v_set(scale);
    int64_t i = 0;

    for (; i + LANES <= width; i += LANES)
        v_store(y + i, v_mul(by, FLOATS(q + i)));
    for (; i < width; i++)
        y[i] = scale * (float)q[i];
}

static ptac_status run(const ptac_call *call)
{
    return ptac_int8_embedding_run(call, row_of);
}
