/*
 * winograd_patch_tpl.h - rectangles of images. The includer defines the lanes, see
 * winograd_rows_tpl.h.
 *
 *   patch      [row][column][LANES channels]
 *
 * NCHW images are turned on their side on the way in and out; of NHWC images channels
 * lie side by side as they are.
 *
 * On the way in a patch is searched for values that dwarf most others, and for NaN
 * and infinity: tiles mix their pixels, so that of such a tile all outputs would get
 * the large value's error, or be NaN.
 */
#include "ops/conv/winograd/winograd_plan.h"

#include <math.h>
#include <string.h>

INLINE int lesser(int a, int b)
{
    return a < b ? a : b;
}

INLINE int greater(int a, int b)
{
    return a > b ? a : b;
}

enum {
    /* Squares this many times the mean one are looked at twice. */
    STANDING_OUT = 1024,
};

/* What has been seen of an image's pixels on their way into a patch. */
typedef struct spread {
    vec squares, largest; /* the sum of squares, and the largest of them */
    int64_t n;
} spread;

INLINE void see(spread *seen, vec pixels)
{
    const vec squares = v_mul(pixels, pixels);

    seen->squares = v_add(seen->squares, squares);
    seen->largest = v_max(seen->largest, squares);
}

/* A rectangle of n_rows times n floats, whose rows are step apart. */
typedef struct floats {
    const float *first;
    int64_t step, n;
    int n_rows;
} floats;

/* Whether half of the values that are not zero are dwarfed by the largest one. */
TARGET static __attribute__((noinline)) bool has_giants(const floats *seen,
                                                        float largest)
{
    const float limit = largest / ((float)PTAC_DWARFING * PTAC_DWARFING);
    int64_t n_dwarfs = 0, n_others = 0;

    for (int i = 0; i < seen->n_rows; i++)
        for (int64_t j = 0; j < seen->n; j++) {
            const float value = seen->first[i * seen->step + j];
            const float square = value * value;

            n_dwarfs += square > 0 && square < limit;
            n_others += square >= limit;
        }
    return n_dwarfs > n_others;
}

/* Whether these must not be mixed; n of them were no padding, and seen is in them. */
INLINE bool is_ill_conditioned(const spread *seen, const floats *values)
{
    const float sum = v_sum(seen->squares), largest = v_largest(seen->largest);
    const float standing_out =
        seen->n < 4 * STANDING_OUT ? (float)seen->n / 4 : STANDING_OUT;

    if (!(sum - sum == 0))
        return true; /* NaN, infinity, or squares that overflow */
    return largest * (float)seen->n > standing_out * sum && has_giants(values, largest);
}

/* 1 in each lane that is not zero, next to nothing where it is next to nothing. */
INLINE vec is_filled(vec pixels)
{
    return v_min(v_mul(v_abs(pixels), v_set(1e38f)), v_set(1));
}

/* What a sample of is_unsuited() is of: LANES channels or fewer, of n_pixels pixels. */
INLINE floats sampled(const ptac_winograd *conv, int64_t image, int channel,
                      int64_t n_pixels)
{
    const int64_t plane = (int64_t)conv->h * conv->w;
    const ptac_image_steps steps =
        ptac_image_steps_of(conv->x_is_nhwc, conv->in_channels, plane);
    const int n_channels = lesser(LANES, conv->in_channels - channel);

    return (floats){
        .first = conv->x + image * conv->in_channels * plane + channel * steps.channel +
                 (plane - n_pixels) / 2 * steps.pixel,
        .step = conv->x_is_nhwc ? steps.pixel : steps.channel,
        .n = conv->x_is_nhwc ? n_channels : n_pixels,
        .n_rows = conv->x_is_nhwc ? (int)n_pixels : n_channels,
    };
}

/*
 * A look at one group of channels in eight, few in all: whether one in sixteen is
 * ill-conditioned, and with several groups to a strip far more strips, or less than the
 * least part of the pixels is other than zero.
 */
