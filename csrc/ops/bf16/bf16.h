/*
 * bf16.h - a bfloat16 is the upper half of a float.
 */
#ifndef PTAC_OPS_BF16_BF16_H
#define PTAC_OPS_BF16_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_f32(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even; NaN becomes the quiet NaN that c10 uses. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits;

    if (value != value)
        return 0x7fc0;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint16_t bf16_add(uint16_t a, uint16_t b)
{
    return bf16_from_f32(bf16_to_f32(a) + bf16_to_f32(b));
}

#endif
