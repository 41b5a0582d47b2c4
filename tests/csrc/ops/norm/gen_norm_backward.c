/*
 * gen_norm_backward.c - random calls of the gradients of norms.
 */
#include "gen_norm.h"

#include <math.h>
#include <stdlib.h>

/* Which tensors a call has, a bit each. */
enum {
    WEIGHT = 1,
    GRAD_SUM = 2,
    GRAD_X = 4,
    GRAD_WEIGHT = 8,
    GRAD_BIAS = 16,
    ALL = 31,
};

/* mean and rstd as forward saves them, of rows that are finite. */
static void fill_statistics(const ptac_norm *p, const float *x, float *rstd,
                            float *mean)
{
    for (int64_t row = 0; row < p->n_rows; row++, x += p->width) {
        double sum = 0, squares = 0;

        for (int64_t i = 0; i < p->width && !p->is_rms; i++)
            sum += x[i];
        sum /= (double)p->width;
        for (int64_t i = 0; i < p->width; i++)
            squares += (x[i] - sum) * (x[i] - sum);
        rstd[row] = (float)(1 / sqrt(squares / (double)p->width + p->eps));
        if (mean)
            mean[row] = (float)sum;
    }
}

static void add_parts(test_call *c, bool has_weight_gradients)
{
    const int64_t n = ptac_norm_parts(norm_of(c), has_weight_gradients);

    if (n == 0) {
        test_no_output(c);
        return;
    }
    test_output(c, PTAC_F32, 1, &n, false);
    c->buffers[c->n_buffers - 1].use = SCRATCH;
}

static void add_tensors(rng *r, test_call *c, int which)
{
    const ptac_norm *p = norm_of(c);
    const int64_t n = p->n_rows * p->width;
    float *grad = norm_rows(c), *x = norm_rows(c), *rstd, *mean = NULL;

    fill_smooth(r, PTAC_F32, grad, n, ldexp(1, (int)RNG_PICK(r, 0, 0, -8, 8)));
    fill_smooth(r, PTAC_F32, x, n, (double)RNG_PICK(r, 1, 4));
    rstd = norm_statistics(c);
    if (p->is_rms)
        test_no_input(c);
    else
        mean = norm_statistics(c);
    fill_statistics(p, x, rstd, mean);
    if (rng_chance(r, 10)) /* not one of the row's maximum, nor of its sums alone */
        grad[rng_below(r, n)] = rng_chance(r, 50) ? NAN : INFINITY;
    norm_weights(r, c, which & WEIGHT);
    if (c->call.op == PTAC_OP_ADD_NORM_BACKWARD && (which & GRAD_SUM))
        fill_smooth(r, PTAC_F32, norm_rows(c), n, 1);
    else
        test_no_input(c);
    norm_output(c, which & GRAD_X, 2);
    norm_output(c, which & GRAD_WEIGHT, 1);
    norm_output(c, (which & GRAD_BIAS) && !p->is_rms, 1);
    add_parts(c, (which & GRAD_WEIGHT) || ((which & GRAD_BIAS) && !p->is_rms));
    note_norm(c);
}

static void make(rng *r, test_call *c, ptac_op op, bool is_rms)
{
    c->call.op = op;
    random_norm(r, norm_of(c), is_rms);
    add_tensors(r, c, rng_chance(r, 50) ? ALL : (int)rng_below(r, ALL + 1));
}

static void make_layer_norm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_LAYER_NORM_BACKWARD, false);
}

static void make_rms_norm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_RMS_NORM_BACKWARD, true);
}

static void make_add_norm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_ADD_NORM_BACKWARD, rng_chance(r, 50));
}

/* Without signs: what an element gives to the bias and to the weight, and with it g. */
typedef struct shares {
    double of_bias, of_weight, grad, product;
} shares;

static shares shares_of(const ptac_call *call, int64_t row, int64_t i)
{
    const ptac_norm *p = call->params;
    const ptac_view *in = call->inputs;
    const int64_t at = row * p->width + i;
    const float *mean = in[PTAC_NORM_GRAD_MEAN].data;
    const float *weight = in[PTAC_NORM_GRAD_WEIGHT_OF].data;
    const double x = ((const float *)in[PTAC_NORM_GRAD_X_OF].data)[at];
    const double normal = (x - (mean ? mean[row] : 0)) *
                          ((const float *)in[PTAC_NORM_GRAD_RSTD].data)[row];
    const double grad = ((const float *)in[PTAC_NORM_GRAD_Y].data)[at];
    const double g = fabs(grad * (weight ? weight[i] : 1));

    return (shares){fabs(grad), fabs(grad * normal), g, fabs(g * normal)};
}

