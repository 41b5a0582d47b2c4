/*
 * gen_softmax.c - shapes and logits.
 */
#include "gen_softmax.h"

#include "ops/softmax/softmax.h"

#include <math.h>

enum {
    MOST_ELEMENTS = 3000,
    MANY_ELEMENTS = 100000,
};

void random_rows(rng *r, int64_t *n_rows, int64_t *width)
{
    const int64_t most = rng_chance(r, 8) ? MANY_ELEMENTS : MOST_ELEMENTS;

    switch (rng_below(r, 4)) {
    case 0: /* where short rows end */
        *width = PTAC_SHORT_ROW + rng_between(r, -3, 3);
        break;
    case 1: /* several blocks of a float sum, and the last one ragged */
        *width = rng_length(r, most);
        break;
    default:
        *width = rng_length(r, 70);
    }
    *n_rows = rng_length(r, most / *width);
    if (most == MANY_ELEMENTS)
        *n_rows = most / *width - rng_below(r, (most / *width + 1) / 2);
}

static float special(rng *r)
{
    static const float values[] = {-INFINITY, INFINITY, NAN};

    return values[rng_below(r, 3)];
}

static void fill_row(rng *r, float *x, int64_t n, double huge)
{
    const int density = (int)RNG_PICK(r, 1, 30, 100);

    switch (rng_below(r, 6)) {
    case 0: /* apart by more than exponentials reach */
        fill_smooth(r, PTAC_F32, x, n, 300);
        break;
    case 1:
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)rng_between(r, -1, 1);
        break;
    case 2:
        fill_smooth(r, PTAC_F32, x, n, ldexp(huge, -(int)rng_between(r, 0, 80)));
        break;
    case 3: /* masked, maybe in every class */
        fill_smooth(r, PTAC_F32, x, n, 5);
        for (int64_t i = 0; i < n; i++)
            if (rng_chance(r, density))
                x[i] = -INFINITY;
        break;
    case 4:
        fill_smooth(r, PTAC_F32, x, n, 5);
        x[rng_below(r, n)] = special(r);
        break;
    default:
        fill_smooth(r, PTAC_F32, x, n, 5);
    }
}

void fill_logits(rng *r, float *x, int64_t n_rows, int64_t width, double huge)
{
    if (rng_chance(r, 60)) {
        fill_smooth(r, PTAC_F32, x, n_rows * width, (double)RNG_PICK(r, 1, 4, 25));
        return;
    }
    for (int64_t i = 0; i < n_rows; i++)
        fill_row(r, x + i * width, width, huge);
}
