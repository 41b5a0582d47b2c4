/*
 * depthwise_in_place_tpl.h - depthwise convolution from the image as it lies.
 *
 * Expects the words of ops/math/lanes.h. Lanes are neighbouring columns, lines go down
 * the image as in depthwise_block_tpl.h. What lies beside the image is not loaded but
 * taken for zeros, and for rows above and below it a row of zeros is read.
 */
#include "ops/conv/depthwise/depthwise_block_tpl.h"

enum {
    MOST_ROWS = (MANY - 1) * 2 + MOST_KERNEL, /* that a block reads */
};

/* Where the taps of a line lie. */
typedef struct window {
    const float *image; /* row 0, where the first tap of the first lane lies */
    const float *zeros; /* of a row: as many as its taps reach */
    int64_t row_step;
    int64_t ahead, ahead_beside; /* to the next strip of the image, and beside it */
    int first, size;             /* row of the first result's first tap; rows */
    /* Lanes that are in the image, of each other tap; at stride 2 of two vectors. */
    mask inside[2][MOST_KERNEL];
} window;

typedef void line_in_place_fn(const line *l, const window *at, int n, float *to,
                              int n_lanes, int n_last);
typedef void gradient_line_in_place_fn(const line *l, const window *at, int n,
                                       const float *grad, int n_lanes, float *sums);

/* n rows from row on. */
INLINE void find_rows(const window *at, int row, int n, const float *rows[MOST_ROWS])
{
    const float *from;

    row += at->first;
    from = at->image + row * at->row_step;
#pragma GCC unroll 24
    for (int i = 0; i < n; i++, row++, from += at->row_step)
        rows[i] = (uint32_t)row < (uint32_t)at->size ? from : at->zeros;
}

/* What the b-th other tap of a line's results meets in a row, at stride s. */
INLINE vec met_by(const window *at, int s, int b, const float *from)
{
    const vec x = v_load_where(from, at->inside[0][b]);

    return s == 1 ? x : v_evens(x, v_load_where(from + LANES, at->inside[1][b]));
}

/*
 * Fetches for the next strip what r results of this one take: a vector a row, at stride
 * s as many, of the image and of the results or gradients. The CPU by itself foresees
 * no further than a page, and not over the edge from one column of blocks to the next.
 */
INLINE void prefetch_next(const line *l, const window *at, int r, int s, int i,
                          const float *beside)
{
    const int64_t step = (int64_t)sizeof *beside;
    uintptr_t image = (uintptr_t)at->image, other = (uintptr_t)beside;

    image += (uintptr_t)(((at->first + i * s) * at->row_step + at->ahead) * step);
    other += (uintptr_t)(at->ahead_beside * step);
#pragma GCC unroll 16
    for (int j = 0; j < r * s; j++, image += (uintptr_t)(at->row_step * step))
#pragma GCC unroll 2
        for (int part = 0; part < s; part++)
            __builtin_prefetch(
                (const void *)(image + (uintptr_t)(part * LANES * step)));
#pragma GCC unroll 8
    for (int j = 0; j < r; j++, other += (uintptr_t)(l->to_step * step))
        __builtin_prefetch((const void *)other);
}

/* r results of k taps at stride s from i on; the last one stores n_last lanes. */
INLINE void results_in_place(const line *l, const window *at, int r, int k, int s,
                             int i, float *to, int n_lanes, int n_last)
{
    const float *rows[MOST_ROWS], *weights = l->weights;
    const int n_rows = (r - 1) * s + k;
    vec sums[MANY];

    find_rows(at, i * s, n_rows, rows);
#pragma GCC unroll 8
    for (int j = 0; j < r; j++)
        sums[j] = v_zero();
    for (int b = 0; b < l->n_others; b++, weights += k * LANES) {
        const int64_t column = l->other_at[b];
        vec taps[MOST_KERNEL];

        load_taps(k, weights, taps);
#pragma GCC unroll 24
        for (int place = 0; place < n_rows; place++) {
            const vec x = met_by(at, s, b, rows[place] + column);

#pragma GCC unroll 8
            for (int j = 0; j < r; j++)
                if (place >= j * s && place < j * s + k)
                    sums[j] = v_fma(x, taps[place - j * s], sums[j]);
        }
    }
    to += i * l->to_step;
    prefetch_next(l, at, r, s, i, to);
#pragma GCC unroll 8
    for (int j = 0; j < r; j++)
        store_lanes(to + j * l->to_step, finished(l, sums[j]),
                    j == r - 1 ? n_last : n_lanes);
}

