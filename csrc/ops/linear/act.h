/*
 * act.h - activations behind a Linear layer or a norm, for the CPU's code and for
 * kernels.
 */
#ifndef PTAC_OPS_LINEAR_ACT_H
#define PTAC_OPS_LINEAR_ACT_H

typedef enum ptac_act {
    PTAC_ACT_NONE = 0,
    PTAC_ACT_RELU,      /* max(0, z); NaN stays */
    PTAC_ACT_GELU,      /* z * (1 + erf(z / sqrt(2))) / 2 */
    PTAC_ACT_GELU_TANH, /* nearly that: z * sigmoid(2 u(z)), see bias_act_ref.c */
    PTAC_ACT_SILU,      /* z * sigmoid(z) */
    PTAC_ACT_TANH,
    PTAC_ACT_SIGMOID,
    PTAC_N_ACTS,
    /* Behind a norm alone: */
    PTAC_ACT_RELU6 = PTAC_N_ACTS, /* min(max(0, z), 6); NaN stays */
    PTAC_ACT_HARDSWISH,           /* z * min(max(0, z + 3), 6) / 6 */
} ptac_act;

#endif
