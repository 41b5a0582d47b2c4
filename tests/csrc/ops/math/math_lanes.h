/*
 * math_lanes.h - the functions of math_tpl.h on arrays, for each instruction set.
 */
#ifndef PTAC_TESTS_MATH_LANES_H
#define PTAC_TESTS_MATH_LANES_H

#include "core/cpu.h"

typedef enum math_function {
    MATH_EXP,
    MATH_EXP_BOUNDED,
    MATH_LOG,
    MATH_SIGMOID,
    MATH_SIGMOID_OF_SLOPE, /* v_sigmoid_slope() returns the one ... */
    MATH_SIGMOID_SLOPE,    /* ... and sets the other */
    MATH_TANH,
    MATH_NORMAL,
    MATH_GELU_SLOPE,
    N_MATH_FUNCTIONS,
} math_function;

enum {
    MATH_STEP = 16, /* n is a multiple of it */
};

typedef void (*math_map)(const float *x, float *y, int64_t n);

typedef struct math_lanes {
    const char *name;
    uint32_t needs;
    math_map maps[N_MATH_FUNCTIONS];
} math_lanes;

#if defined(__x86_64__)
extern const math_lanes math_avx2, math_avx512;
#endif

#endif
