/*
 * int8_rows.c - the rows of int8 operators: what instruction sets bring, by name.
 */
#include "ops/int8/conv/int8_conv2d.h"
#include "ops/int8/int8_linear.h"
#include "ops/int8/sublayer/int8_sublayer.h"

/* Tiles of AMX do not pay where there is little to do: a table has to ask for them. */
#define ROW_OF(id, op_name, set, cpu)                                                  \
    static ptac_status run_##op_name##_##set(const ptac_call *call)                    \
    {                                                                                  \
        return ptac_int8_##op_name##_run(call, &ptac_int8_##set);                      \
    }                                                                                  \
    PTAC_ROW(id, #set, PTAC_EXACT, cpu, ptac_int8_##op_name##_accepts,                 \
             run_##op_name##_##set, .asks_table = ((cpu)&PTAC_CPU_AMX_INT8) != 0)
#define ROW(set, cpu)                                                                  \
    ROW_OF(INT8_LINEAR, linear, set, cpu)                                              \
    ROW_OF(INT8_CONV2D, conv2d, set, cpu)                                              \
    ROW_OF(INT8_SUBLAYER, sublayer, set, cpu)

ROW(scalar, 0)
#if defined(__x86_64__)
ROW(avx2, PTAC_CPU_AVX2)
ROW(avx_vnni, PTAC_CPU_AVX_VNNI)
ROW(avx512_vnni, PTAC_CPU_AVX512_VNNI)
ROW(amx, PTAC_CPU_AMX_INT8 | PTAC_CPU_AVX512_VNNI)
#endif
