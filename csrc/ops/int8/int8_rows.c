/*
 * int8_rows.c - the rows of int8 operators: what instruction sets bring, by name.
 */
#include "ops/int8/conv/int8_conv2d.h"
#include "ops/int8/int8_linear.h"

/* Tiles of AMX were never measured by us: a table has to ask for them. */
#define ROW(set, cpu)                                                                  \
    static ptac_status run_linear_##set(const ptac_call *call)                         \
    {                                                                                  \
        return ptac_int8_linear_run(call, &ptac_int8_##set);                           \
    }                                                                                  \
    static const ptac_kernel int8_linear_##set = {                                     \
        .op = PTAC_OP_INT8_LINEAR,                                                     \
        .name = #set,                                                                  \
        .level = PTAC_EXACT,                                                           \
        .needs = cpu,                                                                  \
        .asks_table = ((cpu)&PTAC_CPU_AMX_INT8) != 0,                                  \
        .accepts = ptac_int8_linear_accepts,                                           \
        .run = run_linear_##set,                                                       \
    };                                                                                 \
    PTAC_REGISTER(int8_linear_##set)                                                   \
    static ptac_status run_conv2d_##set(const ptac_call *call)                         \
    {                                                                                  \
        return ptac_int8_conv2d_run(call, &ptac_int8_##set);                           \
    }                                                                                  \
    static const ptac_kernel int8_conv2d_##set = {                                     \
        .op = PTAC_OP_INT8_CONV2D,                                                     \
        .name = #set,                                                                  \
        .level = PTAC_EXACT,                                                           \
        .needs = cpu,                                                                  \
        .asks_table = ((cpu)&PTAC_CPU_AMX_INT8) != 0,                                  \
        .accepts = ptac_int8_conv2d_accepts,                                           \
        .run = run_conv2d_##set,                                                       \
    };                                                                                 \
    PTAC_REGISTER(int8_conv2d_##set)

ROW(scalar, 0)
#if defined(__x86_64__)
ROW(avx2, PTAC_CPU_AVX2)
ROW(avx_vnni, PTAC_CPU_AVX_VNNI)
ROW(avx512_vnni, PTAC_CPU_AVX512_VNNI)
ROW(amx, PTAC_CPU_AMX_INT8 | PTAC_CPU_AVX512_VNNI)
#endif
