/*
 * op.h - the operators, under the names that users and the report know them by.
 *
 * This list is the only one: counters, calibration tables, include/exclude and the
 * report all follow it. The last column is the switch that opens the operator.
 */
#ifndef PTAC_CORE_OP_H
#define PTAC_CORE_OP_H

#include "core/base.h"

#define PTAC_SWITCH_FUSION       "operator_fusion"
#define PTAC_SWITCH_QUANTIZATION "model_quantization"

#define PTAC_OPERATORS(X)                                                              \
    X(CONV2D, "conv2d", FUSION)                                                        \
    X(CONV2D_BACKWARD, "conv2d_backward", FUSION)                                      \
    X(DEPTHWISE_CONV2D, "depthwise_conv2d", FUSION)                                    \
    X(DEPTHWISE_CONV2D_BACKWARD, "depthwise_conv2d_backward", FUSION)                  \
    X(MAX_POOL2D, "max_pool2d", FUSION)                                                \
    X(MAX_POOL2D_BACKWARD, "max_pool2d_backward", FUSION)                              \
    X(RELU_MAX_POOL2D, "relu_max_pool2d", FUSION)                                      \
    X(RELU_MAX_POOL2D_BACKWARD, "relu_max_pool2d_backward", FUSION)                    \
    X(AVG_POOL2D, "avg_pool2d", FUSION)                                                \
    X(AVG_POOL2D_BACKWARD, "avg_pool2d_backward", FUSION)                              \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d", FUSION)                              \
    X(ADAPTIVE_AVG_POOL2D_BACKWARD, "adaptive_avg_pool2d_backward", FUSION)            \
    X(MAX_POOL3D, "max_pool3d", FUSION)                                                \
    X(MAX_POOL3D_BACKWARD, "max_pool3d_backward", FUSION)                              \
    X(AVG_POOL3D, "avg_pool3d", FUSION)                                                \
    X(AVG_POOL3D_BACKWARD, "avg_pool3d_backward", FUSION)                              \
    X(ADAPTIVE_AVG_POOL3D, "adaptive_avg_pool3d", FUSION)                              \
    X(ADAPTIVE_AVG_POOL3D_BACKWARD, "adaptive_avg_pool3d_backward", FUSION)            \
    X(MEAN, "mean", FUSION)                                                            \
    X(SQUEEZE_EXCITE, "squeeze_excite", FUSION)                                        \
    X(UPSAMPLE_NEAREST2D, "upsample_nearest2d", FUSION)                                \
    X(UPSAMPLE_NEAREST2D_BACKWARD, "upsample_nearest2d_backward", FUSION)              \
    X(UPSAMPLE_BILINEAR2D, "upsample_bilinear2d", FUSION)                              \
    X(UPSAMPLE_BILINEAR2D_BACKWARD, "upsample_bilinear2d_backward", FUSION)            \
    X(PIXEL_SHUFFLE, "pixel_shuffle", FUSION)                                          \
    X(PIXEL_UNSHUFFLE, "pixel_unshuffle", FUSION)                                      \
    X(CONSTANT_PAD_ND, "constant_pad_nd", FUSION)                                      \
    X(REFLECTION_PAD, "reflection_pad", FUSION)                                        \
    X(REFLECTION_PAD_BACKWARD, "reflection_pad_backward", FUSION)                      \
    X(REPLICATION_PAD, "replication_pad", FUSION)                                      \
    X(REPLICATION_PAD_BACKWARD, "replication_pad_backward", FUSION)                    \
    X(INDEX_SELECT, "index_select", FUSION)                                            \
    X(INDEX, "index", FUSION)                                                          \
    X(GATHER, "gather", FUSION)                                                        \
    X(INDEX_ADD, "index_add", FUSION)                                                  \
    X(SCATTER_ADD, "scatter_add", FUSION)                                              \
    X(SCATTER_REDUCE, "scatter_reduce", FUSION)                                        \
    X(SCATTER, "scatter", FUSION)                                                      \
    X(INDEX_PUT, "index_put", FUSION)                                                  \
    X(EMBEDDING_BACKWARD, "embedding_backward", FUSION)                                \
    X(EMBEDDING_BAG, "embedding_bag", FUSION)                                          \
    X(EMBEDDING_BAG_BACKWARD, "embedding_bag_backward", FUSION)                        \
    X(EMBEDDING_BAG_MAX_BACKWARD, "embedding_bag_max_backward", FUSION)                \
    X(PRELU_BACKWARD, "prelu_backward", FUSION)                                        \
    X(MISH, "mish", FUSION)                                                            \
    X(MISH_BACKWARD, "mish_backward", FUSION)                                          \
    X(ELU, "elu", FUSION)                                                              \
    X(ELU_BACKWARD, "elu_backward", FUSION)                                            \
    X(GELU, "gelu", FUSION)                                                            \
    X(GELU_BACKWARD, "gelu_backward", FUSION)                                          \
    X(TANH, "tanh", FUSION)                                                            \
    X(SIGMOID, "sigmoid", FUSION)                                                      \
    X(SILU, "silu", FUSION)                                                            \
    X(SILU_BACKWARD, "silu_backward", FUSION)                                          \
    X(HARDSWISH, "hardswish", FUSION)                                                  \
    X(HARDSWISH_BACKWARD, "hardswish_backward", FUSION)                                \
    X(HARDSIGMOID, "hardsigmoid", FUSION)                                              \
    X(HARDSIGMOID_BACKWARD, "hardsigmoid_backward", FUSION)                            \
    X(LOG_SOFTMAX, "log_softmax", FUSION)                                              \
    X(LOG_SOFTMAX_BACKWARD, "log_softmax_backward", FUSION)                            \
    X(SOFTMAX, "softmax", FUSION)                                                      \
    X(SOFTMAX_BACKWARD, "softmax_backward", FUSION)                                    \
    X(CROSS_ENTROPY, "cross_entropy", FUSION)                                          \
    X(CROSS_ENTROPY_BACKWARD, "cross_entropy_backward", FUSION)                        \
    X(MM, "mm", FUSION)                                                                \
    X(ADDMM, "addmm", FUSION)                                                          \
    X(BMM, "bmm", FUSION)                                                              \
    X(BADDBMM, "baddbmm", FUSION)                                                      \
    X(BINARY_CROSS_ENTROPY, "binary_cross_entropy", FUSION)                            \
    X(BINARY_CROSS_ENTROPY_BACKWARD, "binary_cross_entropy_backward", FUSION)          \
    X(BINARY_CROSS_ENTROPY_WITH_LOGITS, "binary_cross_entropy_with_logits", FUSION)    \
    X(MSE_LOSS, "mse_loss", FUSION)                                                    \
    X(MSE_LOSS_BACKWARD, "mse_loss_backward", FUSION)                                  \
    X(SMOOTH_L1_LOSS, "smooth_l1_loss", FUSION)                                        \
    X(SMOOTH_L1_LOSS_BACKWARD, "smooth_l1_loss_backward", FUSION)                      \
    X(LINEAR_ACT, "linear_act", FUSION)                                                \
    X(LINEAR_ACT_BACKWARD, "linear_act_backward", FUSION)                              \
    X(MLP, "mlp", FUSION)                                                              \
    X(MLP_BACKWARD, "mlp_backward", FUSION)                                            \
    X(INT8_LINEAR, "int8_linear", QUANTIZATION)                                        \
    X(INT8_CONV2D, "int8_conv2d", QUANTIZATION)                                        \
    X(INT8_EMBEDDING, "int8_embedding", QUANTIZATION)                                  \
    X(INT8_SUBLAYER, "int8_sublayer", QUANTIZATION)                                    \
    X(FP8_LINEAR, "fp8_linear", QUANTIZATION)                                          \
    X(ATTENTION, "attention", FUSION)                                                  \
    X(ATTENTION_BACKWARD, "attention_backward", FUSION)                                \
    X(ATTENTION_DROPOUT, "attention_dropout", FUSION)                                  \
    X(ATTENTION_DROPOUT_BACKWARD, "attention_dropout_backward", FUSION)                \
    X(MULTI_HEAD_ATTENTION, "multi_head_attention", FUSION)                            \
    X(ENCODER_LAYER, "encoder_layer", FUSION)                                          \
    X(LAYER_NORM, "layer_norm", FUSION)                                                \
    X(LAYER_NORM_BACKWARD, "layer_norm_backward", FUSION)                              \
    X(RMS_NORM, "rms_norm", FUSION)                                                    \
    X(RMS_NORM_BACKWARD, "rms_norm_backward", FUSION)                                  \
    X(BATCH_NORM, "batch_norm", FUSION)                                                \
    X(BATCH_NORM_BACKWARD, "batch_norm_backward", FUSION)                              \
    X(BATCH_NORM_ACT, "batch_norm_act", FUSION)                                        \
    X(BATCH_NORM_ACT_BACKWARD, "batch_norm_act_backward", FUSION)                      \
    X(ADD_NORM, "add_norm", FUSION)                                                    \
    X(ADD_NORM_BACKWARD, "add_norm_backward", FUSION)                                  \
    X(BERNOULLI, "bernoulli", FUSION)                                                  \
    X(DROPOUT, "dropout", FUSION)                                                      \
    X(DROPOUT_BACKWARD, "dropout_backward", FUSION)                                    \
    X(DROPOUT_ADD, "dropout_add", FUSION)                                              \
    X(GATED_ACT, "gated_act", FUSION)                                                  \
    X(GATED_ACT_BACKWARD, "gated_act_backward", FUSION)                                \
    X(ADD_ACT, "add_act", FUSION)                                                      \
    X(ADD_ACT_BACKWARD, "add_act_backward", FUSION)                                    \
    X(BIAS_ACT, "bias_act", FUSION)                                                    \
    X(BIAS_ACT_BACKWARD, "bias_act_backward", FUSION)                                  \
    X(SMALL_POINTWISE, "small_pointwise", FUSION)                                      \
    X(LSTM, "lstm", FUSION)                                                            \
    X(LSTM_BACKWARD, "lstm_backward", FUSION)                                          \
    X(GRU, "gru", FUSION)                                                              \
    X(GRU_BACKWARD, "gru_backward", FUSION)                                            \
    X(RNN_TANH, "rnn_tanh", FUSION)                                                    \
    X(RNN_TANH_BACKWARD, "rnn_tanh_backward", FUSION)                                  \
    X(RNN_RELU, "rnn_relu", FUSION)                                                    \
    X(RNN_RELU_BACKWARD, "rnn_relu_backward", FUSION)                                  \
    X(CAT, "cat", FUSION)                                                              \
    X(COPY, "copy", FUSION)                                                            \
    X(SGD_STEP, "sgd_step", FUSION)                                                    \
    X(ADAM_STEP, "adam_step", FUSION)                                                  \
    X(ADAMW_STEP, "adamw_step", FUSION)                                                \
    X(ADADELTA_STEP, "adadelta_step", FUSION)                                          \
    X(RMSPROP_STEP, "rmsprop_step", FUSION)                                            \
    X(ADAGRAD_STEP, "adagrad_step", FUSION)                                            \
    X(NADAM_STEP, "nadam_step", FUSION)                                                \
    X(CLIP_GRAD_NORM, "clip_grad_norm", FUSION)                                        \
    X(FOREACH_CLAMP, "foreach_clamp", FUSION)                                          \
    X(FOREACH_LERP, "foreach_lerp", FUSION)                                            \
    X(UNSCALE_GRADS, "unscale_grads", FUSION)                                          \
    X(ZERO_GRAD, "zero_grad", FUSION)

