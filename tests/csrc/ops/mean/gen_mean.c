/*
 * gen_mean.c - random calls of means: rows and columns, where chains, blocks and groups
 * of them end.
 */
#include "checkrows.h"
#include "ops/mean/mean.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_ELEMENTS = 6000,
    MANY_ELEMENTS = 200000, /* shared among threads */
};

/* Around the ends of a chain a lane, of a block, and of chains that add up in float. */
static int64_t random_length(rng *r, int64_t most)
{
    const int64_t end = RNG_PICK(r, 64, 128, 256, 512, 1024);

    if (end < most && rng_chance(r, 25))
        return rng_between(r, end - 2, ptac_least(most, end + 17));
    return rng_length(r, rng_chance(r, 50) ? ptac_least(most, 70) : most);
}

static void fill(rng *r, float *x, int64_t n)
{
    static const float special[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f};
    const double scale = ldexp(1, (int)rng_between(r, -60, 60));

    if (rng_chance(r, 15)) { /* which round alike */
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)(0.1 * scale);
        return;
    }
    fill_smooth(r, PTAC_F32, x, n, scale);
    for (int64_t i = 0; rng_chance(r, 40) && i < 8; i++)
        x[rng_below(r, n)] = special[rng_below(r, 5)];
}

static void make_mean(rng *r, test_call *c)
{
    const int64_t most = rng_chance(r, 10) ? MANY_ELEMENTS : MOST_ELEMENTS;
    ptac_mean *p = (ptac_mean *)c->params;

    c->call.op = PTAC_OP_MEAN;
    p->n = random_length(r, most);
    p->inner = rng_chance(r, 50) ? 1 : random_length(r, most / p->n);
    p->outer = rng_length(r, most / p->n / p->inner);

    const int64_t x[] = {p->outer, p->n, p->inner}, y[] = {p->outer, p->inner};

    fill(r, test_input(c, PTAC_F32, 3, x, false), p->outer * p->n * p->inner);
    test_output(c, PTAC_F32, 2, y, false);
    snprintf(c->note, sizeof c->note, "%lld x %lld x %lld", (long long)p->outer,
             (long long)p->n, (long long)p->inner);
}

/* What a mean is made of: the largest of the means of finite magnitudes. */
static void scale(test_call *c)
{
    const ptac_mean *p = (const ptac_mean *)c->params;
    const test_buffer *x = &c->buffers[c->input_buffers[0]];
    test_buffer *y = &c->buffers[c->output_buffers[0]];

    for (int64_t i = 0; i < y->n_elements; i++) {
        const int64_t first = i / p->inner * p->n * p->inner + i % p->inner;
        double sum = 0;

        for (int64_t k = 0; k < p->n; k++) {
            const double value = real_at(x->dtype, x->content, first + k * p->inner);

            sum += isfinite(value) ? fabs(value) : 0;
        }
        y->least_scale = fmax(y->least_scale, sum / (double)p->n);
    }
}

/*
 * Each addition adds half an ulp of a partial sum of magnitudes at most: those of a
 * chain, and those that join chains, are 2 * PTAC_MEAN_CHAIN in columns and fewer in
 * rows; then sum and quotient are rounded, as in "scalar" again.
 */
GENERATOR(mean, .op = PTAC_OP_MEAN, .make = make_mean, .scale = scale,
          .roundings = 2 * PTAC_MEAN_CHAIN + 4)
