/*
 * direct_rows_tpl.h - the rows of convolution of few input channels, for the
 * instruction set that ISA and NEEDS name.
 */
#include "ops/conv/direct_tpl.h"

PTAC_CONV_ROW(conv2d_direct, PTAC_OP_CONV2D, "direct", 0, PTAC_CLOSE,
              ptac_direct_accepts, run_direct)
PTAC_CONV_ROW(backward_direct, PTAC_OP_CONV2D_BACKWARD, "direct", 0, PTAC_CLOSE,
              ptac_direct_accepts, run_direct)