typedef enum ptac_op {
#define X(name, text, owner) PTAC_OP_##name,
    PTAC_OPERATORS(X)
#undef X
        PTAC_N_OPS
} ptac_op;

const char *ptac_op_name(ptac_op op);

/* The switch that owns the operator, by its name in Python. */
const char *ptac_op_switch(ptac_op op);

/* The operator of that name; PTAC_N_OPS when there is none. */
ptac_op ptac_op_find(const char *name);

enum {
    PTAC_OP_WORDS = (PTAC_N_OPS + 63) / 64,
};

/* A set of operators, a bit each. */
typedef struct ptac_op_set {
    uint64_t words[PTAC_OP_WORDS];
} ptac_op_set;

static inline void ptac_op_set_add(ptac_op_set *set, ptac_op op)
{
    set->words[op / 64] |= UINT64_C(1) << op % 64;
}

static inline bool ptac_op_set_has(const ptac_op_set *set, ptac_op op)
{
    return set->words[op / 64] >> op % 64 & 1;
}

static inline bool ptac_op_set_is_empty(const ptac_op_set *set)
{
    uint64_t any = 0;

    for (int i = 0; i < PTAC_OP_WORDS; i++)
        any |= set->words[i];
    return !any;
}

static inline void ptac_op_set_unite(ptac_op_set *set, const ptac_op_set *other)
{
    for (int i = 0; i < PTAC_OP_WORDS; i++)
        set->words[i] |= other->words[i];
}

static inline void ptac_op_set_intersect(ptac_op_set *set, const ptac_op_set *other)
{
    for (int i = 0; i < PTAC_OP_WORDS; i++)
        set->words[i] &= other->words[i];
}

static inline void ptac_op_set_remove(ptac_op_set *set, const ptac_op_set *other)
{
    for (int i = 0; i < PTAC_OP_WORDS; i++)
        set->words[i] &= ~other->words[i];
}

#endif
