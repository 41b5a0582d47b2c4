/*
 * division.h - quotients by a number that the host knows, without dividing.
 *
 * Of numbers below 2^31: a multiplication's upper half, an addition and a shift. After
 * Granlund and Montgomery, "Division by invariant integers using multiplication", 1994,
 * figure 4.1.
 */
#ifndef PTAC_DEVICE_CUDA_DIVISION_H
#define PTAC_DEVICE_CUDA_DIVISION_H

typedef struct ptac_divisor {
    unsigned int by, magic, shift;
} ptac_divisor;

#ifdef __cplusplus
PTAC_DEVICE ptac_u32 ptac_quotient(ptac_u32 n, const ptac_divisor &d)
{
    return (__umulhi(n, d.magic) + n) >> d.shift;
}
#else
/* by: 1 to 2^31 - 1. */
static inline ptac_divisor ptac_divisor_of(unsigned int by)
{
    ptac_divisor d = {.by = by};

    while (d.shift < 31 && 1u << d.shift < by)
        d.shift++;
    d.magic = (unsigned int)((((1ull << d.shift) - by) << 32) / by + 1);
    return d;
}
#endif

#endif