/* What the gradients of x of a row are made of. */
static double row_scale(const ptac_call *call, int64_t row)
{
    const ptac_norm *p = call->params;
    const double rstd = ((const float *)call->inputs[PTAC_NORM_GRAD_RSTD].data)[row];
    const double n = (double)p->width;
    double sum = 0, products = 0, largest = 0;

    for (int64_t i = 0; i < p->width; i++) {
        const shares s = shares_of(call, row, i);

        sum += s.grad;
        products += s.product;
        largest = fmax(largest, s.grad);
    }
    /* |x^| is at most the root of n, and hardly ever above 4 */
    return rstd * (largest + sum / n + fmin(sqrt(n), 4) * products / n);
}

static void set_scale(test_call *c, int output, double scale)
{
    if (c->output_buffers[output] >= 0)
        c->buffers[c->output_buffers[output]].least_scale = scale;
}

static void scale(test_call *c)
{
    const ptac_norm *p = norm_of(c);
    double of_x = 0, of_weight = 0, of_bias = 0;

    for (int64_t row = 0; row < p->n_rows; row++) {
        const double of_row = row_scale(&c->call, row);

        of_x = isfinite(of_row) ? fmax(of_x, of_row) : of_x;
    }
    for (int64_t i = 0; i < p->width; i++) {
        shares sum = {0};

        for (int64_t row = 0; row < p->n_rows; row++) {
            const shares s = shares_of(&c->call, row, i);

            sum.of_weight += s.of_weight;
            sum.of_bias += s.of_bias;
        }
        of_weight =
            isfinite(sum.of_weight) ? fmax(of_weight, sum.of_weight) : of_weight;
        of_bias = isfinite(sum.of_bias) ? fmax(of_bias, sum.of_bias) : of_bias;
    }
    set_scale(c, PTAC_NORM_GRAD_X, of_x);
    set_scale(c, PTAC_NORM_GRAD_WEIGHT, of_weight);
    set_scale(c, PTAC_NORM_GRAD_BIAS, of_bias);
}

/* So many rows that a block's sums of the weights' gradients count little. */
static bool typical(int i, rng *r, test_call *c, ptac_op op, bool is_rms)
{
    static const int64_t sizes[][2] = {{128, 768}, {96, 2048}, {32, 10000}};
    ptac_norm *p = norm_of(c);

    if (i >= 3)
        return false;
    c->call.op = op;
    *p = (ptac_norm){sizes[i][0], sizes[i][1], 1e-5, 1, is_rms, false};
    add_tensors(r, c, ALL);
    return true;
}

static bool typical_layer_norm(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_LAYER_NORM_BACKWARD, false);
}

static bool typical_rms_norm(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_RMS_NORM_BACKWARD, true);
}

static bool typical_add_norm(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_ADD_NORM_BACKWARD, i == 1);
}

/*
 * Rows that do not fit in registers are read again, and for the weights' gradients once
 * more, whose parts are then written and read; weights are read twice for each row.
 */
static int64_t least_bytes(const test_call *c)
{
    enum { PARTS = 16, TIMES = 2 };
    const ptac_view *in = c->call.inputs;
    const int64_t bytes = (int64_t)c->buffers[0].element_bytes;
    const int64_t weights = in[PTAC_NORM_GRAD_WEIGHT_OF].n_elements;
    const int64_t n_rows = in[0].sizes[0], width = in[0].sizes[1];

    if (!is_long_norm(c))
        return test_bytes(c);
    return test_bytes(c) + 4 * n_rows * width * bytes +
           (2 * n_rows - 1) * weights * bytes +
           TIMES * 2 * PARTS * width * (int64_t)sizeof(float);
}

/*
 * x^ errs by 2 u, a product with it and one with the weight by one each. Sums over a
 * row err by u for each of at most 16 + 5 + 16 additions, and so do those over rows for
 * at most 40 of a block and 9 of its parts, eight and a shared sum. Which lanes have
 * which elements depends on whether tensors begin at multiples of 16 bytes, as stock's.
 */
#define NORM(name, id)                                                                 \
    GENERATOR(name, .op = PTAC_OP_##id##_BACKWARD, .make = make_##name,                \
              .scale = scale, .roundings = 72, .typical = typical_##name,              \
              .least_bytes = least_bytes, .most_launches = 3,                          \
              .threads_change_bits = true)

NORM(layer_norm, LAYER_NORM)
NORM(rms_norm, RMS_NORM)
NORM(add_norm, ADD_NORM)
