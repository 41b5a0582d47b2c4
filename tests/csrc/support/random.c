/*
 * random.c - random integers, shapes and floating values.
 */
#include "random.h"

#include <float.h>
#include <math.h>
#include <string.h>

uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int64_t rng_below(rng *r, int64_t n)
{
    return (int64_t)(rng_next(r) % (uint64_t)n);
}

int64_t rng_between(rng *r, int64_t lo, int64_t hi)
{
    return lo + rng_below(r, hi - lo + 1);
}

bool rng_chance(rng *r, int percent)
{
    return rng_below(r, 100) < percent;
}

int64_t rng_pick(rng *r, const int64_t *choices, int n)
{
    return choices[rng_below(r, n)];
}

int64_t rng_length(rng *r, int64_t most)
{
    int64_t length;

    switch (rng_below(r, 4)) {
    case 0:
        length = rng_between(r, 1, 4);
        break;
    case 1: /* around one, two and more vectors of 4, 8, 16 or 32 lanes */
        length =
            RNG_PICK(r, 4, 8, 16, 32) * rng_between(r, 1, 3) + rng_between(r, -1, 1);
        break;
    default:
        length = rng_between(r, 1, most);
    }
    return length < most ? length : most;
}

size_t dtype_bytes(ptac_dtype dtype)
{
    static const size_t bytes[] = {4, 2, 8, 8, 2, 0};

    return bytes[dtype <= PTAC_OTHER_DTYPE ? dtype : PTAC_OTHER_DTYPE];
}

/* IEEE 754's binary16: 5 bits of exponent, 10 of mantissa. */
static double half_to_double(uint16_t bits)
{
    const int exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    double magnitude =
        exponent ? ldexp(mantissa | 0x400, exponent - 25) : ldexp(mantissa, -24);

    if (exponent == 0x1f)
        magnitude = mantissa ? NAN : INFINITY;
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* To the nearest, ties to even. */
static uint16_t double_to_half(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double magnitude = fabs(value);
    int place;

    if (isnan(value))
        return 0x7e00;
    if (magnitude >= 65520) /* what rounds beyond the largest number */
        return sign | 0x7c00;
    if (magnitude < 0x1p-14)
        return (uint16_t)(sign | (int)nearbyint(ldexp(magnitude, 24)));
    place = ilogb(magnitude) - 10;
    /* A mantissa that rounds up to 2048 carries into the exponent. */
    return (uint16_t)(sign | (((place + 25) << 10) +
                              (int)nearbyint(ldexp(magnitude, -place)) - 1024));
}

double real_at(ptac_dtype dtype, const void *memory, int64_t i)
{
    uint32_t bits;
    float single;

    switch (dtype) {
    case PTAC_F32:
        return ((const float *)memory)[i];
    case PTAC_F64:
        return ((const double *)memory)[i];
    case PTAC_BF16:
        bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
        memcpy(&single, &bits, sizeof single);
        return single;
    case PTAC_F16:
        return half_to_double(((const uint16_t *)memory)[i]);
    default:
        return (double)((const int64_t *)memory)[i];
    }
}

void set_real(ptac_dtype dtype, void *memory, int64_t i, double value)
{
    const float single = (float)value;
    uint32_t bits;

    switch (dtype) {
    case PTAC_F32:
        ((float *)memory)[i] = single;
        break;
    case PTAC_F64:
        ((double *)memory)[i] = value;
        break;
    case PTAC_BF16:
        memcpy(&bits, &single, sizeof bits);
        bits += isnan(value) ? 0x10000 : 0x7fff + (bits >> 16 & 1);
        ((uint16_t *)memory)[i] = isnan(value) ? 0x7fc0 : (uint16_t)(bits >> 16);
        break;
    case PTAC_F16:
        ((uint16_t *)memory)[i] = double_to_half(value);
        break;
    default:
        ((int64_t *)memory)[i] = fabs(value) < 0x1p62 ? (int64_t)value : 0;
    }
}

static double unit(rng *r)
{
    return (double)(int64_t)rng_next(r) * 0x1p-63;
}

void fill_smooth(rng *r, ptac_dtype dtype, void *memory, int64_t n, double scale)
{
    for (int64_t i = 0; i < n; i++)
        set_real(dtype, memory, i, scale * unit(r));
}

static double special(rng *r, ptac_dtype dtype)
{
    const double tiny = dtype == PTAC_F64 ? DBL_TRUE_MIN : (double)FLT_TRUE_MIN;
    const double huge = dtype == PTAC_F64 ? DBL_MAX : (double)FLT_MAX;

    switch (rng_below(r, 8)) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
        return -INFINITY;
    case 3:
        return 0.0;
    case 4:
        return -0.0;
    case 5:
        return tiny * (double)rng_between(r, -9, 9);
    case 6:
        return huge;
    default:
        return -huge;
    }
}

void fill_reals(rng *r, ptac_dtype dtype, void *memory, int64_t n)
{
    const int64_t manner = rng_below(r, 6);
    const int density = (int)RNG_PICK(r, 1, 10, 60, 100);

    if (manner == 5) {
        for (int64_t i = 0; i < n * (int64_t)dtype_bytes(dtype); i++)
            ((unsigned char *)memory)[i] = (unsigned char)rng_next(r);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double value = unit(r);

        if (manner == 1) /* few values, so that many are equal */
            value = (double)rng_between(r, -2, 2);
        else if (manner == 2)
            value = ldexp(value, (int)rng_between(r, -140, 120));
        else if (manner >= 3 && rng_chance(r, density))
            value = special(r, dtype);
        set_real(dtype, memory, i, value);
    }
}
