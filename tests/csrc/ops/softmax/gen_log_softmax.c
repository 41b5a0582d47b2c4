/*
 * gen_log_softmax.c - random calls of softmax and log-softmax, and of their gradients.
 *
 * u is the unit roundoff, n a row's width.
 */
#include "gen_softmax.h"

#include "ops/softmax/softmax.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

static ptac_softmax *params_of(test_call *c)
{
    return (ptac_softmax *)c->params;
}

/* Rows over the middle of three dimensions, of which the last ends in mid-vector. */
static int random_columns(rng *r, ptac_softmax *p, int64_t sizes[3])
{
    p->inner = rng_between(r, PTAC_LEAST_INNER, rng_chance(r, 20) ? 700 : 70);
    p->width = rng_length(r, rng_chance(r, 10) ? 300 : 20);
    sizes[0] = rng_length(r, rng_chance(r, 10) ? 60000 / p->inner / p->width + 1 : 4);
    sizes[1] = p->width;
    sizes[2] = p->inner;
    return 3;
}

/* Rows as a tensor of one to three dimensions; fills sizes, returns how many. */
static int random_sizes(rng *r, ptac_softmax *p, int64_t sizes[3])
{
    int64_t n_rows, width;
    int n_dims = 0;

    if (rng_chance(r, 25))
        return random_columns(r, p, sizes);

    random_rows(r, &n_rows, &width);
    if (n_rows % 2 == 0 && rng_chance(r, 50)) {
        sizes[n_dims++] = 2;
        n_rows /= 2;
    }
    if (n_rows > 1 || rng_chance(r, 50))
        sizes[n_dims++] = n_rows;
    sizes[n_dims++] = width;
    *p = (ptac_softmax){width, 1};
    return n_dims;
}

static void note(test_call *c)
{
    const int64_t width = ptac_softmax_width(&c->call);

    snprintf(c->note, sizeof c->note, "%s %d-d, %lld rows of %lld, %lld apart",
             ptac_dtype_name(c->call.inputs[0].dtype), c->call.inputs[0].n_dims,
             (long long)(c->call.inputs[0].n_elements / width), (long long)width,
             (long long)params_of(c)->inner);
}

/* Classes of images, a vocabulary. */
static const int64_t typical_sizes[][2] = {{64, 1000}, {3, 32000}};

static bool make_typical(int i, rng *r, test_call *c, ptac_op op)
{
    const int64_t *sizes = typical_sizes[i < 2 ? i : 0];
    const bool is_forward = op == PTAC_OP_LOG_SOFTMAX || op == PTAC_OP_SOFTMAX;
    const int n_inputs = is_forward ? 1 : 2;

    c->call.op = op;
    *params_of(c) = (ptac_softmax){sizes[1], 1};
    for (int k = 0; k < n_inputs; k++) {
        float *x = test_input(c, PTAC_F32, 2, sizes, false);

        test_also_16_bits(c);
        fill_smooth(r, PTAC_F32, x, sizes[0] * sizes[1], 4);
    }
    test_output(c, PTAC_F32, 2, sizes, false);
    test_also_16_bits(c);
    note(c);
    return i < 2;
}

static void make_forward(rng *r, test_call *c, ptac_op op)
{
    int64_t sizes[3];
    const int n_dims = random_sizes(r, params_of(c), sizes);
    float *x;

    c->call.op = op;
    x = test_input(c, PTAC_F32, n_dims, sizes, false);
    if (rng_chance(r, 10))
        fill_reals(r, PTAC_F32, x, c->call.inputs[0].n_elements);
    else
        fill_logits(r, x, c->call.inputs[0].n_elements / sizes[n_dims - 1],
                    sizes[n_dims - 1], FLT_MAX);
    test_also_16_bits(c);
    test_output(c, PTAC_F32, n_dims, sizes, false);
    test_also_16_bits(c);
    note(c);
}

/*
 * With infinite gradients exp(y) must not vanish in float where it does not in double:
 * 0 times infinity is NaN, there as in stock.
 */
static void fill_logarithms(rng *r, float *y, int64_t n, bool may_vanish)
{
    const int density = rng_chance(r, 70) ? 0 : (int)RNG_PICK(r, 1, 30);

    fill_smooth(r, PTAC_F32, y, n, may_vanish ? (double)RNG_PICK(r, 1, 10, 120) : 80);
    for (int64_t i = 0; i < n; i++) {
        y[i] = -fabsf(y[i]);
        if (density && rng_chance(r, density))
            y[i] = rng_chance(r, 70) ? -INFINITY : rng_chance(r, 50) ? 0 : NAN;
    }
}

/* Probabilities, some certain and some none, now and then a NaN. */
static void fill_probabilities(rng *r, float *y, int64_t n)
{
    const int density = rng_chance(r, 70) ? 0 : (int)RNG_PICK(r, 1, 30);

    fill_smooth(r, PTAC_F32, y, n, 1);
    for (int64_t i = 0; i < n; i++) {
        y[i] = fabsf(y[i]);
        if (density && rng_chance(r, density))
            y[i] = rng_chance(r, 70) ? 0 : rng_chance(r, 50) ? 1 : NAN;
    }
}

