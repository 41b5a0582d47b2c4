/*
 * depthwise_block_tpl.h - the inner loops of depthwise convolution, on packed strips.
 *
 * Expects the words of ops/math/lanes.h. A line is a row of places along one axis of
 * the image, each a vector of LANES floats: of columns where lanes are channels, of
 * rows where lanes are pixels, of vectors of a signal. Registers hold several results
 * of a line, so that one load serves as many taps along it as meet there; the taps of
 * the other axis follow one after the other. A result's sum runs over the other axis
 * and, within that, along the line, whatever else is computed beside it.
 */
#include "ops/conv/depthwise/depthwise_plan.h"

enum {
    MOST_KERNEL = PTAC_DEPTHWISE_MOST_KERNEL,
    MANY = 7, /* results in registers, beside as many taps: half of AVX2's are left */
    SOME = 4,
};

typedef struct line {
    int64_t from_step, to_step; /* floats to the next packed place, the next result */
    int n_others;               /* taps of the other axis, and where they begin: */
    int64_t other_at[MOST_KERNEL];
    int taps, stride, dilation;   /* along the line */
    int n_phases;                 /* each result of so many belongs to another line */
    const float *weights;         /* vectors: [other axis][along] */
    vec scale, bias, least, most; /* of the epilogue */
} line;

typedef void line_fn(const line *l, const float *from, int n, float *to, int n_lanes,
                     int n_last);
typedef void gradient_line_fn(const line *l, const float *from, int n,
                              const float *grad, int n_lanes, float *sums);

/* The epilogue; NaN passes. */
INLINE vec finished(const line *l, vec sum)
{
    return v_min(l->most, v_max(l->least, v_fma(sum, l->scale, l->bias)));
}

INLINE void store_lanes(float *to, vec v, int n)
{
    if (n == LANES)
        v_store(to, v);
    else
        v_store_first(to, v, n);
}

INLINE void load_taps(int k, const float *from, vec taps[MOST_KERNEL])
{
#pragma GCC unroll 8
    for (int a = 0; a < k; a++)
        taps[a] = v_load(from + a * LANES);
}

