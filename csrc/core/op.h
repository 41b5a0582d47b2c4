/*
 * op.h - the operators, under the names that users and the report know them by.
 *
 * This list is the only one: counters, calibration tables, include/exclude and the
 * report all follow it.
 */
#ifndef PTAC_CORE_OP_H
#define PTAC_CORE_OP_H

#include "core/base.h"

#define PTAC_OPERATORS(X)                                                              \
    X(CONV2D, "conv2d")                                                                \
    X(CONV2D_BACKWARD, "conv2d_backward")                                              \
    X(MAX_POOL2D, "max_pool2d")                                                        \
    X(MAX_POOL2D_BACKWARD, "max_pool2d_backward")                                      \
    X(AVG_POOL2D, "avg_pool2d")                                                        \
    X(AVG_POOL2D_BACKWARD, "avg_pool2d_backward")                                      \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d")                                      \
    X(ADAPTIVE_AVG_POOL2D_BACKWARD, "adaptive_avg_pool2d_backward")                    \
    X(LOG_SOFTMAX, "log_softmax")                                                      \
    X(LOG_SOFTMAX_BACKWARD, "log_softmax_backward")                                    \
    X(CROSS_ENTROPY, "cross_entropy")                                                  \
    X(CROSS_ENTROPY_BACKWARD, "cross_entropy_backward")                                \
    X(LINEAR_ACT, "linear_act")                                                        \
    X(LINEAR_ACT_BACKWARD, "linear_act_backward")                                      \
    X(INT8_LINEAR, "int8_linear")                                                      \
    X(INT8_CONV2D, "int8_conv2d")                                                      \
    X(INT8_EMBEDDING, "int8_embedding")                                                \
    X(ATTENTION, "attention")                                                          \
    X(ATTENTION_BACKWARD, "attention_backward")                                        \
    X(SGD_STEP, "sgd_step")                                                            \
    X(ADAM_STEP, "adam_step")                                                          \
    X(ADAMW_STEP, "adamw_step")                                                        \
    X(ZERO_GRAD, "zero_grad")

typedef enum ptac_op {
#define X(name, text) PTAC_OP_##name,
    PTAC_OPERATORS(X)
#undef X
        PTAC_N_OPS
} ptac_op;

const char *ptac_op_name(ptac_op op);

/* The operator of that name; PTAC_N_OPS when there is none. */
ptac_op ptac_op_find(const char *name);

#endif
