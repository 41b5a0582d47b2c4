/*
 * gen_cross_entropy.c - random calls of cross-entropy and of its gradient.
 *
 * Numbers are bounded so that products and sums stay in the range of float, where rows
 * work like stock; the row "scalar" works in double, and only the bounds are its own.
 */
#include "gen_softmax.h"

#include "ops/loss/cross_entropy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double HUGE_LOGIT = 1e28;

static bool typical_forward(int i, rng *r, test_call *c);

static ptac_cross_entropy *params_of(test_call *c)
{
    return (ptac_cross_entropy *)c->params;
}

/* Beside logits of 16 bits other tensors are of those, or of float32. */
static void maybe_16_bits(rng *r, test_call *c)
{
    if (rng_chance(r, 50))
        test_also_16_bits(c);
}

static int64_t ill_index(rng *r, int64_t n_classes)
{
    return RNG_PICK(r, n_classes, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 32,
                    -n_classes);
}

static void add_indices(rng *r, test_call *c)
{
    ptac_cross_entropy *p = params_of(c);
    const int ignored = (int)RNG_PICK(r, 0, 0, 10, 90, 100);
    int64_t *target = test_input(c, PTAC_I64, 1, &p->n_rows, false);

    for (int64_t i = 0; i < p->n_rows; i++)
        target[i] =
            rng_chance(r, ignored) ? p->ignore_index : rng_below(r, p->n_classes);
    if (rng_chance(r, 5)) {
        int64_t *wild = &target[rng_below(r, p->n_rows)];

        *wild = ill_index(r, p->n_classes);
        c->must_be_given_back = *wild != p->ignore_index;
    }
}

static void add_probabilities(rng *r, test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    const int64_t sizes[] = {p->n_rows, p->n_classes}, n = p->n_rows * p->n_classes;
    float *target = test_input(c, PTAC_F32, 2, sizes, false);
    const bool is_one_hot = rng_chance(r, 30);

    maybe_16_bits(r, c);
    fill_smooth(r, PTAC_F32, target, n, 1);
    for (int64_t i = 0; i < n; i++)
        target[i] = is_one_hot ? i % p->n_classes == i / p->n_classes % p->n_classes
                               : fabsf(target[i]);
    if (rng_chance(r, 5))
        target[rng_below(r, n)] = NAN;
}

/*
 * As torch wants them: not negative. In forward not infinite either: the loss of a row
 * that has all of its probability at one class is 0 in float only.
 */
static void add_weights(rng *r, test_call *c, bool may_be_infinite)
{
    const int64_t n = params_of(c)->n_classes;
    const int zeros = (int)RNG_PICK(r, 0, 20, 100);
    float *weight;

    if (rng_chance(r, 50)) {
        test_no_input(c);
        return;
    }
    weight = test_input(c, PTAC_F32, 1, &n, false);
    maybe_16_bits(r, c);
    fill_smooth(r, PTAC_F32, weight, n, (double)RNG_PICK(r, 1, 1000));
    for (int64_t i = 0; i < n; i++)
        weight[i] = rng_chance(r, zeros) ? 0 : fabsf(weight[i]);
    if (rng_chance(r, 5))
        weight[rng_below(r, n)] = may_be_infinite && rng_chance(r, 50) ? INFINITY : NAN;
}

static void add_params(rng *r, test_call *c)
{
    static const double smoothings[] = {0, 0, 0, 1e-3, 0.1, 1};
    ptac_cross_entropy *p = params_of(c);

    random_rows(r, &p->n_rows, &p->n_classes);
    p->ignore_index = RNG_PICK(r, -100, -1, 0, p->n_classes - 1, INT64_MIN);
    p->label_smoothing = smoothings[rng_below(r, 6)];
    p->reduction = (ptac_reduction)rng_below(r, 3);
    p->saves_log_sum = rng_chance(r, 40);
}

static void add_targets(rng *r, test_call *c, bool may_be_infinite)
{
    if (rng_chance(r, 70))
        add_indices(r, c);
    else
        add_probabilities(r, c);
    add_weights(r, c, may_be_infinite);
}

static void note(test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    const ptac_view *inputs = c->call.inputs;

    snprintf(
        c->note, sizeof c->note,
        "%lldx%lld, %s%s, ignore_index %lld, smoothing %g, reduction %d, %d outputs%s",
        (long long)p->n_rows, (long long)p->n_classes,
        inputs[PTAC_CROSS_ENTROPY_TARGET].dtype == PTAC_I64 ? "indices"
                                                            : "probabilities",
        inputs[PTAC_CROSS_ENTROPY_WEIGHT].n_elements ? ", weights" : "",
        (long long)p->ignore_index, p->label_smoothing, (int)p->reduction,
        c->call.n_outputs, p->saves_log_sum ? ", saves log_sum" : "");
}

/* Logarithms of sums err without regard to their own size. */
static void add_saved_outputs(test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    const int64_t n_saved = ptac_cross_entropy_saved(p);
    const int64_t n_work = ptac_cross_entropy_work(p);

    test_output(c, PTAC_F32, 1, &n_saved, false);
    c->buffers[c->n_buffers - 1].least_scale = 1;
    test_output(c, PTAC_F64, 1, &n_work, false);
    c->buffers[c->n_buffers - 1].use = SCRATCH;
}

