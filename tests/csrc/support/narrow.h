/*
 * narrow.h - a call of float32 made one of 16 bits; see test_also_16_bits().
 */
#ifndef PTAC_TESTS_NARROW_H
#define PTAC_TESTS_NARROW_H

#include "checkrows.h"

/* Tensors of bfloat16 become float32, marked; whether any buffer is marked now. */
bool test_widen(test_call *c);

/* What is marked takes values that the dtype has, and then that dtype. */
void test_round(test_call *c, ptac_dtype dtype);
void test_narrow(test_call *c, ptac_dtype dtype);

#endif
