/*
 * int8_values.h - what rows, weights and scales of int8 products may hold.
 */
#ifndef PTAC_TESTS_INT8_VALUES_H
#define PTAC_TESTS_INT8_VALUES_H

#include "checkrows.h"

#include "ops/int8/panel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* x between bounds, one of which may be zero: bytes at 0 and 255 and all between. */
static inline void fill_between(rng *r, float *x, int64_t n, double lo, double hi)
{
    const bool is_extreme = rng_chance(r, 30);

    for (int64_t i = 0; i < n; i++) {
        const double at = is_extreme ? (double)rng_below(r, 2)
                                     : (double)rng_below(r, 1 << 20) / (1 << 20);

        x[i] = (float)(lo + at * (hi - lo));
    }
}

/* Halves of a step, where rounding has to choose: the scale is a power of two. */
static inline void fill_ties(rng *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 0.5f * (float)rng_between(r, -254, 254);
    x[rng_below(r, n)] = 127.0f;
    x[rng_below(r, n)] = -128.0f;
}

static inline void fill_row(rng *r, float *x, int64_t n)
{
    const double size = ldexp(1, (int)rng_between(r, -20, 20));

    switch (rng_below(r, 10)) {
    case 0:
        memset(x, 0, (size_t)n * sizeof *x);
        break;
    case 1: /* a range that overflows, and ones below which there is no scale */
        fill_smooth(r, PTAC_F32, x, n, RNG_PICK(r, 0, 1) ? 3.4e38 : 0x1p-110);
        break;
    case 2:
        fill_reals(r, PTAC_F32, x, n);
        break;
    case 3:
        fill_between(r, x, n, 0, size);
        break;
    case 4:
        fill_between(r, x, n, -size, 0);
        break;
    case 5:
        fill_between(r, x, n, -size, size);
        break;
    case 6:
        fill_between(r, x, n, size, 1.5 * size);
        break;
    case 7:
        fill_ties(r, x, n);
        break;
    default:
        fill_smooth(r, PTAC_F32, x, n, size);
    }
}

static inline void fill_bytes(rng *r, int8_t *q, int64_t n)
{
    const int64_t manner = rng_below(r, 6);

    for (int64_t i = 0; i < n; i++)
        q[i] = (int8_t)(manner == 0   ? 127
                        : manner == 1 ? -127
                        : manner == 2 ? RNG_PICK(r, -127, 127)
                        : manner == 3 ? RNG_PICK(r, 0, 0, 0, 1, -1)
                                      : rng_between(r, -127, 127));
}

static inline void fill_scales(rng *r, float *scale, int64_t n)
{
    fill_smooth(r, PTAC_F32, scale, n, (double)RNG_PICK(r, 1, 1, 1, 1 << 20));
    for (int64_t i = 0; i < n; i++)
        scale[i] = rng_chance(r, 5) ? 0.0f : fabsf(scale[i]);
}

/* A random weight [n, k], packed, as the next input, of words. */
static inline void add_packed(rng *r, test_call *c, int64_t n, int64_t k)
{
    const ptac_packed_shape shape = {.n = n, .c = k, .taps = 1, .groups = 1};
    const int64_t n_words = ptac_packed_bytes(&shape) / 4;
    int8_t *plain = malloc((size_t)(n * k));
    float *packed = test_input(c, PTAC_F32, 1, &n_words, false);

    if (!plain)
        abort();
    fill_bytes(r, plain, n * k);
    ptac_pack(&shape, plain, (int8_t *)packed);
    free(plain);
    c->call.inputs[c->call.n_inputs - 1].dtype = PTAC_OTHER_DTYPE;
}

#endif