static void make_backward(rng *r, test_call *c, ptac_op op)
{
    const bool has_specials = rng_chance(r, 20);
    int64_t sizes[3];
    const int n_dims = random_sizes(r, params_of(c), sizes);
    float *grad, *y;

    c->call.op = op;
    grad = test_input(c, PTAC_F32, n_dims, sizes, false);
    test_also_16_bits(c);
    y = test_input(c, PTAC_F32, n_dims, sizes, false);
    test_also_16_bits(c);

    const int64_t n = c->call.inputs[0].n_elements;

    /* Sums stay in the range of float. */
    fill_smooth(r, PTAC_F32, grad, n, ldexp(1, (int)RNG_PICK(r, 0, 0, -100, 100)));
    for (int64_t i = 0; has_specials && i < n; i++)
        if (rng_chance(r, 2))
            grad[i] = rng_chance(r, 50) ? NAN : rng_chance(r, 50) ? INFINITY : 0;
    if (op == PTAC_OP_SOFTMAX_BACKWARD)
        fill_probabilities(r, y, n);
    else
        fill_logarithms(r, y, n, !has_specials);
    test_output(c, PTAC_F32, n_dims, sizes, false);
    test_also_16_bits(c);
    note(c);
}

/* What a row's results are made of: its gradients and their sum, without signs. */
static double row_scale(const test_call *c, const float *grad, const float *y,
                        const ptac_softmax *p)
{
    const int64_t n = p->width * p->inner;
    const bool are_logs = c->call.op == PTAC_OP_LOG_SOFTMAX_BACKWARD;
    double sum = 0, largest = 0, largest_p = 0;

    for (int64_t i = 0; i < n; i += p->inner) {
        const double likely = are_logs ? exp(y[i]) : y[i];

        sum += fabs(grad[i]) * (are_logs ? 1 : likely);
        largest = fmax(largest, fabs(grad[i]));
        largest_p = fmax(largest_p, likely);
    }
    return (are_logs ? largest : largest_p * largest) + largest_p * sum;
}

static void scale_backward(test_call *c)
{
    const ptac_softmax *p = params_of(c);
    const float *grad = c->call.inputs[0].data, *y = c->call.inputs[1].data;
    double *scale = &c->buffers[c->output_buffers[0]].least_scale;

    *scale = 0;
    for (int64_t row = 0; row < c->call.inputs[0].n_elements / p->width; row++) {
        const int64_t at = row / p->inner * p->width * p->inner + row % p->inner;
        const double of_row = row_scale(c, grad + at, y + at, p);

        if (isfinite(of_row))
            *scale = fmax(*scale, of_row);
    }
}

#define DEFINE_GENERATOR(name, operator, direction, ...)                               \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make_##direction(r, c, operator);                                              \
    }                                                                                  \
    static bool typical_##name(int i, rng *r, test_call *c)                            \
    {                                                                                  \
        return make_typical(i, r, c, operator);                                        \
    }                                                                                  \
    GENERATOR(name, .op = operator, .make = make_##name, .typical = typical_##name,    \
              __VA_ARGS__)

/*
 * y = (x - max) - log(sum) is rounded twice, by |y| u at most, and log() errs by 2 |y|
 * u: 4. The sum errs by u for each of at most 18 additions in a row (long rows; short
 * ones add up as a tree, log2(n) deep), by 2.2 u for exp(), and by ln(n) u for what x -
 * max was rounded; all that counts u as little as log(n) <= max |y| is large: 6.
 */
DEFINE_GENERATOR(log_softmax, PTAC_OP_LOG_SOFTMAX, forward, .roundings = 10)

/* exp(x - max) / sum: 2.2 u for exp(), 20 u for the sum, and for what x - max was. */
DEFINE_GENERATOR(softmax, PTAC_OP_SOFTMAX, forward, .roundings = 26)

/*
 * grad - exp(y) * sum: the sum errs by u for each of at most 18 additions in a row and
 * once more as a float, exp() by 2.2 u, the difference by u.
 */
DEFINE_GENERATOR(log_gradient, PTAC_OP_LOG_SOFTMAX_BACKWARD, backward,
                 .scale = scale_backward, .roundings = 23)

/* Registers keep two rows of 64 KB at most; longer ones are read again. */
static int64_t least_gradient(const test_call *c)
{
    const test_buffer *y = &c->buffers[1];
    const int64_t width = ptac_softmax_width(&c->call);
    const bool is_long = width * (int64_t)y->element_bytes > INT64_C(1) << 16;

    return test_bytes(c) + 2 * is_long * y->n_elements * (int64_t)y->element_bytes;
}

/* The same, with a product in each term and one behind the difference. */
DEFINE_GENERATOR(gradient, PTAC_OP_SOFTMAX_BACKWARD, backward, .scale = scale_backward,
                 .roundings = 25, .least_bytes = least_gradient)