/* r results of k taps at stride s; the last one stores n_last lanes. */
INLINE void results_at(const line *l, int r, int k, int s, const float *from, float *to,
                       int n_lanes, int n_last)
{
    const float *weights = l->weights;
    vec sums[MANY];

#pragma GCC unroll 8
    for (int i = 0; i < r; i++)
        sums[i] = v_zero();
    for (int b = 0; b < l->n_others; b++, weights += k * LANES) {
        const float *at = from + l->other_at[b];
        vec taps[MOST_KERNEL];

        load_taps(k, weights, taps);
#pragma GCC unroll 24
        for (int place = 0; place < (r - 1) * s + k; place++) {
            const vec x = v_load(at + place * l->from_step);

#pragma GCC unroll 8
            for (int i = 0; i < r; i++)
                if (place >= i * s && place < i * s + k)
                    sums[i] = v_fma(x, taps[place - i * s], sums[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < r; i++)
        store_lanes(to + i * l->to_step, finished(l, sums[i]),
                    i == r - 1 ? n_last : n_lanes);
}

/* The same of any taps. */
INLINE void any_results_at(const line *l, int r, const float *from, float *to,
                           int n_lanes, int n_last)
{
    const float *weights = l->weights;
    vec sums[SOME];

#pragma GCC unroll 4
    for (int i = 0; i < r; i++)
        sums[i] = v_zero();
    for (int b = 0; b < l->n_others; b++) {
        const float *at = from + l->other_at[b];

        for (int a = 0; a < l->taps; a++, weights += LANES) {
            const vec tap = v_load(weights);

#pragma GCC unroll 4
            for (int i = 0; i < r; i++)
                sums[i] =
                    v_fma(v_load(at + (i * l->stride + a * l->dilation) * l->from_step),
                          tap, sums[i]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < r; i++)
        store_lanes(to + i * l->to_step, finished(l, sums[i]),
                    i == r - 1 ? n_last : n_lanes);
}

TARGET static void any_line(const line *l, const float *from, int n, float *to,
                            int n_lanes, int n_last)
{
    const int64_t step = l->stride * l->from_step;
    int i = 0;

    for (; i + SOME <= n; i += SOME)
        any_results_at(l, SOME, from + i * step, to + i * l->to_step, n_lanes,
                       i + SOME == n ? n_last : n_lanes);
    for (; i < n; i++)
        any_results_at(l, 1, from + i * step, to + i * l->to_step, n_lanes,
                       i + 1 == n ? n_last : n_lanes);
}

/* Fewer results at once where many would compute more of them twice at the end. */
INLINE bool takes_some(int n)
{
    return n < MANY || 10 * SOME * ptac_parts(n, SOME) < 9 * MANY * ptac_parts(n, MANY);
}

/* Where the results do not divide, the last block begins earlier. */
INLINE void blocks_of_line(const line *l, int r, int k, int s, const float *from, int n,
                           float *to, int n_lanes, int n_last)
{
    for (int i = 0; i < n; i += r) {
        if (i + r > n)
            i = n - r;
        results_at(l, r, k, s, from + i * s * l->from_step, to + i * l->to_step,
                   n_lanes, i + r == n ? n_last : n_lanes);
    }
}

INLINE void add_gradients(const line *l, const float *grad, int n, int n_lanes,
                          float *sum)
{
    vec total = v_load(sum);

    for (int i = 0; i < n; i++)
        total = v_add(total, v_load_first(grad + i * l->to_step, n_lanes));
    v_store(sum, total);
}

/*
 * Adds the products of r gradients with what their taps meet. A lane without a gradient
 * must not meet an infinity, so that no other is loaded.
 */
INLINE void products_at(const line *l, int r, int k, int s, const float *from,
                        const float *grad, int n_lanes, float *sums)
{
    vec grads[MANY];

#pragma GCC unroll 8
    for (int i = 0; i < r; i++)
        grads[i] = v_load_first(grad + i * l->to_step, n_lanes);
    for (int b = 0; b < l->n_others; b++, sums += k * LANES) {
        const float *at = from + l->other_at[b];
        vec taps[MOST_KERNEL];

        load_taps(k, sums, taps);
#pragma GCC unroll 24
        for (int place = 0; place < (r - 1) * s + k; place++) {
            const vec x = v_load_first(at + place * l->from_step, n_lanes);

#pragma GCC unroll 8
            for (int i = 0; i < r; i++)
                if (place >= i * s && place < i * s + k)
                    taps[place - i * s] = v_fma(x, grads[i], taps[place - i * s]);
        }
#pragma GCC unroll 8
        for (int a = 0; a < k; a++)
            v_store(sums + a * LANES, taps[a]);
    }
}

INLINE void any_products_at(const line *l, int r, const float *from, const float *grad,
                            int n_lanes, float *sums)
{
    vec grads[SOME];

#pragma GCC unroll 4
    for (int i = 0; i < r; i++)
        grads[i] = v_load_first(grad + i * l->to_step, n_lanes);
    for (int b = 0; b < l->n_others; b++) {
        const float *at = from + l->other_at[b];

        for (int a = 0; a < l->taps; a++, sums += LANES) {
            vec sum = v_load(sums);

#pragma GCC unroll 4
            for (int i = 0; i < r; i++) {
                const int place = i * l->stride + a * l->dilation;

                sum = v_fma(v_load_first(at + place * l->from_step, n_lanes), grads[i],
                            sum);
            }
            v_store(sums, sum);
        }
    }
}

TARGET static void any_gradient_line(const line *l, const float *from, int n,
                                     const float *grad, int n_lanes, float *sums)
{
    const int64_t step = l->stride * l->from_step;
    int i = 0;

    for (; i + SOME <= n; i += SOME)
        any_products_at(l, SOME, from + i * step, grad + i * l->to_step, n_lanes, sums);
    for (; i < n; i++)
        any_products_at(l, 1, from + i * step, grad + i * l->to_step, n_lanes, sums);
}

INLINE void products_of_line(const line *l, int k, int s, const float *from, int n,
                             const float *grad, int n_lanes, float *sums)
{
    int i = 0;

    for (; i + MANY <= n; i += MANY)
        products_at(l, MANY, k, s, from + i * s * l->from_step, grad + i * l->to_step,
                    n_lanes, sums);
    for (; i + SOME <= n; i += SOME)
        products_at(l, SOME, k, s, from + i * s * l->from_step, grad + i * l->to_step,
                    n_lanes, sums);
    any_gradient_line(l, from + i * s * l->from_step, n - i, grad + i * l->to_step,
                      n_lanes, sums);
}

#define DEFINE_LINES(k, s)                                                             \
    TARGET static void line_##k##_##s(const line *l, const float *from, int n,         \
                                      float *to, int n_lanes, int n_last)              \
    {                                                                                  \
        if (n < SOME)                                                                  \
            any_line(l, from, n, to, n_lanes, n_last);                                 \
        else if (takes_some(n))                                                        \
            blocks_of_line(l, SOME, k, s, from, n, to, n_lanes, n_last);               \
        else                                                                           \
            blocks_of_line(l, MANY, k, s, from, n, to, n_lanes, n_last);               \
    }                                                                                  \
    TARGET static void gradient_line_##k##_##s(const line *l, const float *from,       \
                                               int n, const float *grad, int n_lanes,  \
                                               float *sums)                            \
    {                                                                                  \
        if (n_lanes == LANES)                                                          \
            products_of_line(l, k, s, from, n, grad, LANES, sums);                     \
        else                                                                           \
            products_of_line(l, k, s, from, n, grad, n_lanes, sums);                   \
    }
DEFINE_LINES(3, 1)
DEFINE_LINES(3, 2)
DEFINE_LINES(5, 1)
DEFINE_LINES(5, 2)
DEFINE_LINES(7, 1)
DEFINE_LINES(7, 2)

/* What computes a line of so many taps at such a stride; unrolled where it is usual. */
typedef struct line_functions {
    line_fn *results;
    gradient_line_fn *products;
} line_functions;

INLINE line_functions line_functions_of(int taps, int stride)
{
    static const line_functions usual[3][2] = {
        {{line_3_1, gradient_line_3_1}, {line_3_2, gradient_line_3_2}},
        {{line_5_1, gradient_line_5_1}, {line_5_2, gradient_line_5_2}},
        {{line_7_1, gradient_line_7_1}, {line_7_2, gradient_line_7_2}},
    };

    if (stride > 2 || (taps != 3 && taps != 5 && taps != 7))
        return (line_functions){any_line, any_gradient_line};
    return usual[taps / 2 - 1][stride - 1];
}
