/*
 * cpu.h - what this CPU, as the operating system lets us use it, can do.
 *
 * A kernel row names the features it needs; a row without needs runs anywhere.
 * Tests force a lower instruction set with ptac_cpu_limit().
 */
#ifndef PTAC_CORE_CPU_H
#define PTAC_CORE_CPU_H

#include "core/base.h"

enum {
    PTAC_CPU_AVX2 = 1u << 0,        /* AVX2, FMA and F16C */
    PTAC_CPU_AVX512 = 1u << 1,      /* AVX-512 F, BW, DQ and VL */
    PTAC_CPU_AVX_VNNI = 1u << 2,    /* dot products of bytes, 32 at a time; AVX2 */
    PTAC_CPU_AVX512_VNNI = 1u << 3, /* 64 at a time; AVX-512 */
    PTAC_CPU_AMX_INT8 = 1u << 4,    /* tiles of bytes; needs the kernel's permission */
};

/* Products of 16 bits; only beside PTAC_CPU_AVX512. */
enum {
    PTAC_CPU_AVX512_BF16 = 1u << 16,
    PTAC_CPU_AMX_BF16 = 1u << 17, /* the system keeps tiles; a process has to ask */
    PTAC_CPU_AMX_FP16 = 1u << 18, /* likewise; of float16: torch then has TF32, too */
};

/* Instruction set classes, as calibration tables name them. */
typedef enum ptac_isa {
    PTAC_ISA_SCALAR = 0,
    PTAC_ISA_AVX2,
    PTAC_ISA_AVX512,
} ptac_isa;

/* PTAC_CPU_* bits that a row may count on. */
uint32_t ptac_cpu_features(void);

/* The class that the features amount to. */
ptac_isa ptac_cpu_isa(void);
const char *ptac_isa_name(ptac_isa isa);

/*
 * Pretend that the CPU ends at isa, which for PTAC_ISA_AVX2 is before AVX-VNNI;
 * PTAC_ISA_AVX512 takes the limit away. Not to be called while kernels run.
 */
void ptac_cpu_limit(ptac_isa isa);

/* Tables' key: CPUID's vendor, family and model, "AuthenticAMD-26-2"; or "aarch64". */
const char *ptac_cpu_model(void);

/* Made by AMD: the library that torch's wheels bring along multiplies slower there. */
bool ptac_cpu_is_amd(void);

#endif
