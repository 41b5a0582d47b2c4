/*
 * root.h - the square roots that MKL's vector library computes, which are not correctly
 * rounded. Both begin with an estimate y of 1/sqrt(x) and with s = x*y, h = y/2.
 *
 * Refined: where MKL has no kernel made for the CPU (it takes a generic one on AMD's),
 * y is of rsqrtps. There follow r = 1/2 - s*h, s += s*r, h += h*r, and the result is
 * s + (x - s*s) * h, each operation rounded (Goldschmidt's iteration, see P. Markstein,
 * IA-64 and Elementary Functions, 2000, chapter 8).
 *
 * Corrected: where it takes its kernel for AVX-512, y is of vrsqrt14ps, and the result
 * is s + (x - s*s) * h at once, in fused operations.
 *
 * The ranges in which they do so were read off the functions' results: every float was
 * compared. bind/torch/host_rounding.c compares bits in every process before any row
 * uses them.
 */
#ifndef PTAC_OPS_OPTIM_ROOT_H
#define PTAC_OPS_OPTIM_ROOT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Bit patterns of the floats for which they are taken, both inclusive. */
enum {
    PTAC_ROOT_REFINED_FIRST = 0x00800000, /* the smallest normal number */
    PTAC_ROOT_REFINED_LAST = 0x7f7ff000,
    /* 2^-102: x - s*s of smaller ones may be subnormal. */
    PTAC_ROOT_CORRECTED_FIRST = 0x0c800000,
    PTAC_ROOT_CORRECTED_LAST = 0x7f7fffff, /* the largest finite number */
};

#if defined(__x86_64__)
#include <immintrin.h>

static inline bool ptac_root_is_between(float x, uint32_t first, uint32_t last)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits >= first && bits <= last;
}

/* One lane of it; false outside the range. */
static inline bool ptac_refined_root(float x, float *root)
{
    float y, s, h, r;

    if (!ptac_root_is_between(x, PTAC_ROOT_REFINED_FIRST, PTAC_ROOT_REFINED_LAST))
        return false;
    y = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(x)));
    s = x * y;
    h = 0.5f * y;
    r = 0.5f - s * h;
    s = s + s * r;
    h = h + h * r;
    *root = s + (x - s * s) * h;
    return true;
}

/* The same of the other, on a CPU that has AVX-512. */
__attribute__((target("avx512f"))) static inline bool ptac_corrected_root(float x,
                                                                          float *root)
{
    float y, s;

    if (!ptac_root_is_between(x, PTAC_ROOT_CORRECTED_FIRST, PTAC_ROOT_CORRECTED_LAST))
        return false;
    y = _mm_cvtss_f32(_mm_rsqrt14_ss(_mm_setzero_ps(), _mm_set_ss(x)));
    s = x * y;
    *root = __builtin_fmaf(__builtin_fmaf(-s, s, x), 0.5f * y, s);
    return true;
}
#else
static inline bool ptac_refined_root(float x, float *root)
{
    (void)x;
    (void)root;
    return false;
}

static inline bool ptac_corrected_root(float x, float *root)
{
    return ptac_refined_root(x, root);
}
#endif

#endif