static void add_logits(rng *r, test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    const int64_t sizes[] = {p->n_rows, p->n_classes};

    fill_logits(r, test_input(c, PTAC_F32, 2, sizes, false), p->n_rows, p->n_classes,
                HUGE_LOGIT);
    test_also_16_bits(c);
}

static void make_forward(rng *r, test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);

    c->call.op = PTAC_OP_CROSS_ENTROPY;
    add_params(r, c);

    const int64_t sizes[] = {p->n_rows, p->n_classes};
    const bool is_reduced = p->reduction != PTAC_REDUCE_NONE;

    add_logits(r, c);
    add_targets(r, c, false);
    test_output(c, PTAC_F32, !is_reduced, &p->n_rows, false);
    maybe_16_bits(r, c);
    if (p->saves_log_sum)
        add_saved_outputs(c);
    else if (rng_chance(r, 30))
        test_no_output(c);
    else
        test_output(c, PTAC_F32, 2, sizes, false);
    note(c);
}

/* What the mean divides by. */
static double divisor(const ptac_call *call)
{
    const ptac_cross_entropy *p = call->params;
    const int64_t *target = call->inputs[PTAC_CROSS_ENTROPY_TARGET].data;
    const float *w = call->inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;
    double sum = 0;

    if (call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype != PTAC_I64)
        return (double)p->n_rows;
    for (int64_t i = 0; i < p->n_rows; i++)
        if (target[i] != p->ignore_index)
            sum += w ? w[target[i]] : 1;
    return sum;
}

/* The sum of what a row's logarithms are multiplied with, also where it is ignored. */
static double all_factors(const ptac_call *call, int64_t row)
{
    const int64_t n = ((const ptac_cross_entropy *)call->params)->n_classes;
    ptac_row_target target;
    double sum;

    ptac_cross_entropy_target(call, row, &target);
    sum = target.at_index;
    for (int64_t i = 0; target.is_soft && i < n; i++)
        sum += ((target.t ? target.t[i] * target.scale : 0) + target.shift) *
               (target.w ? target.w[i] : 1);
    return sum;
}

static double row_factors(const ptac_call *call, int64_t row)
{
    ptac_row_target target;

    ptac_cross_entropy_target(call, row, &target);
    return target.is_ignored ? 0 : all_factors(call, row);
}

/* Each loss as if its logarithms were at least 1: what they are the difference of. */
static void scale_forward(test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    double largest = 0, sum = 0;

    if (c->must_be_given_back)
        return;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double factors = row_factors(&c->call, row);

        if (isfinite(factors)) {
            largest = fmax(largest, factors);
            sum += factors;
        }
    }
    if (p->reduction == PTAC_REDUCE_MEAN)
        sum /= divisor(&c->call);
    c->buffers[c->output_buffers[PTAC_CROSS_ENTROPY_LOSS]].least_scale =
        p->reduction == PTAC_REDUCE_NONE ? largest
        : isfinite(sum)                  ? sum
                                         : 0;
}

/*
 * In u, the unit roundoff. The sum of exponentials errs by 18 for additions in a row,
 * by 2.2 for exp() and by ln(n), 11.5, for what x - max was rounded; its logarithm by
 * that without regard to its own size: 32. Each term u[j] * l[j] errs by 3 in l, by 3
 * for the factors and their product, by 34 for additions in a row: 40 of the loss.
 */
GENERATOR(forward, .op = PTAC_OP_CROSS_ENTROPY, .make = make_forward,
          .scale = scale_forward, .roundings = 72, .typical = typical_forward,
          .most_launches = 2)

/* Like probabilities, with rows that are sure and rows that are lost. */
static void fill_p(rng *r, float *p, int64_t n_rows, int64_t n)
{
    fill_smooth(r, PTAC_F32, p, n_rows * n, 1);
    for (int64_t i = 0; i < n_rows * n; i++)
        p[i] = fabsf(p[i]);
    for (int64_t i = 0; i < n_rows; i++) {
        const int64_t manner = rng_below(r, 20);

        for (int64_t j = 0; j < n && manner < 2; j++)
            p[i * n + j] = manner == 0 ? j == i % n : NAN;
    }
}

