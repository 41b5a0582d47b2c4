/*
 * depthwise_in_place_tpl.h - depthwise convolution from the image as it lies.
 *
 * Expects the words of ops/math/lanes.h. Lanes are neighbouring columns, lines go down
 * the image as in depthwise_block_tpl.h. What lies beside the image is not loaded but
 * taken for zeros, and for rows above and below it a row of zeros is read.
 */
#include "ops/conv/depthwise/depthwise_block_tpl.h"

/* Where the taps of a line lie. */
typedef struct window {
    const float *image; /* row 0, where the first tap of the first lane lies */
    const float *zeros; /* of a row: as many as its taps reach */
    int64_t row_step;
    int64_t ahead, ahead_beside; /* to the next strip of the image, and beside it */
    int first, size;             /* row of the first result's first tap; rows */
    mask inside[MOST_KERNEL];    /* lanes that are in the image, of each other tap */
} window;

typedef void line_in_place_fn(const line *l, const window *at, int n, float *to,
                              int n_lanes, int n_last);
typedef void gradient_line_in_place_fn(const line *l, const window *at, int n,
                                       const float *grad, int n_lanes, float *sums);

/* n rows from row on. */
INLINE void find_rows(const window *at, int row, int n,
                      const float *rows[MANY + MOST_KERNEL - 1])
{
    const float *from;

    row += at->first;
    from = at->image + row * at->row_step;
#pragma GCC unroll 16
    for (int i = 0; i < n; i++, row++, from += at->row_step)
        rows[i] = (uint32_t)row < (uint32_t)at->size ? from : at->zeros;
}

/*
 * Fetches for the next strip what r rows of this one are: a vector a row, of the image
 * and of the results or gradients. The CPU by itself foresees no further than a page,
 * and not over the edge from one column of blocks to the next.
 */
INLINE void prefetch_next(const line *l, const window *at, int r, int i,
                          const float *beside)
{
    const int64_t step = (int64_t)sizeof *beside;
    uintptr_t image = (uintptr_t)at->image, other = (uintptr_t)beside;

    image += (uintptr_t)(((at->first + i) * at->row_step + at->ahead) * step);
    other += (uintptr_t)(at->ahead_beside * step);
#pragma GCC unroll 8
    for (int j = 0; j < r; j++) {
        __builtin_prefetch((const void *)image);
        __builtin_prefetch((const void *)other);
        image += (uintptr_t)(at->row_step * step);
        other += (uintptr_t)(l->to_step * step);
    }
}

/* r results of k taps from row i on; the last one stores n_last lanes. */
INLINE void results_in_place(const line *l, const window *at, int r, int k, int i,
                             float *to, int n_lanes, int n_last)
{
    const float *rows[MANY + MOST_KERNEL - 1], *weights = l->weights;
    vec sums[MANY];

    find_rows(at, i, r + k - 1, rows);
#pragma GCC unroll 8
    for (int j = 0; j < r; j++)
        sums[j] = v_zero();
    for (int b = 0; b < l->n_others; b++, weights += k * LANES) {
        const int64_t column = l->other_at[b];
        const mask inside = at->inside[b];
        vec taps[MOST_KERNEL];

        load_taps(k, weights, taps);
#pragma GCC unroll 16
        for (int place = 0; place < r + k - 1; place++) {
            const vec x = v_load_where(rows[place] + column, inside);

#pragma GCC unroll 8
            for (int j = 0; j < r; j++)
                if (place >= j && place < j + k)
                    sums[j] = v_fma(x, taps[place - j], sums[j]);
        }
    }
    to += i * l->to_step;
    prefetch_next(l, at, r, i, to);
#pragma GCC unroll 8
    for (int j = 0; j < r; j++)
        store_lanes(to + j * l->to_step, finished(l, sums[j]),
                    j == r - 1 ? n_last : n_lanes);
}

/* Where the results do not divide, the last block begins earlier. */
INLINE void blocks_in_place(const line *l, const window *at, int r, int k, int n,
                            float *to, int n_lanes, int n_last)
{
    for (int i = 0; i < n; i += r) {
        if (i + r > n)
            i = n - r;
        results_in_place(l, at, r, k, i, to, n_lanes, i + r == n ? n_last : n_lanes);
    }
}

/* Adds the products of r gradients from row i on with what their taps meet. */
INLINE void products_in_place(const line *l, const window *at, int r, int k, int i,
                              const float *grad, int n_lanes, float *sums)
{
    const float *rows[MANY + MOST_KERNEL - 1];
    vec grads[MANY];

    find_rows(at, i, r + k - 1, rows);
    grad += i * l->to_step;
#pragma GCC unroll 8
    for (int j = 0; j < r; j++)
        grads[j] = v_load_first(grad + j * l->to_step, n_lanes);
    prefetch_next(l, at, r, i, grad);
    for (int b = 0; b < l->n_others; b++, sums += k * LANES) {
        const int64_t column = l->other_at[b];
        const mask inside = at->inside[b];
        vec taps[MOST_KERNEL];

        load_taps(k, sums, taps);
#pragma GCC unroll 16
        for (int place = 0; place < r + k - 1; place++) {
            const vec x = v_load_where(rows[place] + column, inside);

#pragma GCC unroll 8
            for (int j = 0; j < r; j++)
                if (place >= j && place < j + k)
                    taps[place - j] = v_fma(x, grads[j], taps[place - j]);
        }
#pragma GCC unroll 8
        for (int a = 0; a < k; a++)
            v_store(sums + a * LANES, taps[a]);
    }
}

INLINE void gradients_in_place(const line *l, const window *at, int k, int n,
                               const float *grad, int n_lanes, float *sums)
{
    int i = 0;

    for (; i + MANY <= n; i += MANY)
        products_in_place(l, at, MANY, k, i, grad, n_lanes, sums);
    for (; i + SOME <= n; i += SOME)
        products_in_place(l, at, SOME, k, i, grad, n_lanes, sums);
    for (; i < n; i++)
        products_in_place(l, at, 1, k, i, grad, n_lanes, sums);
}

#define DEFINE_LINES_IN_PLACE(k)                                                       \
    TARGET static void line_in_place_##k(const line *l, const window *at, int n,       \
                                         float *to, int n_lanes, int n_last)           \
    {                                                                                  \
        if (n < SOME)                                                                  \
            blocks_in_place(l, at, 1, k, n, to, n_lanes, n_last);                      \
        else if (takes_some(n))                                                        \
            blocks_in_place(l, at, SOME, k, n, to, n_lanes, n_last);                   \
        else                                                                           \
            blocks_in_place(l, at, MANY, k, n, to, n_lanes, n_last);                   \
    }                                                                                  \
    TARGET static void gradient_line_in_place_##k(const line *l, const window *at,     \
                                                  int n, const float *grad,            \
                                                  int n_lanes, float *sums)            \
    {                                                                                  \
        if (n_lanes == LANES)                                                          \
            gradients_in_place(l, at, k, n, grad, LANES, sums);                        \
        else                                                                           \
            gradients_in_place(l, at, k, n, grad, n_lanes, sums);                      \
    }
DEFINE_LINES_IN_PLACE(3)
DEFINE_LINES_IN_PLACE(5)
DEFINE_LINES_IN_PLACE(7)

/* By taps / 2 - 1. */
static line_in_place_fn *const lines_in_place[] = {line_in_place_3, line_in_place_5,
                                                   line_in_place_7};
static gradient_line_in_place_fn *const gradient_lines_in_place[] = {
    gradient_line_in_place_3, gradient_line_in_place_5, gradient_line_in_place_7};
