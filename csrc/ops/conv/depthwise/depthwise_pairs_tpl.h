/*
 * depthwise_pairs_tpl.h - gradients of what depthwise convolution at stride 2 reads.
 *
 * Expects the words of ops/math/lanes.h. Between the pixels of grad_y the stride puts
 * zeros, which meet every other tap. So results go in pairs along both axes. Of taps in
 * the plan's reverse order, and where the plan's padding, which may be negative, is
 * even, the first of a pair meets the even ones and the second the odd ones: tap a of
 * row i of pairs lies in row i + (a + 1) / 2 of grad_y, counted from where tap 0 of row
 * 0 lies. Where the padding is odd, the first meets the odd taps, and the row is
 * i + a / 2. Along columns likewise. Lanes are neighbouring pairs of columns; on their
 * way to memory two vectors become a row of pixels.
 *
 * Sums are [row of pairs][row of the pair][column of the pair].
 */
#include "ops/conv/depthwise/depthwise_in_place_tpl.h"

enum {
    PAIRS = 2, /* rows of pairs in registers: four results each */
};

/* Where pairs go. */
typedef struct pairs_to {
    float *image; /* row 0, where the first result of the first lane lies */
    int first;    /* row of the first result */
    int size;     /* rows */
    int n;        /* pixels of two vectors that there are */
} pairs_to;

typedef void pairs_fn(const line *l, const window *at, int n, const pairs_to *to);

/* Adds the taps of column b: they are which of a pair of columns meets. */
INLINE void add_column(const line *l, const window *at, int r, int k, int odd, int b,
                       int which, const float *rows[MOST_ROWS], vec sums[PAIRS][2][2])
{
    const int64_t column = (b + 1 - odd) / 2;
    const mask inside = at->inside[0][b];
    vec taps[MOST_KERNEL];

    load_taps(k, l->weights + b * k * LANES, taps);
#pragma GCC unroll 8
    for (int place = 0; place < r + k / 2; place++) {
        const vec x = v_load_where(rows[place] + column, inside);

#pragma GCC unroll 2
        for (int j = 0; j < r; j++) {
            const int first = 2 * (place - j) + odd, second = first - 1;

            if (place >= j && second >= 0 && second < k)
                sums[j][1][which] = v_fma(x, taps[second], sums[j][1][which]);
            if (place >= j && first < k)
                sums[j][0][which] = v_fma(x, taps[first], sums[j][0][which]);
        }
    }
}

INLINE void store_pixels(const line *l, const pairs_to *to, int row, vec first,
                         vec second)
{
    float *at = to->image + row * l->to_step;
    const vec a = finished(l, first), b = finished(l, second);
    const vec low = v_zip_low(a, b), high = v_zip_high(a, b);

    if (to->n == 2 * LANES) {
        v_store(at, low);
        v_store(at + LANES, high);
    } else {
        v_store_two(at, low, high, to->n);
    }
}

/* As prefetch_next(): of the image a vector a row, of results four. */
INLINE void prefetch_pairs(const line *l, const window *at, int r, int i,
                           const pairs_to *to)
{
    const int64_t step = (int64_t)sizeof *at->image;
    uintptr_t image = (uintptr_t)at->image, beside = (uintptr_t)to->image;

    image += (uintptr_t)(((at->first + i) * at->row_step + at->ahead) * step);
    beside += (uintptr_t)(((to->first + 2 * i) * l->to_step + at->ahead_beside) * step);
#pragma GCC unroll 2
    for (int j = 0; j < r; j++, image += (uintptr_t)(at->row_step * step))
        __builtin_prefetch((const void *)image);
#pragma GCC unroll 4
    for (int j = 0; j < 2 * r; j++, beside += (uintptr_t)(l->to_step * step)) {
        __builtin_prefetch((const void *)beside);
        __builtin_prefetch((const void *)(beside + (uintptr_t)(LANES * step)));
    }
}

/* r rows of pairs of k taps from the i-th on. */
INLINE void pairs_in_place(const line *l, const window *at, int r, int k, int odd,
                           int i, const pairs_to *to)
{
    const float *rows[MOST_ROWS];
    vec sums[PAIRS][2][2];

    find_rows(at, i, r + k / 2, rows);
#pragma GCC unroll 8
    for (int j = 0; j < r * 4; j++)
        sums[j / 4][j / 2 % 2][j % 2] = v_zero();
    for (int b = 0; b < l->n_others; b += 2) {
        add_column(l, at, r, k, odd, b, odd, rows, sums);
        if (b + 1 < l->n_others)
            add_column(l, at, r, k, odd, b + 1, !odd, rows, sums);
    }
    prefetch_pairs(l, at, r, i, to);
#pragma GCC unroll 4
    for (int j = 0; j < r * 2; j++) {
        const int row = to->first + 2 * i + j;

        if (row < to->size)
            store_pixels(l, to, row, sums[j / 2][j % 2][0], sums[j / 2][j % 2][1]);
    }
}

#define DEFINE_PAIRS(k, odd)                                                           \
    TARGET static void pairs_##k##_##odd(const line *l, const window *at, int n,       \
                                         const pairs_to *to)                           \
    {                                                                                  \
        int i = 0;                                                                     \
                                                                                       \
        for (; i + PAIRS <= n; i += PAIRS)                                             \
            pairs_in_place(l, at, PAIRS, k, odd, i, to);                               \
        for (; i < n; i++)                                                             \
            pairs_in_place(l, at, 1, k, odd, i, to);                                   \
    }
DEFINE_PAIRS(3, 0)
DEFINE_PAIRS(3, 1)
DEFINE_PAIRS(5, 0)
DEFINE_PAIRS(5, 1)
DEFINE_PAIRS(7, 0)
DEFINE_PAIRS(7, 1)

/* By taps / 2 - 1 and whether the padding is odd. */
static pairs_fn *const pairs_of_lines[][2] = {
    {pairs_3_0, pairs_3_1},
    {pairs_5_0, pairs_5_1},
    {pairs_7_0, pairs_7_1},
};
