/*
 * gen_squeeze_excite.c - random calls of squeeze-and-excitation: rows of weights where
 * vectors and fours of them end, and images that go together or one by one.
 */
#include "checkrows.h"
#include "ops/squeeze_excite/squeeze_excite.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_CHANNELS = 150,
    MOST_PLACES = 120,
    MOST_IMAGES = 5,
};

static void make_squeeze_excite(rng *r, test_call *c)
{
    const ptac_act acts[] = {PTAC_ACT_NONE, PTAC_ACT_RELU, PTAC_ACT_SILU};
    const bool has_biases = rng_chance(r, 70);
    ptac_squeeze_excite *p = (ptac_squeeze_excite *)c->params;

    c->call.op = PTAC_OP_SQUEEZE_EXCITE;
    *p = (ptac_squeeze_excite){
        .n = rng_length(r, MOST_IMAGES),
        .n_channels = rng_length(r, MOST_CHANNELS),
        .n_hidden = rng_length(r, MOST_CHANNELS / 2),
        .n_places = rng_length(r, MOST_PLACES),
        .act = acts[rng_below(r, 3)],
        .is_hard = rng_chance(r, 50),
    };

    const int64_t x[] = {p->n, p->n_channels, p->n_places};
    const int64_t w1[] = {p->n_hidden, p->n_channels};
    const int64_t w2[] = {p->n_channels, p->n_hidden};
    const int64_t n_inputs[] = {
        p->n * p->n_channels * p->n_places, p->n_hidden * p->n_channels,
        p->n_hidden * p->n_channels, p->n_hidden, p->n_channels};
    const int64_t *const sizes[] = {x, w1, w2, w1, w2};

    for (int i = 0; i < (has_biases ? PTAC_EXCITE_INPUTS : PTAC_EXCITE_B1); i++) {
        const int n_dims = i == PTAC_EXCITE_X ? 3 : i < PTAC_EXCITE_B1 ? 2 : 1;

        fill_smooth(r, PTAC_F32, test_input(c, PTAC_F32, n_dims, sizes[i], false),
                    n_inputs[i], i == PTAC_EXCITE_X ? 2 : 0.5);
    }
    test_output(c, PTAC_F32, 3, x, false);
    snprintf(c->note, sizeof c->note, "%lld x %lld x %lld by %lld", (long long)p->n,
             (long long)p->n_channels, (long long)p->n_places, (long long)p->n_hidden);
}

static double magnitude(const test_call *c, int input, int64_t at)
{
    const test_buffer *x = &c->buffers[c->input_buffers[input]];

    return input < c->call.n_inputs ? fabs(real_at(x->dtype, x->content, at)) : 0;
}

/* The largest sum of magnitudes that a gate is made of, of an image. */
static double gate_scale(const test_call *c, int64_t image)
{
    const ptac_squeeze_excite *p = (const ptac_squeeze_excite *)c->params;
    double means[MOST_CHANNELS], hidden[MOST_CHANNELS], most = 1;

    for (int64_t k = 0; k < p->n_channels; k++) {
        means[k] = 0;
        for (int64_t i = 0; i < p->n_places; i++)
            means[k] += magnitude(c, PTAC_EXCITE_X,
                                  (image * p->n_channels + k) * p->n_places + i) /
                        (double)p->n_places;
    }
    for (int64_t h = 0; h < p->n_hidden; h++) {
        hidden[h] = magnitude(c, PTAC_EXCITE_B1, h);
        for (int64_t k = 0; k < p->n_channels; k++)
            hidden[h] += magnitude(c, PTAC_EXCITE_W1, h * p->n_channels + k) * means[k];
    }
    for (int64_t k = 0; k < p->n_channels; k++) {
        double sum = magnitude(c, PTAC_EXCITE_B2, k);

        for (int64_t h = 0; h < p->n_hidden; h++)
            sum += magnitude(c, PTAC_EXCITE_W2, k * p->n_hidden + h) * hidden[h];
        most = fmax(most, sum);
    }
    return most;
}

/* Gates change by at most a quarter of what they are made of. */
static void scale(test_call *c)
{
    const ptac_squeeze_excite *p = (const ptac_squeeze_excite *)c->params;
    test_buffer *y = &c->buffers[c->output_buffers[0]];
    const int64_t n_image = p->n_channels * p->n_places;

    for (int64_t image = 0; image < p->n; image++) {
        const double gates = gate_scale(c, image);

        for (int64_t i = 0; i < n_image; i++)
            y->least_scale =
                fmax(y->least_scale,
                     gates * magnitude(c, PTAC_EXCITE_X, image * n_image + i));
    }
}

/*
 * A lane's sums have up to MOST_CHANNELS / 8 terms, twice, and those of a mean as many
 * as PTAC_MEAN_CHAIN; eight lanes and the ends of rows add a few, of which a quarter
 * counts, and the gate and the product some more.
 */
GENERATOR(squeeze_excite, .op = PTAC_OP_SQUEEZE_EXCITE, .make = make_squeeze_excite,
          .scale = scale, .roundings = 24)
