/*
 * winograd_tpl.h - convolution by transformed tiles, on the lanes named before.
 *
 * Images are turned on their side on the way in and out, so that a lane holds a
 * channel. Layouts:
 *
 *   patch      [row][column][LANES channels]
 *   tiles      [point][group of LANES channels][tile][LANES]
 *   weights    [panel][point][input channel][2 * LANES output channels]
 *   products   [point][tile][2 * LANES output channels]
 *
 * Sums over channels are cut every SUM_CUT channels: partial sums are added up in a
 * second set of registers, which halves the error of long sums.
 */
#include "ops/conv/winograd.h"
#include "ops/conv/winograd_points_tpl.h"

#include <string.h>

enum {
    MAX_POINTS = 6, /* along one side of a tile */
    SUM_CUT = 16,
    PANEL = 2 * LANES,
    MAX_ROWS = ROWS_OF_TILES, /* tiles that are multiplied together */
};

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
                        cursor *at)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const int m = n - i < LANES ? (int)(n - i) : LANES;
        vec pixels[LANES];

        if (m == LANES && n_channels == LANES) {
#pragma GCC unroll 16
            for (int c = 0; c < LANES; c++)
                pixels[c] = v_load(x + c * step + i);
        } else {
            for (int c = 0; c < LANES; c++)
                pixels[c] =
                    c < n_channels ? v_load_first(x + c * step + i, m) : v_zero();
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

INLINE int lesser(int a, int b)
{
    return a < b ? a : b;
}

INLINE int greater(int a, int b)
{
    return a > b ? a : b;
}

/*
 * The part of an image that a patch of rows x columns at (top, left) covers; outside
 * the image a patch is zero.
 */
INLINE void load_patch(const float *x, int h, int w, int n_channels, int top, int left,
                       int rows, int columns, float *patch)
{
    const int first = greater(0, -top), last = greater(first, lesser(rows, h - top));
    const int from = greater(0, -left), to = greater(from, lesser(columns, w - left));
    const int64_t row_step = (int64_t)columns * LANES, plane = (int64_t)h * w;
    const size_t row_bytes = (size_t)row_step * sizeof(float);
    cursor at = {patch + first * row_step + from * LANES, row_step, 0, to - from};

    memset(patch, 0, (size_t)first * row_bytes);
    memset(patch + last * row_step, 0, (size_t)(rows - last) * row_bytes);
    for (int i = first; i < last; i++) {
        float *row = patch + i * row_step;

        for (int j = 0; j < from; j++)
            v_store(row + j * LANES, v_zero());
        for (int j = to; j < columns; j++)
            v_store(row + j * LANES, v_zero());
    }
    x += (int64_t)(top + first) * w + left + from;
    if (to - from == w) {
        take_pixels(x, plane, n_channels, (int64_t)(last - first) * w, &at);
    } else {
        for (int i = first; i < last; i++, x += w)
            take_pixels(x, plane, n_channels, to - from, &at);
    }
}

/* The same way back, of what lies inside the image. */
INLINE void store_patch(float *y, int h, int w, int n_channels, int top, int left,
                        int rows, int columns, float *patch)
{
    const int n_rows = lesser(rows, h - top), n_columns = lesser(columns, w - left);
    const int64_t row_step = (int64_t)columns * LANES, plane = (int64_t)h * w;
    cursor at = {patch, row_step, 0, n_columns};

    y += (int64_t)top * w + left;
    if (n_columns == w) {
        give_pixels(y, plane, n_channels, (int64_t)n_rows * w, &at);
    } else {
        for (int i = 0; i < n_rows; i++, y += w)
            give_pixels(y, plane, n_channels, n_columns, &at);
    }
}

/* One column of a tile, in n points. */
INLINE void transform_column(int n, const float *patch, int64_t row_step, vec *out)
{
    vec in[MAX_POINTS];

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
        in[i] = v_load(patch + i * row_step);
    transform_input(n, in, out);
}

/* A row of tiles; neighbours share all their columns but mw. */
INLINE void transform_row(const float *patch, int64_t row_step, int n_tiles, int mh,
                          int mw, int r, float *tiles, int64_t step)
{
    const int nh = mh + r - 1, nw = mw + r - 1;
    vec columns[MAX_POINTS][MAX_POINTS];

#pragma GCC unroll 6
    for (int j = 0; j < r - 1; j++)
        transform_column(nh, patch + j * LANES, row_step, columns[j]);
    for (int t = 0; t < n_tiles; t++, patch += mw * LANES, tiles += LANES) {
#pragma GCC unroll 6
        for (int j = r - 1; j < nw; j++)
            transform_column(nh, patch + j * LANES, row_step, columns[j]);
#pragma GCC unroll 6
        for (int i = 0; i < nh; i++) {
            vec in[MAX_POINTS], out[MAX_POINTS];

#pragma GCC unroll 6
            for (int j = 0; j < nw; j++)
                in[j] = columns[j][i];
            transform_input(nw, in, out);
#pragma GCC unroll 6
            for (int j = 0; j < nw; j++)
                v_store(tiles + (i * nw + j) * step, out[j]);
        }
#pragma GCC unroll 6
        for (int j = 0; j < r - 1; j++)
#pragma GCC unroll 6
            for (int i = 0; i < nh; i++)
                columns[j][i] = columns[j + mw][i];
    }
}

/* All channels of a strip, whose first tile is number tile of its block. */
INLINE void transform_strip(const ptac_winograd_plan *plan, const ptac_strip *s,
                            int tile, int mh, int mw, int r, float *tiles, float *patch)
{
    const ptac_winograd *conv = &plan->conv;
    const int rows = s->n_rows * mh + r - 1, columns = s->n_columns * mw + r - 1;
    const int64_t row_step = (int64_t)columns * LANES;
    const int64_t plane = (int64_t)conv->h * conv->w;
    const float *x = conv->x + s->image * conv->in_channels * plane;

    tiles += tile * LANES;
    for (int c = 0; c < conv->in_channels; c += LANES) {
        load_patch(x + c * plane, conv->h, conv->w,
                   lesser(LANES, conv->in_channels - c), s->row * mh - conv->pad_h,
                   s->column * mw - conv->pad_w, rows, columns, patch);
        for (int i = 0; i < s->n_rows; i++)
            transform_row(patch + i * mh * row_step, row_step, s->n_columns, mh, mw, r,
                          tiles + i * s->n_columns * LANES, plan->tile_step);
        tiles += (int64_t)plan->max_tiles * LANES;
    }
}

/*
 * rows tiles times a panel: products = tiles * weights, summed over channels. step lies
 * between groups of channels.
 */
INLINE void multiply(int rows, const float *tiles, int64_t step, const float *weights,
                     int n_channels, float *products)
{
    vec sums[MAX_ROWS][2];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = v_zero();
    for (int c = 0; c < n_channels; c += SUM_CUT) {
        vec parts[MAX_ROWS][2];

#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            parts[i][0] = parts[i][1] = v_zero();
        for (int d = c; d < c + SUM_CUT && d < n_channels; d += LANES) {
            const int n = lesser(LANES, n_channels - d);

#pragma GCC unroll 2
            for (int k = 0; k < n; k++) {
                const vec left = v_load(weights), right = v_load(weights + LANES);

                weights += PANEL;
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) {
                    const vec value = v_set(tiles[i * LANES + k]);

                    parts[i][0] = v_fma(value, left, parts[i][0]);
                    parts[i][1] = v_fma(value, right, parts[i][1]);
                }
            }
            tiles += step;
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            sums[i][0] = v_add(sums[i][0], parts[i][0]);
            sums[i][1] = v_add(sums[i][1], parts[i][1]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        v_store(products + i * PANEL, sums[i][0]);
        v_store(products + i * PANEL + LANES, sums[i][1]);
    }
}

#define DEFINE_MULTIPLY(rows)                                                          \
    TARGET static __attribute__((noinline)) void multiply_##rows(                      \
        const float *tiles, int64_t step, const float *weights, int n_channels,        \
        float *products)                                                               \
    {                                                                                  \
        multiply(rows, tiles, step, weights, n_channels, products);                    \
    }
DEFINE_MULTIPLY(1)
DEFINE_MULTIPLY(2)
DEFINE_MULTIPLY(3)
DEFINE_MULTIPLY(4)
DEFINE_MULTIPLY(5)
DEFINE_MULTIPLY(6)
#if ROWS_OF_TILES > 6
DEFINE_MULTIPLY(7)
#endif

typedef void (*multiply_fn)(const float *, int64_t, const float *, int, float *);

static const multiply_fn multiply_rows[] = {
    NULL,       multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
#if ROWS_OF_TILES > 6
    multiply_7,
#endif
};

/* One point of n_tiles tiles. */
TARGET static void multiply_point(const ptac_winograd_plan *plan, int n_tiles,
                                  const float *tiles, const float *weights,
                                  float *products)
{
    const int64_t step = (int64_t)plan->max_tiles * LANES;
    const int n_groups = (n_tiles + MAX_ROWS - 1) / MAX_ROWS;

    for (int i = 0; i < n_groups; i++) {
        const int rows = n_tiles / n_groups + (i < n_tiles % n_groups);

        multiply_rows[rows](tiles, step, weights, plan->conv.in_channels, products);
        tiles += rows * LANES;
        products += rows * PANEL;
    }
}

/* A row of tiles into a patch. */
INLINE void outputs_row(const float *products, int64_t step, int n_tiles, int mh,
                        int mw, int r, vec bias, float *patch, int64_t row_step)
{
    const int nh = mh + r - 1, nw = mw + r - 1;

    for (int t = 0; t < n_tiles; t++, products += PANEL, patch += mw * LANES) {
        vec columns[MAX_POINTS][MAX_POINTS];

#pragma GCC unroll 6
        for (int j = 0; j < nw; j++) {
            vec in[MAX_POINTS];

#pragma GCC unroll 6
            for (int i = 0; i < nh; i++)
                in[i] = v_load(products + (i * nw + j) * step);
            transform_products(nh, mh, in, columns[j]);
        }
#pragma GCC unroll 6
        for (int i = 0; i < mh; i++) {
            vec in[MAX_POINTS], out[MAX_POINTS];

#pragma GCC unroll 6
            for (int j = 0; j < nw; j++)
                in[j] = columns[j][i];
            transform_products(nw, mw, in, out);
#pragma GCC unroll 6
            for (int j = 0; j < mw; j++)
                v_store(patch + i * row_step + j * LANES, v_add(out[j], bias));
        }
    }
}

/* LANES channels, from channel on, of a strip. */
INLINE void output_strip(const ptac_winograd_plan *plan, const ptac_strip *s, int tile,
                         int channel, int mh, int mw, int r, const float *products,
                         float *patch)
{
    const ptac_winograd *conv = &plan->conv;
    const int n = lesser(LANES, conv->out_channels - channel);
    const int rows = s->n_rows * mh, columns = s->n_columns * mw;
    const int64_t row_step = (int64_t)columns * LANES;
    const int64_t plane = (int64_t)conv->out_h * conv->out_w;
    float *y = conv->y + (s->image * conv->out_channels + channel) * plane;
    const vec bias = conv->bias ? v_load_first(conv->bias + channel, n) : v_zero();

    products += tile * PANEL;
    for (int i = 0; i < s->n_rows; i++)
        outputs_row(products + i * s->n_columns * PANEL, plan->product_step,
                    s->n_columns, mh, mw, r, bias, patch + i * mh * row_step, row_step);
    store_patch(y, conv->out_h, conv->out_w, n, s->row * mh, s->column * mw, rows,
                columns, patch);
}

/* A panel of outputs of strips [first, last), which are one block. */
INLINE void output_panel(const ptac_winograd_plan *plan, int64_t first, int64_t last,
                         int channel, int mh, int mw, int r, const float *products,
                         float *patch)
{
    int tile = 0;

    for (int64_t i = first; i < last; i++) {
        const ptac_strip s = ptac_strip_at(plan, i);

        for (int half = 0; half < PANEL; half += LANES)
            if (channel + half < plan->conv.out_channels)
                output_strip(plan, &s, tile, channel + half, mh, mw, r, products + half,
                             patch);
        tile += s.n_rows * s.n_columns;
    }
}

/* Strips [first, last), which are one block. */
INLINE void run_block(const ptac_winograd_plan *plan, int64_t first, int64_t last,
                      int mh, int mw, int r, float *scratch)
{
    const int n_points = (mh + r - 1) * (mw + r - 1);
    const int64_t point_weights = (int64_t)plan->conv.in_channels * PANEL;
    float *tiles = scratch;
    float *products = tiles + (n_points * plan->tile_step + 15) / 16 * 16;
    float *patch = products + (n_points * plan->product_step + 15) / 16 * 16;
    const float *weights = plan->weights;
    int n_tiles = 0;

    for (int64_t i = first; i < last; i++) {
        const ptac_strip s = ptac_strip_at(plan, i);

        transform_strip(plan, &s, n_tiles, mh, mw, r, tiles, patch);
        n_tiles += s.n_rows * s.n_columns;
    }
    for (int channel = 0; channel < plan->conv.out_channels; channel += PANEL) {
        for (int p = 0; p < n_points; p++, weights += point_weights)
            multiply_point(plan, n_tiles, tiles + p * plan->tile_step, weights,
                           products + p * plan->product_step);
        output_panel(plan, first, last, channel, mh, mw, r, products, patch);
    }
}

/* Pieces [begin, end) of a plan, the context: blocks of their strips, one by one. */
INLINE void run_pieces(int64_t begin, int64_t end, void *context, int mh, int mw, int r)
{
    const ptac_winograd_plan *plan = context;

    for (int64_t i = begin; i < end; i++) {
        const int64_t last = plan->n_strips * (i + 1) / plan->n_pieces;

        for (int64_t at = plan->n_strips * i / plan->n_pieces; at < last;
             at += plan->block)
            run_block(plan, at, at + plan->block < last ? at + plan->block : last, mh,
                      mw, r, plan->scratch + i * plan->n_private);
    }
}

/*
 * The weights of LANES output channels, from output on, and one input channel: taps[i]
 * has tap i of all of them, zeros where there are no more.
 */
INLINE void load_taps(const ptac_winograd *conv, int output, int input, int n_taps,
                      vec *taps)
{
    const int64_t step = conv->is_transposed ? n_taps : conv->in_channels * n_taps;
    const int n = lesser(LANES, conv->out_channels - output);
    const float *weight =
        conv->weight + (conv->is_transposed
                            ? ((int64_t)input * conv->out_channels + output) * n_taps
                            : ((int64_t)output * conv->in_channels + input) * n_taps);
    vec rows[LANES];

    for (int at = 0; at < n_taps; at += LANES) {
        const int m = lesser(LANES, n_taps - at);

#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            rows[i] = i < n ? v_load_first(weight + i * step + at, m) : v_zero();
        v_transpose(rows);
        for (int i = 0; i < m; i++)
            taps[conv->is_transposed ? n_taps - 1 - at - i : at + i] = rows[i];
    }
}

/* Half a panel of outputs, from output on, of one input channel. */
INLINE void transform_weights(const ptac_winograd_plan *plan, int output, int input,
                              int mh, int mw, int r, float *panel)
{
    const ptac_winograd *conv = &plan->conv;
    const int nh = mh + r - 1, nw = mw + r - 1;
    const int64_t point = (int64_t)conv->in_channels * PANEL;
    float *to = panel + input * PANEL + output % PANEL;
    vec taps[25], columns[5][MAX_POINTS];

    load_taps(conv, output, input, r * r, taps);
#pragma GCC unroll 5
    for (int b = 0; b < r; b++) {
        vec in[5];

#pragma GCC unroll 5
        for (int a = 0; a < r; a++)
            in[a] = taps[a * r + b];
        transform_taps(nh, r, in, columns[b]);
    }
#pragma GCC unroll 6
    for (int a = 0; a < nh; a++) {
        vec in[5], out[MAX_POINTS];

#pragma GCC unroll 5
        for (int b = 0; b < r; b++)
            in[b] = columns[b][a];
        transform_taps(nw, r, in, out);
#pragma GCC unroll 6
        for (int b = 0; b < nw; b++)
            v_store(to + (a * nw + b) * point, out[b]);
    }
}

/* All input channels of half panels [begin, end). */
INLINE void transform_halves(int64_t begin, int64_t end, void *context, int mh, int mw,
                             int r)
{
    const ptac_winograd_plan *plan = context;
    const int n = plan->conv.in_channels;
    const int64_t panel = (int64_t)(mh + r - 1) * (mw + r - 1) * n * PANEL;

    for (int64_t i = begin; i < end; i++)
        for (int c = 0; c < n; c++)
            transform_weights(plan, (int)i * LANES, c, mh, mw, r,
                              plan->weights + i / 2 * panel);
}

/*
 * The other way round, for weights that are large: all threads share the tiles of one
 * block, and each transforms the weights of its own panels when it comes to them.
 */
INLINE void share_tiles(int64_t begin, int64_t end, void *context, int mh, int mw,
                        int r)
{
    const ptac_winograd_plan *plan = context;

    for (int64_t i = begin; i < end; i++) {
        const int64_t first = plan->n_in_block * i / plan->n_pieces;
        const int64_t last = plan->n_in_block * (i + 1) / plan->n_pieces;
        int n_tiles = 0;

        for (int64_t j = 0; j < last; j++) {
            const ptac_strip s = ptac_strip_at(plan, plan->block_start + j);

            if (j >= first)
                transform_strip(plan, &s, n_tiles, mh, mw, r, plan->tiles,
                                plan->scratch + i * plan->n_private);
            n_tiles += s.n_rows * s.n_columns;
        }
    }
}

INLINE void run_panels(int64_t begin, int64_t end, void *context, int mh, int mw, int r)
{
    const ptac_winograd_plan *plan = context;
    const int n_points = (mh + r - 1) * (mw + r - 1);
    const int n = plan->conv.in_channels;

    for (int64_t i = begin; i < end; i++) {
        const int64_t last = plan->n_panels * (i + 1) / plan->n_pieces;
        float *patch = plan->scratch + i * plan->n_private;
        float *products = patch + plan->n_patch;
        float *weights = products + (n_points * plan->product_step + 15) / 16 * 16;

        for (int64_t j = plan->n_panels * i / plan->n_pieces; j < last; j++) {
            const int channel = (int)j * PANEL;

            for (int c = 0; c < n; c++)
                for (int half = 0; half < PANEL; half += LANES)
                    transform_weights(plan, channel + half, c, mh, mw, r, weights);
            for (int p = 0; p < n_points; p++)
                multiply_point(plan, plan->n_tiles, plan->tiles + p * plan->tile_step,
                               weights + p * (int64_t)n * PANEL,
                               products + p * plan->product_step);
            output_panel(plan, plan->block_start, plan->block_start + plan->n_in_block,
                         channel, mh, mw, r, products, patch);
        }
    }
}

#define DEFINE_STAGE(stage, name, mh, mw, r)                                           \
    TARGET static void stage##_##name(int64_t begin, int64_t end, void *context)       \
    {                                                                                  \
        stage(begin, end, context, mh, mw, r);                                         \
    }
