/*
 * direct_rows_tpl.h - the rows of convolution of few input channels, for the
 * instruction set that ISA and NEEDS name.
 */
#include "ops/conv/direct_tpl.h"

#define ROW(variable, operation)                                                       \
    static const ptac_kernel variable = {                                              \
        .op = operation,                                                               \
        .name = "direct_" ISA,                                                         \
        .level = PTAC_CLOSE,                                                           \
        .needs = NEEDS,                                                                \
        .spreads = true,                                                               \
        .accepts = ptac_direct_accepts,                                                \
        .run = run_direct,                                                             \
    };                                                                                 \
    PTAC_REGISTER(variable)

ROW(conv2d_direct, PTAC_OP_CONV2D)
ROW(conv2d_backward_direct, PTAC_OP_CONV2D_BACKWARD)
