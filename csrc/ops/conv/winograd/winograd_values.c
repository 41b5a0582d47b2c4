/*
 * winograd_values.c - which weights and images tiles are close for.
 */
#include "ops/conv/winograd/winograd.h"

#include <math.h>
#include <string.h>

/*
 * The least part of the taps' places inside the image times the part of pixels other
 * than zero, for 5x5 kernels, unless nearly all are.
 */
#define LEAST_OF_BOTH 0.31F
#define NEARLY_ALL    0.9F

enum {
    WHOLE_BITS = 12, /* of the integers that weights are looked at for */
    SHORT_BITS = 14, /* of 24: integers, bfloat16, float16 */
    SAMPLES = 64,
};

/* The part of the taps' places along an axis that lie inside the image. */
static float part_along(int size, int out_size, int kernel, int pad)
{
    int64_t n_inside = 0;

    for (int tap = 0; tap < kernel; tap++) {
        const int first = pad - tap > 0 ? pad - tap : 0;
        const int last = size + pad - tap < out_size ? size + pad - tap : out_size;

        n_inside += last > first ? last - first : 0;
    }
    return (float)n_inside / (float)((int64_t)out_size * kernel);
}

/* Of images that are mostly padding stock sums few terms, with less error. */
float ptac_winograd_part_inside(const ptac_winograd *conv, int r)
{
    return part_along(conv->h, conv->out_h, r, conv->pad_h) *
           part_along(conv->w, conv->out_w, r, conv->pad_w);
}

/* The part of the images' pixels that must be other than zero for tiles to be close. */
static float least_filled(const ptac_winograd_stages *stages)
{
    if (stages->tile.r == 5)
        return 0.4F;
    return stages->tile.mh * stages->tile.mw > 8   ? 0.125F
           : stages->tile.mh * stages->tile.mw > 4 ? 0.0625F
                                                   : 0;
}

/* Whether weights are integers of WHOLE_BITS bits times one power of two; not all 0. */
static bool are_integers(const float *weights, int64_t n)
{
    int highest = -1000, lowest = 1000; /* powers of two of the bits in use */

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits, mantissa;
        int exponent;

        memcpy(&bits, weights + i, sizeof bits);
        exponent = (int)(bits >> 23 & 0xff);
        mantissa = (bits & 0x7fffff) | (exponent ? 0x800000 : 0);
        if (exponent == 0xff)
            return false;
        if (mantissa == 0)
            continue;
        exponent = exponent ? exponent : 1;

        const int top = exponent + 31 - __builtin_clz(mantissa);
        const int bottom = exponent + __builtin_ctz(mantissa);

        highest = top > highest ? top : highest;
        lowest = bottom < lowest ? bottom : lowest;
        if (highest - lowest >= WHOLE_BITS)
            return false;
    }
    return highest >= lowest;
}

/* The filters of a convolution, one for each output and input channel. */
typedef struct filters {
    const float *weights;
    int64_t n;
    int taps;
    int64_t step; /* floats between the taps of one */
} filters;

static filters filters_of(const ptac_winograd *conv, int r)
{
    const int side_by_side =
        conv->is_transposed ? conv->out_channels : conv->in_channels;

    return (filters){
        .weights = conv->weight,
        .n = (int64_t)conv->in_channels * conv->out_channels,
        .taps = r * r,
        .step = conv->weight_is_nhwc ? side_by_side : 1,
    };
}

/* The first tap of filter i, in the order of the weights' first two dimensions. */
static const float *filter_at(const filters *f, int64_t i)
{
    return f->weights +
           (f->step == 1 ? i * f->taps : i / f->step * f->taps * f->step + i % f->step);
}

/* Whether the taps of each filter are all the same; not zeros alone. */
static bool are_constant(const filters *f)
{
    bool is_zero = true;

    for (int64_t i = 0; i < f->n; i++) {
        const float *weights = filter_at(f, i);

        is_zero &= weights[0] == 0;
        for (int j = 1; j < f->taps; j++)
            if (weights[j * f->step] != weights[0])
                return false;
    }
    return !is_zero;
}

/* What a sample of n values says about all of them. */
typedef struct sample {
    int n_seen, n_filled; /* values, and those that are not zero */
    int n_short;          /* those with at most SHORT_BITS significant bits */
} sample;

static void look_at(sample *s, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    s->n_seen++;
    s->n_filled += value != 0;
    s->n_short += value != 0 && (bits & ((1u << (24 - SHORT_BITS)) - 1)) == 0;
}

/* Where value i of NCHW order lies in NHWC; a channel has a plane of pixels. */
static int64_t place_in_nhwc(int64_t i, int64_t n_channels, int64_t plane)
{
    const int64_t pixel = i % plane, channel = i / plane % n_channels;

    return (i / plane / n_channels * plane + pixel) * n_channels + channel;
}

/*
 * SAMPLES values all over the tensor; where these are zero, the first that is not.
 * Where n_channels lie side by side, those of the same places as in NCHW: at even steps
 * through NHWC all might be of one channel.
 */
