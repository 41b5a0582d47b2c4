/*
 * gen_norm.c - random calls of LayerNorm, RMSNorm and of a sum before them.
 */
#include "gen_norm.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_ELEMENTS = 6000,
    MANY_ELEMENTS = 40000,
};

void random_norm(rng *r, ptac_norm *p, bool is_rms)
{
    const int64_t most = rng_chance(r, 20) ? MANY_ELEMENTS : MOST_ELEMENTS;

    switch (rng_below(r, 5)) {
    case 0: /* where more lanes are taken */
        p->width = RNG_PICK(r, 256, 512, 1024, 2048, 4096) + 8 * rng_between(r, -1, 1);
        break;
    case 1: /* whole packs, and one more */
        p->width = 8 * rng_length(r, 100) + rng_chance(r, 20);
        break;
    case 2: /* read twice */
        p->width = most == MANY_ELEMENTS ? 8 * rng_between(r, 1000, 2500) : 5001;
        break;
    default:
        p->width = rng_length(r, 300);
    }
    p->width = ptac_least(p->width, most);
    p->n_rows = rng_length(r, most / p->width);
    p->eps = rng_chance(r, 50) ? 1e-5 : 1e-6;
    /* of few, a block has many rows; of many, sums of weights come in many parts */
    p->n_processors = (int)RNG_PICK(r, 1, 2, 3, 20);
    p->is_rms = is_rms;
}

void fill_rows(rng *r, const ptac_norm *p, float *x)
{
    const bool is_special = p->width < 1000 && rng_chance(r, 15);

    for (int64_t row = 0; row < p->n_rows; row++, x += p->width) {
        const double spread = ldexp(1, (int)RNG_PICK(r, 0, 0, 0, -5, 6));
        const double away = spread * (double)RNG_PICK(r, 0, 0, 1, 10, -100);

        if (rng_chance(r, 5)) {
            for (int64_t i = 0; i < p->width; i++)
                x[i] = (float)(row % 3 - 1);
            continue;
        }
        fill_smooth(r, PTAC_F32, x, p->width, spread);
        for (int64_t i = 0; i < p->width; i++)
            x[i] = (float)(x[i] + away);
        if (is_special && rng_chance(r, 30))
            x[rng_below(r, p->width)] = rng_chance(r, 50) ? NAN : INFINITY;
    }
}

float *norm_rows(test_call *c)
{
    const int64_t sizes[] = {norm_of(c)->n_rows, norm_of(c)->width};
    float *x = test_input(c, PTAC_F32, 2, sizes, false);

    test_also_16_bits(c);
    return x;
}

float *norm_weights(rng *r, test_call *c, bool is_there)
{
    float *weight;

    if (!is_there) {
        test_no_input(c);
        return NULL;
    }
    weight = test_input(c, PTAC_F32, 1, &norm_of(c)->width, false);
    test_also_16_bits(c);
    fill_smooth(r, PTAC_F32, weight, norm_of(c)->width, 2);
    return weight;
}

float *norm_statistics(test_call *c)
{
    return test_input(c, PTAC_F32, 1, &norm_of(c)->n_rows, false);
}

void norm_output(test_call *c, bool is_there, int n_dims)
{
    const int64_t sizes[] = {norm_of(c)->n_rows, norm_of(c)->width};

    if (!is_there) {
        test_no_output(c);
        return;
    }
    test_output(c, PTAC_F32, n_dims, n_dims == 2 ? sizes : &sizes[1], false);
    test_also_16_bits(c);
}

void note_norm(test_call *c)
{
    const ptac_norm *p = norm_of(c);
    char has[PTAC_MAX_INPUTS + PTAC_MAX_OUTPUTS + 1] = "";
    int n = 0;

    for (int i = 0; i < c->call.n_inputs; i++)
        has[n++] = c->call.inputs[i].n_elements ? 'x' : '-';
    for (int i = 0; i < c->call.n_outputs; i++)
        has[n++] = c->call.outputs[i].n_elements ? 'x' : '-';
    snprintf(c->note, sizeof c->note,
             "%s, %lld rows of %lld, eps %g, tensors %s, %d processors",
             p->is_rms ? "rms" : "layer", (long long)p->n_rows, (long long)p->width,
             p->eps, has, p->n_processors);
}

