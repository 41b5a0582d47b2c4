/*
 * winograd_rows_tpl.h - the rows of convolution by transformed tiles.
 *
 * The includer defines
 *
 *   TARGET, INLINE, LANES, vec, v_*   by including ops/math/lanes_<isa>.h; LANES is a
 *                                     power of two, 8 or 16
 *   ROWS_OF_TILES                     int, 6 or 7: tiles that multiply() takes at once;
 *                                     their sums fill 2 * ROWS_OF_TILES registers
 *   ISA                               string: the end of the rows' names
 *   NEEDS                             PTAC_CPU_*: what the CPU must have
 */
#include "ops/conv/winograd/winograd_weight_tpl.h"

DEFINE_WINOGRAD(2x2, 2, 2, 3, NULL)
DEFINE_WINOGRAD(4x2, 4, 2, 3, &stages_2x2)
DEFINE_WINOGRAD(4x4, 4, 4, 3, NULL)
DEFINE_WINOGRAD(2x2_of_5x5, 2, 2, 5, NULL)

/* Of 4x4 tiles only the gradient of the weight is close. */
static ptac_reason accepts_data_4x4(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->result == PTAC_CONV_WEIGHT ? PTAC_SHAPE : accepts_4x4(call);
}

static ptac_reason accepts_weight_4x4(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->result == PTAC_CONV_WEIGHT ? accepts_4x4(call) : PTAC_SHAPE;
}

#define ROW(id, tiles, rank, level, takes, computes, ...)                              \
    PTAC_CONV_ROW(id, "winograd_" tiles, rank, level, takes, computes, ##__VA_ARGS__)

ROW(CONV2D, "2x2", 3, PTAC_CLOSE, accepts_2x2, run_2x2, .kept_bytes = kept_2x2)
ROW(CONV2D, "4x2", 4, PTAC_CLOSE, accepts_4x2, run_4x2, .kept_bytes = kept_4x2)
ROW(CONV2D, "4x4", 0, PTAC_FAST, accepts_4x4, run_4x4, .kept_bytes = kept_4x4)
ROW(CONV2D, "2x2_of_5x5", 1, PTAC_CLOSE, accepts_2x2_of_5x5, run_2x2_of_5x5,
    .kept_bytes = kept_2x2_of_5x5)
ROW(CONV2D_BACKWARD, "2x2", 3, PTAC_CLOSE, accepts_2x2, run_2x2)
ROW(CONV2D_BACKWARD, "4x2", 4, PTAC_CLOSE, accepts_4x2, run_4x2)
ROW(CONV2D_BACKWARD, "4x4_data", 0, PTAC_FAST, accepts_data_4x4, run_4x4)
ROW(CONV2D_BACKWARD, "4x4_weight", 2, PTAC_CLOSE, accepts_weight_4x4, run_4x4)
ROW(CONV2D_BACKWARD, "2x2_of_5x5", 1, PTAC_CLOSE, accepts_2x2_of_5x5, run_2x2_of_5x5)
