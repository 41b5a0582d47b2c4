/*
 * direct_rows_tpl.h - the rows of convolution of few input channels.
 *
 * The includer defines
 *
 *   TARGET, INLINE, LANES, vec, v_*   by including ops/math/lanes_<isa>.h; LANES is 8
 *                                     or 16
 *   ISA                               string: the end of the rows' names
 *   NEEDS                             PTAC_CPU_*: what the CPU must have
 */
#include "ops/conv/direct_tpl.h"

PTAC_CONV_ROW(conv2d_direct, PTAC_OP_CONV2D, "direct", 0, PTAC_CLOSE,
              ptac_direct_accepts, run_direct)
PTAC_CONV_ROW(backward_direct, PTAC_OP_CONV2D_BACKWARD, "direct", 0, PTAC_CLOSE,
              ptac_direct_accepts, run_direct)
