/*
 * cross_entropy_rows.h - targets and weights of cross-entropy's rows, on CUDA.
 */
#ifndef PTAC_OPS_LOSS_CROSS_ENTROPY_ROWS_H
#define PTAC_OPS_LOSS_CROSS_ENTROPY_ROWS_H

#include "ops/loss/cross_entropy_cuda.h"
#include "ops/softmax/softmax_rows.h"

/* The tensors beside the logits. Those of their own dtype are read by that. */
template <class T> struct operands {
    ptac_input<T> target, weight;
};

template <class T>
PTAC_DEVICE float operand_at(ptac_input<T> from, int kind, ptac_i64 i)
{
    return kind == PTAC_OPERAND_FLOAT ? ptac_input<float>{(const float *)from.data}[i]
                                      : ptac_real(from[i]);
}

template <class T>
PTAC_DEVICE void put_operand(ptac_output<T> to, int kind, ptac_i64 i, float value)
{
    if (kind == PTAC_OPERAND_FLOAT)
        ptac_output<float>{(float *)to.data}.put(i, value);
    else
        to.put(i, ptac_from<T>(value));
}

/* u of a class, see ptac_row_target; at: the class in the matrix of probabilities. */
template <class T>
PTAC_DEVICE float factor(const operands<T> &o, const ptac_cuda_cross_entropy &p,
                         ptac_i64 at, int j)
{
    float u = p.shift;

    if (p.target != PTAC_OPERAND_INDICES)
        u = operand_at(o.target, p.target, at) * p.scale + p.shift;
    return p.weight ? u * operand_at(o.weight, p.weight, j) : u;
}

/* A row's class, and what its logarithm is multiplied with. */
struct class_of_row {
    ptac_i64 index; /* -1: there is none */
    bool is_ignored;
    float weight, at_index;
};

/* An index that is no class stops the device, as stock's assertion does. */
template <class T>
PTAC_DEVICE class_of_row read_class(const operands<T> &o,
                                    const ptac_cuda_cross_entropy &p, ptac_i64 row)
{
    if (p.target != PTAC_OPERAND_INDICES)
        return {-1, false, 1.0f, 0.0f};

    const ptac_i64 index = ptac_input<ptac_i64>{(const ptac_i64 *)o.target.data}[row];

    if (index == p.ignore_index)
        return {-1, true, 0.0f, 0.0f};
    if (index < 0 || index >= p.n_classes)
        __trap();

    const float weight = p.weight ? operand_at(o.weight, p.weight, index) : 1.0f;

    return {index, false, weight, p.scale * weight};
}

#define PTAC_CROSS_ENTROPY_KERNELS(ROWS, suffix, T)                                    \
    ROWS(short, suffix, T, PTAC_WARP, false)                                           \
    ROWS(long, suffix, T, PTAC_SOFTMAX_THREADS, false)                                 \
    ROWS(soft_short, suffix, T, PTAC_WARP, true)                                       \
    ROWS(soft_long, suffix, T, PTAC_SOFTMAX_THREADS, true)

#endif
