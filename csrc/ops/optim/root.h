/*
 * root.h - the square root that MKL's vector library computes where it has no kernel
 * made for the CPU (its generic one, which it takes on AMD's).
 *
 * It is not correctly rounded: from the CPU's own reciprocal estimate y of 1/sqrt(x)
 * follow s = x*y, h = y/2, r = 1/2 - s*h, then s += s*r, h += h*r, and the result is s
 * + (x - s*s) * h, each operation rounded (Goldschmidt's iteration, see P. Markstein,
 * IA-64 and Elementary Functions, 2000, chapter 8). The range in which it does so was
 * read off the function's behaviour; bind/torch/host_rounding.c compares the bits in
 * every process before any row uses it.
 */
#ifndef PTAC_OPS_OPTIM_ROOT_H
#define PTAC_OPS_OPTIM_ROOT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Bit patterns of the floats for which the iteration is taken, both inclusive. */
enum {
    PTAC_ROOT_FIRST = 0x00800000, /* the smallest normal number */
    PTAC_ROOT_LAST = 0x7f7ff000,
};

#if defined(__x86_64__)
#include <immintrin.h>

/* One lane of it; false outside the range. */
static inline bool ptac_refined_root(float x, float *root)
{
    uint32_t bits;
    float y, s, h, r;

    memcpy(&bits, &x, sizeof bits);
    if (bits - PTAC_ROOT_FIRST > PTAC_ROOT_LAST - PTAC_ROOT_FIRST)
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
#else
static inline bool ptac_refined_root(float x, float *root)
{
    (void)x;
    (void)root;
    return false;
}
#endif

#endif
