/*
 * small.h - the operator small_pointwise: ReLU, sums and products of small tensors.
 *
 *   relu                    x -> 0 where x < 0, else x
 *   add, sub, mul, div      x, y -> of both, element by element
 *   add_number and so on    x -> the same with a number in y's place
 *
 * Level exact: ATen rounds once, and so does this. Tensors are contiguous floats of one
 * size. Stock's time at such sizes is that of its call, not of what it computes.
 */
#ifndef PTAC_OPS_POINTWISE_SMALL_H
#define PTAC_OPS_POINTWISE_SMALL_H

#include "core/kernel.h"

typedef enum ptac_small_kind {
    PTAC_SMALL_RELU,
    PTAC_SMALL_ADD,
    PTAC_SMALL_SUB,
    PTAC_SMALL_MUL,
    PTAC_SMALL_DIV,
    PTAC_SMALL_ADD_NUMBER, /* in the order of the four before */
    PTAC_SMALL_SUB_NUMBER,
    PTAC_SMALL_MUL_NUMBER,
    PTAC_SMALL_DIV_NUMBER,
} ptac_small_kind;

enum {
    PTAC_SMALL_MOST = 1 << 14, /* elements */
    PTAC_SMALL_NUMBER = PTAC_SMALL_ADD_NUMBER - PTAC_SMALL_ADD,
};

typedef struct ptac_small {
    ptac_small_kind kind;
    float number;
} ptac_small;

ptac_reason ptac_small_accepts(const ptac_call *call);

#endif