TARGET static bool is_unsuited(const ptac_winograd *conv, float least_filled)
{
    enum { SHARE = 8, SAMPLES = 32, ILL = 16, PIXELS = 448 };
    const int64_t plane = (int64_t)conv->h * conv->w;
    const int groups = (conv->in_channels + LANES - 1) / LANES;
    const int64_t n_groups = conv->n * groups, few = (n_groups + SHARE - 1) / SHARE;
    const int64_t n_samples = few < SAMPLES ? few : SAMPLES;
    const int64_t n_pixels = plane < PIXELS ? plane : PIXELS;
    int64_t n_seen = 0;
    vec n_filled = v_zero();
    int n_ill = 0;

    for (int64_t i = 0; i < n_samples; i++) {
        const int64_t group = n_groups * i / n_samples, image = group / groups;
        const int channel = (int)(group % groups) * LANES;
        const floats values = sampled(conv, image, channel, n_pixels);
        spread seen = {v_zero(), v_zero(), values.n_rows * values.n};

        for (int row = 0; row < values.n_rows; row++)
            for (int64_t j = 0; j < values.n; j += LANES) {
                const float *at = values.first + row * values.step + j;
                const vec pixels = values.n - j < LANES
                                       ? v_load_first(at, (int)(values.n - j))
                                       : v_load(at);

                see(&seen, pixels);
                n_filled = v_add(n_filled, is_filled(pixels));
            }
        n_seen += seen.n;
        n_ill += is_ill_conditioned(&seen, &values);
    }
    return n_ill * ILL > n_samples || v_sum(n_filled) < least_filled * (float)n_seen;
}

/* Walking a patch in the order of an image's pixels. */
typedef struct cursor {
    float *patch; /* of column 0 of the image in this row */
    int64_t row_step;
    int column, width;
} cursor;

INLINE float *advance(cursor *at, int n)
{
    float *here = at->patch + (int64_t)at->column * LANES;

    at->column += n;
    if (at->column == at->width) {
        at->column = 0;
        at->patch += at->row_step;
    }
    return here;
}

/* n pixels of up to LANES channels, whose planes are step apart, into a patch. */
INLINE void take_pixels(const float *x, int64_t step, int n_channels, int64_t n,
                        cursor *at, spread *seen)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const int m = n - i < LANES ? (int)(n - i) : LANES;
        vec pixels[LANES];

        if (m == LANES && n_channels == LANES) {
#pragma GCC unroll 16
            for (int c = 0; c < LANES; c++) {
                pixels[c] = v_load(x + c * step + i);
                see(seen, pixels[c]);
            }
        } else {
            for (int c = 0; c < LANES; c++) {
                pixels[c] =
                    c < n_channels ? v_load_first(x + c * step + i, m) : v_zero();
                see(seen, pixels[c]);
            }
        }
        v_transpose(pixels);
        if (m == LANES && at->column + LANES <= at->width) {
            float *to = advance(at, LANES);

#pragma GCC unroll 16
            for (int c = 0; c < LANES; c++)
                v_store(to + c * LANES, pixels[c]);
        } else {
            for (int c = 0; c < m; c++)
                v_store(advance(at, 1), pixels[c]);
        }
    }
}

INLINE void give_pixels(float *y, int64_t step, int n_channels, int64_t n, cursor *at)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const int m = n - i < LANES ? (int)(n - i) : LANES;
        vec pixels[LANES];

        if (m == LANES && at->column + LANES <= at->width) {
            const float *from = advance(at, LANES);

#pragma GCC unroll 16
            for (int c = 0; c < LANES; c++)
                pixels[c] = v_load(from + c * LANES);
        } else {
            for (int c = 0; c < LANES; c++)
                pixels[c] = c < m ? v_load(advance(at, 1)) : v_zero();
        }
        v_transpose(pixels);
        if (m == LANES && n_channels == LANES) {
#pragma GCC unroll 16
            for (int c = 0; c < LANES; c++)
                v_store(y + c * step + i, pixels[c]);
        } else {
            for (int c = 0; c < n_channels; c++)
                v_store_first(y + c * step + i, pixels[c], m);
        }
    }
}

/*
 * n pixels, step apart, of up to LANES channels that lie side by side, into a patch.
 * Those behind them are wanted next, and are far away in large images.
 */
INLINE void take_nhwc(const float *x, int64_t step, int n_channels, int n, float *to,
                      spread seen[2])
{
    if (n_channels == LANES) {
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) {
            const vec pixel = v_load(x + j * step);

            see(&seen[j % 2], pixel);
            v_store(to + j * LANES, pixel);
            __builtin_prefetch(x + j * step + LANES, 0, 2);
        }
    } else {
        for (int j = 0; j < n; j++) {
            const vec pixel = v_load_first(x + j * step, n_channels);

            see(&seen[0], pixel);
            v_store(to + j * LANES, pixel);
        }
    }
}

