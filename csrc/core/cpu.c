/*
 * cpu.c - CPUID, and XGETBV for the registers that the kernel saves.
 *
 * Leaves and bits: Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E.
 */
#include "core/cpu.h"

#include <stdio.h>
#include <string.h>

static uint32_t detected;
static uint32_t limit = ~0u;
static char model[64] = "aarch64"; /* CPUID tells on x86 */
static bool is_amd;

#if defined(__x86_64__)
#include <cpuid.h>

/* Bits of XCR0: SSE and AVX state, the three parts of AVX-512 state, two of tiles'. */
enum {
    XCR0_AVX = 0x6,
    XCR0_AVX512 = 0xe6,
    XCR0_TILES = 0x60000,
};

/* Those that older compilers do not name. */
enum {
    BIT_AMX_BF16 = 1 << 22, /* of leaf 7.0, EDX */
    BIT_AMX_TILE = 1 << 24,
    BIT_AMX_INT8 = 1 << 25,
    BIT_AVX_VNNI = 1 << 4, /* of leaf 7.1, EAX */
    BIT_AVX512_BF16 = 1 << 5,
    BIT_AMX_FP16 = 1 << 21,
};

/* volatile, so as to stay behind the check for OSXSAVE, without which it is illegal. */
static uint64_t read_xcr0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

__attribute__((constructor)) static void detect_features(void)
{
    uint32_t a, b, c, d, leaf1_c;
    uint64_t xcr0;

    if (!__get_cpuid(1, &a, &b, &leaf1_c, &d) || !(leaf1_c & bit_OSXSAVE))
        return;
    xcr0 = read_xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;

    const bool avx2 = (xcr0 & XCR0_AVX) == XCR0_AVX && (b & bit_AVX2) &&
                      (leaf1_c & bit_FMA) && (leaf1_c & bit_F16C);
    const bool avx512_vnni = c & bit_AVX512VNNI;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const bool has_avx512 =
        avx2 && (xcr0 & XCR0_AVX512) == XCR0_AVX512 && (b & avx512) == avx512;
    const bool tiles = (xcr0 & XCR0_TILES) == XCR0_TILES && (d & BIT_AMX_TILE);

    if (avx2)
        detected |= PTAC_CPU_AVX2;
    if (has_avx512)
        detected |= PTAC_CPU_AVX512 | (avx512_vnni ? PTAC_CPU_AVX512_VNNI : 0);
    if (tiles && (d & BIT_AMX_INT8))
        detected |= PTAC_CPU_AMX_INT8;
    if (has_avx512 && tiles && (d & BIT_AMX_BF16))
        detected |= PTAC_CPU_AMX_BF16;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d))
        return;
    if (avx2 && (a & BIT_AVX_VNNI))
        detected |= PTAC_CPU_AVX_VNNI;
    if (has_avx512 && (a & BIT_AVX512_BF16))
        detected |= PTAC_CPU_AVX512_BF16;
    if (has_avx512 && tiles && (a & BIT_AMX_FP16))
        detected |= PTAC_CPU_AMX_FP16;
}

__attribute__((constructor)) static void detect_model(void)
{
    uint32_t a, b, c, d, family, number;
    char vendor[13] = {0};

    __cpuid(0, a, b, c, d);
    memcpy(vendor, &b, 4);
    memcpy(vendor + 4, &d, 4);
    memcpy(vendor + 8, &c, 4);
    __cpuid(1, a, b, c, d);
    family = a >> 8 & 0xf;
    number = a >> 4 & 0xf;
    if (family == 6 || family == 15)
        number |= (a >> 16 & 0xf) << 4;
    if (family == 15)
        family += a >> 20 & 0xff;
    snprintf(model, sizeof model, "%s-%u-%u", vendor, family, number);
    is_amd = strcmp(vendor, "AuthenticAMD") == 0;
}
#endif

uint32_t ptac_cpu_features(void)
{
    return detected & limit;
}

ptac_isa ptac_cpu_isa(void)
{
    const uint32_t have = ptac_cpu_features();

    if (have & PTAC_CPU_AVX512)
        return PTAC_ISA_AVX512;
    return have & PTAC_CPU_AVX2 ? PTAC_ISA_AVX2 : PTAC_ISA_SCALAR;
}

const char *ptac_isa_name(ptac_isa isa)
{
    static const char *const names[] = {"scalar", "avx2", "avx512"};

    return names[isa <= PTAC_ISA_AVX512 ? isa : PTAC_ISA_SCALAR];
}

void ptac_cpu_limit(ptac_isa isa)
{
    limit = isa == PTAC_ISA_SCALAR ? 0 : isa == PTAC_ISA_AVX2 ? PTAC_CPU_AVX2 : ~0u;
}

const char *ptac_cpu_model(void)
{
    return model;
}

bool ptac_cpu_is_amd(void)
{
    return is_amd;
}