double largest_of(const float *x, int64_t n)
{
    double largest = 0;

    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* Of forward; which tensors there are is told by a bit each, in the order below. */
enum { WEIGHT = 1, BIAS = 2, STATISTICS = 4 };

static void add_tensors(rng *r, test_call *c, int which)
{
    const ptac_norm *p = norm_of(c);

    fill_rows(r, p, norm_rows(c));
    norm_weights(r, c, which & WEIGHT);
    norm_weights(r, c, (which & BIAS) && !p->is_rms);
    if (c->call.op == PTAC_OP_ADD_NORM)
        fill_smooth(r, PTAC_F32, norm_rows(c), p->n_rows * p->width, 1);
    else
        test_no_input(c);
    norm_output(c, true, 2);
    for (int i = 0; i < 2; i++)
        if ((which & STATISTICS) && (i == 0 || !p->is_rms))
            test_output(c, PTAC_F32, 1, &p->n_rows, false);
        else
            test_no_output(c);
    norm_output(c, c->call.op == PTAC_OP_ADD_NORM, 2);
    note_norm(c);
}

static void make(rng *r, test_call *c, ptac_op op, bool is_rms)
{
    c->call.op = op;
    random_norm(r, norm_of(c), is_rms);
    add_tensors(r, c, (int)rng_below(r, 8));
}

static void make_layer_norm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_LAYER_NORM, false);
}

static void make_rms_norm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_RMS_NORM, true);
}

static void make_add_norm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_ADD_NORM, rng_chance(r, 50));
}

static double input_at(const ptac_call *call, int input, int64_t i)
{
    const float *data = call->inputs[input].data;

    return data ? (double)data[i] : 0;
}

/* What a row's results are made of: its largest element, with its mean, times rstd. */
static double row_scale(const ptac_call *call, int64_t row, double *largest)
{
    const ptac_norm *p = call->params;
    double sum = 0, squares = 0;

    *largest = 0;
    for (int64_t i = row * p->width; i < (row + 1) * p->width; i++) {
        const double x =
            input_at(call, PTAC_NORM_X, i) + input_at(call, PTAC_NORM_RESIDUAL, i);

        *largest = fmax(*largest, fabs(x));
        sum += x;
        squares += x * x;
    }
    sum /= (double)p->width;
    squares = squares / (double)p->width - (p->is_rms ? 0 : sum * sum);
    return *largest / sqrt(fmax(squares, 0) + p->eps);
}

static void scale(test_call *c)
{
    const ptac_norm *p = norm_of(c);
    const ptac_view *weight = &c->call.inputs[PTAC_NORM_WEIGHT];
    const ptac_view *bias = &c->call.inputs[PTAC_NORM_BIAS];
    const int mean = c->output_buffers[PTAC_NORM_MEAN];
    double of_y = 0, of_mean = 0;

    for (int64_t row = 0; row < p->n_rows; row++) {
        double largest;
        const double of_row = row_scale(&c->call, row, &largest);

        if (isfinite(of_row)) {
            of_y = fmax(of_y, of_row);
            of_mean = fmax(of_mean, largest);
        }
    }
    of_y *= weight->data ? largest_of(weight->data, p->width) : 1;
    of_y += bias->data ? largest_of(bias->data, p->width) : 0;
    c->buffers[c->output_buffers[PTAC_NORM_Y]].least_scale = of_y;
    if (mean >= 0)
        c->buffers[mean].least_scale = of_mean;
}

/* Tokens of a small model and of a large one, and rows that are read twice. */
static bool typical(int i, rng *r, test_call *c, ptac_op op, bool is_rms)
{
    static const int64_t sizes[][2] = {{96, 768}, {48, 2048}, {2, 20000}};
    ptac_norm *p = norm_of(c);

    if (i >= 3)
        return false;
    c->call.op = op;
    *p = (ptac_norm){sizes[i][0], sizes[i][1], 1e-5, 1, is_rms, false};
    add_tensors(r, c, WEIGHT | BIAS | STATISTICS);
    return true;
}

static bool typical_layer_norm(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_LAYER_NORM, false);
}

static bool typical_rms_norm(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_RMS_NORM, true);
}

static bool typical_add_norm(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_ADD_NORM, i == 1);
}

/* Rows that do not fit in registers are read again, and weights for each of them. */
static int64_t least_bytes(const test_call *c)
{
    const ptac_view *in = c->call.inputs;
    const int64_t bytes = (int64_t)c->buffers[0].element_bytes;
    const int64_t others =
        in[PTAC_NORM_WEIGHT].n_elements + in[PTAC_NORM_BIAS].n_elements;

    if (!is_long_norm(c))
        return test_bytes(c);
    return test_bytes(c) +
           bytes * (in[PTAC_NORM_X].n_elements + in[PTAC_NORM_RESIDUAL].n_elements +
                    (in[PTAC_NORM_X].sizes[0] - 1) * others);
}

/*
 * The mean errs by u for each of at most 16 + 5 + 16 additions in a row and its
 * division, x less the mean by one more, and that much of the row's largest element
 * reaches the result. rstd errs by half of as much for the sum of squares, and by 3 for
 * its root and divisions; a product and the last operation follow. Which lanes have
 * which elements depends on whether tensors begin at multiples of 16 bytes, as stock's.
 */
#define NORM(name, id)                                                                 \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, .scale = scale,           \
              .roundings = 64, .threads_change_bits = true, .typical = typical_##name, \
              .least_bytes = least_bytes)

NORM(layer_norm, LAYER_NORM)
NORM(rms_norm, RMS_NORM)
NORM(add_norm, ADD_NORM)