INLINE void give_nhwc(float *y, int64_t step, int n_channels, int n, const float *from)
{
    if (n_channels == LANES) {
#pragma GCC unroll 4
        for (int j = 0; j < n; j++)
            v_store(y + j * step, v_load(from + j * LANES));
    } else {
        for (int j = 0; j < n; j++)
            v_store_first(y + j * step, v_load(from + j * LANES), n_channels);
    }
}

/*
 * The part of an image that a patch of rows x columns at (top, left) covers; outside
 * the image a patch is zero. Whether it must not be mixed, see is_ill_conditioned().
 */
INLINE bool load_patch(const float *x, ptac_image_steps steps, int h, int w,
                       int n_channels, int top, int left, int rows, int columns,
                       float *patch)
{
    const int first = greater(0, -top), last = greater(first, lesser(rows, h - top));
    const int from = greater(0, -left), to = greater(from, lesser(columns, w - left));
    const int64_t row_step = (int64_t)columns * LANES;
    const size_t row_bytes = (size_t)row_step * sizeof(float);
    cursor at = {patch + first * row_step + from * LANES, row_step, 0, to - from};
    spread seen[2] = {
        {v_zero(), v_zero(), (int64_t)(last - first) * (to - from) * n_channels},
        {v_zero(), v_zero(), 0}};

    memset(patch, 0, (size_t)first * row_bytes);
    memset(patch + last * row_step, 0, (size_t)(rows - last) * row_bytes);
    for (int i = first; i < last; i++) {
        float *row = patch + i * row_step;

        for (int j = 0; j < from; j++)
            v_store(row + j * LANES, v_zero());
        for (int j = to; j < columns; j++)
            v_store(row + j * LANES, v_zero());
    }
    x += ((int64_t)(top + first) * w + left + from) * steps.pixel;
    if (steps.pixel > 1) {
        for (int i = first; i < last; i++, x += w * steps.pixel)
            take_nhwc(x, steps.pixel, n_channels, to - from,
                      patch + i * row_step + from * LANES, seen);
        seen[0].squares = v_add(seen[0].squares, seen[1].squares);
        seen[0].largest = v_max(seen[0].largest, seen[1].largest);
    } else if (to - from == w) {
        take_pixels(x, steps.channel, n_channels, (int64_t)(last - first) * w, &at,
                    seen);
    } else {
        for (int i = first; i < last; i++, x += w)
            take_pixels(x, steps.channel, n_channels, to - from, &at, seen);
    }
    return is_ill_conditioned(seen, &(floats){patch, 0, rows * row_step, 1});
}

/* Have pixels of an NHWC image come near, which store_patch() will write. */
INLINE void fetch_patch(const float *y, int64_t step, int h, int w, int top, int left,
                        int rows, int columns)
{
    const int n_rows = lesser(rows, h - top), n_columns = lesser(columns, w - left);

    y += ((int64_t)top * w + left) * step;
    for (int i = 0; i < n_rows; i++, y += w * step)
        for (int j = 0; j < n_columns; j++)
            __builtin_prefetch(y + j * step, 1);
}

/* The same way back, of what lies inside the image. */
INLINE void store_patch(float *y, ptac_image_steps steps, int h, int w, int n_channels,
                        int top, int left, int rows, int columns, float *patch)
{
    const int n_rows = lesser(rows, h - top), n_columns = lesser(columns, w - left);
    const int64_t row_step = (int64_t)columns * LANES;
    cursor at = {patch, row_step, 0, n_columns};

    y += ((int64_t)top * w + left) * steps.pixel;
    if (steps.pixel > 1) {
        for (int i = 0; i < n_rows; i++, y += w * steps.pixel)
            give_nhwc(y, steps.pixel, n_channels, n_columns, patch + i * row_step);
    } else if (n_columns == w) {
        give_pixels(y, steps.channel, n_channels, (int64_t)n_rows * w, &at);
    } else {
        for (int i = 0; i < n_rows; i++, y += w)
            give_pixels(y, steps.channel, n_channels, n_columns, &at);
    }
}