/* Where the results do not divide, the last block begins earlier. */
INLINE void blocks_in_place(const line *l, const window *at, int r, int k, int s, int n,
                            float *to, int n_lanes, int n_last)
{
    for (int i = 0; i < n; i += r) {
        if (i + r > n)
            i = n - r;
        results_in_place(l, at, r, k, s, i, to, n_lanes, i + r == n ? n_last : n_lanes);
    }
}

/* Adds the products of r gradients from the i-th on with what their taps meet. */
INLINE void products_in_place(const line *l, const window *at, int r, int k, int s,
                              int i, const float *grad, int n_lanes, float *sums)
{
    const float *rows[MOST_ROWS];
    const int n_rows = (r - 1) * s + k;
    vec grads[MANY];

    find_rows(at, i * s, n_rows, rows);
    grad += i * l->to_step;
#pragma GCC unroll 8
    for (int j = 0; j < r; j++)
        grads[j] = v_load_first(grad + j * l->to_step, n_lanes);
    prefetch_next(l, at, r, s, i, grad);
    for (int b = 0; b < l->n_others; b++, sums += k * LANES) {
        const int64_t column = l->other_at[b];
        vec taps[MOST_KERNEL];

        load_taps(k, sums, taps);
#pragma GCC unroll 24
        for (int place = 0; place < n_rows; place++) {
            const vec x = met_by(at, s, b, rows[place] + column);

#pragma GCC unroll 8
            for (int j = 0; j < r; j++)
                if (place >= j * s && place < j * s + k)
                    taps[place - j * s] = v_fma(x, grads[j], taps[place - j * s]);
        }
#pragma GCC unroll 8
        for (int a = 0; a < k; a++)
            v_store(sums + a * LANES, taps[a]);
    }
}

INLINE void gradients_in_place(const line *l, const window *at, int k, int s, int n,
                               const float *grad, int n_lanes, float *sums)
{
    int i = 0;

    for (; i + MANY <= n; i += MANY)
        products_in_place(l, at, MANY, k, s, i, grad, n_lanes, sums);
    for (; i + SOME <= n; i += SOME)
        products_in_place(l, at, SOME, k, s, i, grad, n_lanes, sums);
    for (; i < n; i++)
        products_in_place(l, at, 1, k, s, i, grad, n_lanes, sums);
}

#define DEFINE_LINES_IN_PLACE(k, s)                                                    \
    TARGET static void line_in_place_##k##_##s(const line *l, const window *at, int n, \
                                               float *to, int n_lanes, int n_last)     \
    {                                                                                  \
        if (n < SOME)                                                                  \
            blocks_in_place(l, at, 1, k, s, n, to, n_lanes, n_last);                   \
        else if (takes_some(n))                                                        \
            blocks_in_place(l, at, SOME, k, s, n, to, n_lanes, n_last);                \
        else                                                                           \
            blocks_in_place(l, at, MANY, k, s, n, to, n_lanes, n_last);                \
    }                                                                                  \
    TARGET static void gradient_line_in_place_##k##_##s(                               \
        const line *l, const window *at, int n, const float *grad, int n_lanes,        \
        float *sums)                                                                   \
    {                                                                                  \
        if (n_lanes == LANES)                                                          \
            gradients_in_place(l, at, k, s, n, grad, LANES, sums);                     \
        else                                                                           \
            gradients_in_place(l, at, k, s, n, grad, n_lanes, sums);                   \
    }
DEFINE_LINES_IN_PLACE(3, 1)
DEFINE_LINES_IN_PLACE(3, 2)
DEFINE_LINES_IN_PLACE(5, 1)
DEFINE_LINES_IN_PLACE(5, 2)
DEFINE_LINES_IN_PLACE(7, 1)
DEFINE_LINES_IN_PLACE(7, 2)

/*
 * By taps / 2 - 1 and stride - 1. What eight lanes do not use, see depthwise_plan.c, is
 * not compiled.
 */
#define UNLESS_EIGHT_LANES(function) (LANES == 8 ? NULL : (function))
static line_in_place_fn *const lines_in_place[][2] = {
    {line_in_place_3_1, line_in_place_3_2},
    {line_in_place_5_1, line_in_place_5_2},
    {line_in_place_7_1, UNLESS_EIGHT_LANES(line_in_place_7_2)},
};
static gradient_line_in_place_fn *const gradient_lines_in_place[][2] = {
    {gradient_line_in_place_3_1, gradient_line_in_place_3_2},
    {gradient_line_in_place_5_1, gradient_line_in_place_5_2},
    {gradient_line_in_place_7_1, UNLESS_EIGHT_LANES(gradient_line_in_place_7_2)},
};