static sample sample_of(const float *values, int64_t n, int64_t n_channels,
                        int64_t plane)
{
    const int64_t step = n > SAMPLES ? n / SAMPLES : 1;
    sample s = {0};

    for (int64_t i = step / 2; i < n; i += step)
        look_at(&s, values[n_channels > 1 ? place_in_nhwc(i, n_channels, plane) : i]);
    for (int64_t i = 0; i < n && s.n_filled == 0; i++)
        look_at(&s, values[i]);
    return s;
}

static sample sample_of_filters(const filters *f)
{
    return sample_of(f->weights, f->n * f->taps, f->step, f->taps);
}

/* Of images, inputs or gradients of outputs. */
static sample sample_of_images(const float *pixels, bool is_nhwc, int64_t n,
                               int n_channels, int64_t plane)
{
    return sample_of(pixels, n * n_channels * plane, is_nhwc ? n_channels : 1, plane);
}

/* Few bits, as bfloat16 has: stock sums products of two such with hardly an error. */
static bool is_short(const sample *s)
{
    return 2 * s->n_short > s->n_filled;
}

/*
 * How much larger than their outputs the tiles of filters are: the sum over all points
 * of a transformed filter, squared, times what the other transforms do to white noise
 * there, for one of the filter's own sum of squares. 116 of random 5x5 filters; 270 of
 * constant ones, whose outputs are as small as the rest of a tile is large. Of 3x3
 * filters in 4x2 tiles 64 and 120.
 *
 * The sum is a quadratic form of the taps. Points come in pairs, so that taps an odd
 * number apart do not meet; others meet with element (i + j) / 2 of a direction's row
 * here, the sum over its points p of p^(i + j) |column of A^T|^2 |row of B^T|^2 /
 * (product of p's distances)^2.
 */
static bool are_ill_conditioned(const filters *f, ptac_tile_size tile)
{
    enum { FILTERS = 32 };
    static const float of_5x5[] = {22.78F, 5.123F, 3.456F, 4.624F, 17.92F};
    static const float of_four[] = {26.24F, 9.747F, 21.37F}, of_two[] = {4, 2, 4};
    const int r = tile.r;
    const float *down = r == 5 ? of_5x5 : of_four, *across = r == 5 ? of_5x5 : of_two;
    const int64_t step = f->n > FILTERS ? f->n / FILTERS : 1;
    double mixed = 0, own = 0;

    for (int64_t i = 0; i < f->n; i += step) {
        const float *g = filter_at(f, i);

        for (int at = 0; at < r * r; at++) {
            const int a = at / r, b = at % r;
            float others = 0;

            for (int c = a % 2; c < r; c += 2)
                for (int d = b % 2; d < r; d += 2)
                    others += down[(a + c) / 2] * across[(b + d) / 2] *
                              g[(c * r + d) * f->step];
            mixed += (double)(others * g[at * f->step]);
            own += (double)(g[at * f->step] * g[at * f->step]);
        }
    }
    return mixed > (r == 5 ? 170 : 90) * own;
}

/* Trained weights end every search within their first few values. */
bool ptac_winograd_is_better_summed(const ptac_winograd *conv,
                                    const ptac_winograd_stages *s)
{
    const int r = s->tile.r;
    const filters f = filters_of(conv, r);
    const sample weights = sample_of_filters(&f);
    float filled, least;

    if (are_integers(conv->weight, f.n * f.taps) || are_constant(&f))
        return true;
    if (is_short(&weights)) {
        const sample pixels =
            sample_of_images(conv->x, conv->x_is_nhwc, conv->n, conv->in_channels,
                             (int64_t)conv->h * conv->w);

        if (is_short(&pixels))
            return true;
    }
    if (weights.n_filled == 0)
        return false; /* zeros are exact */
    if (r < 5)
        return s->is_unsuited(conv, least_filled(s));
    filled = (float)weights.n_filled / (float)weights.n_seen;
    least =
        fmaxf(least_filled(s),
              fminf(LEAST_OF_BOTH / ptac_winograd_part_inside(conv, r), NEARLY_ALL));
    return s->is_unsuited(conv, least / filled) || are_ill_conditioned(&f, s->tile);
}

bool ptac_winograd_wants_smaller_tiles(const ptac_call *call, ptac_tile_size tile)
{
    enum { TERMS = 512, CHANNELS = 5 };
    const ptac_conv2d *p = call->params;
    const ptac_winograd conv = ptac_winograd_of(call);
    const filters f = filters_of(&conv, tile.r);
    sample weights;

    if (p->result == PTAC_CONV_WEIGHT)
        return ptac_conv2d_pixels(p) < TERMS;
    weights = sample_of_filters(&f);
    return conv.in_channels * weights.n_filled < CHANNELS * weights.n_seen ||
           are_ill_conditioned(&f, tile);
}

bool ptac_winograd_is_weight_better_summed(const ptac_call *call)
{
    const ptac_winograd conv = ptac_winograd_of(call);
    const sample pixels = sample_of_images(conv.x, conv.x_is_nhwc, conv.n,
                                           conv.in_channels, (int64_t)conv.h * conv.w);
    const sample grads =
        sample_of_images(conv.y, conv.y_is_nhwc, conv.n, conv.out_channels,
                         (int64_t)conv.out_h * conv.out_w);

    return is_short(&pixels) && is_short(&grads);
}