static void make_backward(rng *r, test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    float *grad;

    c->call.op = PTAC_OP_CROSS_ENTROPY_BACKWARD;
    add_params(r, c);

    const int64_t sizes[] = {p->n_rows, p->n_classes};
    const int64_t n_saved = ptac_cross_entropy_saved(p);
    const bool is_reduced = p->reduction != PTAC_REDUCE_NONE;

    if (p->saves_log_sum)
        add_logits(r, c);
    else
        fill_p(r, test_input(c, PTAC_F32, 2, sizes, false), p->n_rows, p->n_classes);
    /* From logits, p vanishes in float where it does not in double. */
    add_targets(r, c, !p->saves_log_sum);
    grad = test_input(c, PTAC_F32, !is_reduced, &p->n_rows, false);
    maybe_16_bits(r, c);
    fill_smooth(r, PTAC_F32, grad, is_reduced ? 1 : p->n_rows, 2);
    if (rng_chance(r, 10))
        grad[0] = rng_chance(r, 50) && !p->saves_log_sum ? INFINITY : 0;
    if (p->saves_log_sum)
        test_input(c, PTAC_F32, 1, &n_saved, false); /* filled by save() */
    if (rng_chance(r, 50)) {
        test_output_in_place(c, PTAC_CROSS_ENTROPY_X);
    } else {
        test_output(c, PTAC_F32, 2, sizes, false);
        test_also_16_bits(c);
    }
    note(c);
}

/* A row's maximum, and the logarithm of its sum of exponentials less that. */
static double log_sum(const float *x, int64_t n, double *max)
{
    double sum = 0;

    *max = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        *max = fmax(*max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - *max);
    return log(sum);
}

/* What forward would have saved of the logits and targets that are there now. */
static void save(test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    const float *x = c->call.inputs[PTAC_CROSS_ENTROPY_X].data;
    test_buffer *saved = &c->buffers[c->input_buffers[PTAC_CROSS_ENTROPY_SAVED_BEFORE]];
    float *content = saved->content;

    for (int64_t row = 0; row < p->n_rows; row++) {
        double max;

        content[p->n_rows + row] =
            (float)log_sum(x + row * p->n_classes, p->n_classes, &max);
        content[row] = (float)max;
        content[2 * p->n_rows + row] = (float)all_factors(&c->call, row);
    }
    content[3 * p->n_rows] =
        p->reduction == PTAC_REDUCE_MEAN ? (float)divisor(&c->call) : 1;
    memcpy(saved->data, content, (size_t)saved->n_elements * sizeof *content);
}

/* p * (sum of factors) less a factor, times the gradient; p is at most 1. */
static void scale_backward(test_call *c)
{
    const ptac_cross_entropy *p = params_of(c);
    ptac_cross_entropy_job job = {.call = &c->call};
    const float *grad = c->call.inputs[PTAC_CROSS_ENTROPY_GRAD].data;
    double *scale =
        &c->buffers[c->output_buffers[PTAC_CROSS_ENTROPY_GRAD_X]].least_scale;

    *scale = 0;
    if (c->must_be_given_back)
        return;
    if (p->saves_log_sum)
        save(c);
    job.grad = p->reduction == PTAC_REDUCE_MEAN ? *grad / divisor(&c->call) : *grad;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double of_row =
            fabs(ptac_cross_entropy_grad(&job, row)) * row_factors(&c->call, row);

        if (isfinite(of_row))
            *scale = fmax(*scale, of_row);
    }
}

/* Classes of images, and a vocabulary of an odd number of words. */
static bool make_typical(int i, rng *r, test_call *c, ptac_op op)
{
    static const int64_t sizes[][2] = {{64, 1000}, {64, 1000}, {3, 50257}};
    ptac_cross_entropy *p = params_of(c);
    int64_t n_saved, *target;

    if (i >= 3)
        return false;
    *p =
        (ptac_cross_entropy){sizes[i][0],      sizes[i][1],      -100,
                             i == 1 ? 0.1 : 0, PTAC_REDUCE_MEAN, .saves_log_sum = true};
    n_saved = ptac_cross_entropy_saved(p);
    c->call.op = op;
    fill_smooth(r, PTAC_F32, test_input(c, PTAC_F32, 2, sizes[i], false),
                p->n_rows * p->n_classes, 4);
    test_also_16_bits(c);
    target = test_input(c, PTAC_I64, 1, &p->n_rows, false);
    for (int64_t row = 0; row < p->n_rows; row++)
        target[row] = rng_below(r, p->n_classes);
    test_no_input(c);
    if (op == PTAC_OP_CROSS_ENTROPY) {
        test_output(c, PTAC_F32, 0, NULL, false);
        add_saved_outputs(c);
    } else {
        test_input(c, PTAC_F32, 0, NULL, false);
        test_input(c, PTAC_F32, 1, &n_saved, false);
        test_output(c, PTAC_F32, 2, sizes[i], false);
        test_also_16_bits(c);
    }
    note(c);
    return true;
}

static bool typical_forward(int i, rng *r, test_call *c)
{
    return make_typical(i, r, c, PTAC_OP_CROSS_ENTROPY);
}

static bool typical_backward(int i, rng *r, test_call *c)
{
    return make_typical(i, r, c, PTAC_OP_CROSS_ENTROPY_BACKWARD);
}

/*
 * The sum of factors errs by 34 u for additions in a row (of equal ones, where all
 * classes share the smoothing), by 2 u in each factor and by u as a float; four
 * products and a difference follow.
 */
GENERATOR(backward, .op = PTAC_OP_CROSS_ENTROPY_BACKWARD, .make = make_backward,
          .scale = scale_backward, .roundings = 42, .typical = typical_backward)
