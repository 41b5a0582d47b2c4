/*
 * winograd_tpl.h - convolution by transformed tiles.
 *
 * The includer defines the lanes and ROWS_OF_TILES, see winograd_rows_tpl.h. Functions
 * take the size of a tile as a constant: mh 2 to 4 and even, mw 2 or 4, r 3 or 5, nh
 * and nw 4 or 6.
 *
 * A lane holds a channel, see winograd_patch_tpl.h. Layouts:
 *
 *   tiles      [point][group of LANES channels][tile][LANES]
 *   weights    [panel][point][input channel][2 * LANES output channels]
 *   products   [point][tile][2 * LANES output channels]
 *
 * Sums over channels are cut every SUM_CUT channels: partial sums are added up in a
 * second set of registers, which halves the error of long sums.
 */
#include "ops/conv/winograd/winograd_patch_tpl.h"

enum {
    MAX_POINTS = 6, /* along one side of a tile */
    MAX_TAPS = 25,  /* of a kernel */
    SUM_CUT = 16,
    PANEL = 2 * LANES,
    MAX_ROWS = ROWS_OF_TILES, /* tiles that are multiplied together */
};

#include "ops/conv/winograd/winograd_points_tpl.h"

#include "ops/conv/winograd/winograd_outputs_tpl.h"

/* A row of tiles. Those of inputs share all columns but mw with their neighbours. */
INLINE void transform_tiles(matrix of, ptac_tile_size size, const float *patch,
                            int64_t row_step, int n_tiles, float *tiles, int64_t step)
{
    const int h = of == OF_INPUT ? size.nh : size.mh;
    const int w = of == OF_INPUT ? size.nw : size.mw, n_shared = w - size.mw;
    vec columns[MAX_POINTS][MAX_POINTS];

#pragma GCC unroll 6
    for (int j = 0; j < n_shared; j++)
        transform_column(of, h, size.nh, patch + j * LANES, row_step, columns[j]);
    for (int t = 0; t < n_tiles; t++, patch += size.mw * LANES, tiles += LANES) {
#pragma GCC unroll 6
        for (int j = n_shared; j < w; j++)
            transform_column(of, h, size.nh, patch + j * LANES, row_step, columns[j]);
#pragma GCC unroll 6
        for (int i = 0; i < size.nh; i++) {
            vec out[MAX_POINTS];

            transform_row(of, w, size.nw, columns, i, out);
            store_row(size.nw, out, tiles + i * size.nw * step, step);
        }
#pragma GCC unroll 6
        for (int j = 0; j < n_shared; j++)
#pragma GCC unroll 6
            for (int i = 0; i < size.nh; i++)
                columns[j][i] = columns[j + size.mw][i];
    }
}

/*
 * Channels [first, last) of a strip's inputs, or of the gradients of its outputs. Its
 * first tile is number tile of its block. Whether any of them is ill-conditioned.
 */
INLINE bool transform_channels(const ptac_winograd_plan *plan, const ptac_tile_strip *s,
                               int tile, matrix of, ptac_tile_size size, int first,
                               int last, float *tiles, float *patch)
{
    const ptac_winograd *conv = &plan->conv;
    const bool is_input = of == OF_INPUT;
    const int h = is_input ? conv->h : conv->out_h, over = is_input ? size.r - 1 : 0;
    const int w = is_input ? conv->w : conv->out_w;
    const int top = s->row * size.mh - (is_input ? conv->pad_h : 0);
    const int left = s->column * size.mw - (is_input ? conv->pad_w : 0);
    const int rows = s->n_rows * size.mh + over;
    const int columns = s->n_columns * size.mw + over;
    const int64_t row_step = (int64_t)columns * LANES, plane = (int64_t)h * w;
    const int64_t step = is_input ? plan->at.tile_step : plan->at.product_step;
    const int channels = is_input ? conv->in_channels : conv->out_channels;
    const ptac_image_steps steps = ptac_image_steps_of(
        is_input ? conv->x_is_nhwc : conv->y_is_nhwc, channels, plane);
    const float *x = (is_input ? conv->x : conv->y) + s->image * channels * plane;
    bool is_ill_conditioned = false;

    tiles += tile * LANES;
    for (int c = first; c < last; c += LANES) {
        is_ill_conditioned |=
            load_patch(x + c * steps.channel, steps, h, w, lesser(LANES, last - c), top,
                       left, rows, columns, patch);
        for (int i = 0; i < s->n_rows; i++)
            transform_tiles(of, size, patch + i * size.mh * row_step, row_step,
                            s->n_columns, tiles + i * s->n_columns * LANES, step);
        tiles += (int64_t)plan->max_tiles * LANES;
    }
    return is_ill_conditioned;
}

/* All channels of a strip's inputs. */
INLINE bool transform_strip(const ptac_winograd_plan *plan, const ptac_tile_strip *s,
                            int tile, ptac_tile_size size, float *tiles, float *patch)
{
    const bool is_ill_conditioned = transform_channels(
        plan, s, tile, OF_INPUT, size, 0, plan->conv.in_channels, tiles, patch);

    if (is_ill_conditioned)
        ptac_winograd_count_ill(plan);
    return is_ill_conditioned;
}

/* products = rows tiles * a panel, over all channels, whose groups are step apart. */
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

/* Strips [first, last), which are one block. */
INLINE void run_block(const ptac_winograd_plan *plan, int64_t first, int64_t last,
                      ptac_tile_size size, float *scratch)
{
    float *tiles = scratch;
    bool *are_ill_conditioned = (bool *)(tiles + plan->at.marks_at);
    float *products = scratch + plan->at.products_at;
    float *patch = scratch + plan->at.patch_at;
    const float *weights = plan->shared;
    int n_tiles = 0;

    for (int64_t i = first; i < last; i++) {
        const ptac_tile_strip s = ptac_tile_strip_at(plan, i);

        are_ill_conditioned[i - first] =
            transform_strip(plan, &s, n_tiles, size, tiles, patch);
        n_tiles += s.n_rows * s.n_columns;
    }
    for (int channel = 0; channel < plan->conv.out_channels; channel += PANEL) {
        for (int p = 0; p < size.n_points; p++, weights += plan->at.panel_step)
            multiply_point(plan, n_tiles, tiles + p * plan->at.tile_step, weights,
                           products + p * plan->at.product_step);
        output_panel(plan, first, last, are_ill_conditioned, channel, size, products,
                     patch);
    }
}

/* Pieces [begin, end) of a plan, the context: blocks of their strips, one by one. */
INLINE void run_pieces(const ptac_winograd_plan *plan, int64_t i, ptac_tile_size size)
{
    const int64_t last = plan->strips.n * (i + 1) / plan->n_pieces;

    for (int64_t at = plan->strips.n * i / plan->n_pieces;
         at < last && !ptac_winograd_is_ill_conditioned(plan); at += plan->block)
        run_block(plan, at, ptac_least(at + plan->block, last), size,
                  plan->scratch + i * plan->at.n_private);
}

/* Half a panel of outputs, from output on, of one input channel; see load_taps(). */
INLINE void transform_weights(const ptac_winograd_plan *plan, int output, int input,
                              ptac_tile_size size, vec *kept, float *panel)
{
    const ptac_winograd *conv = &plan->conv;
    const int64_t point = plan->at.panel_step;
    float *to = panel + input * PANEL + output % PANEL;
    vec taps[MAX_TAPS], columns[5][MAX_POINTS];

    load_taps(conv, output, input, size.r * size.r, kept, taps);
#pragma GCC unroll 5
    for (int b = 0; b < size.r; b++) {
        vec in[5];

#pragma GCC unroll 5
        for (int a = 0; a < size.r; a++)
            in[a] = taps[a * size.r + b];
        transform_taps(size.nh, size.r, in, columns[b]);
    }
#pragma GCC unroll 6
    for (int a = 0; a < size.nh; a++) {
        vec out[MAX_POINTS];

        transform_row(OF_TAPS, size.r, size.nw, columns, a, out);
        store_row(size.nw, out, to + a * size.nw * point, point);
    }
}

/* All input channels of half panels [begin, end). */
INLINE void transform_halves(const ptac_winograd_plan *plan, int64_t i,
                             ptac_tile_size size)
{
    const int n = plan->conv.in_channels;
    vec kept[MAX_TAPS * LANES];

    for (int c = 0; c < n; c++)
        transform_weights(plan, (int)i * LANES, c, size, kept,
                          plan->shared + i / 2 * plan->at.panel);
}

/*
 * The other way round, for weights that are large: all threads share the tiles of one
 * block, and each transforms the weights of its own panels when it comes to them.
 */
INLINE void share_tiles(const ptac_winograd_plan *plan, int64_t i, ptac_tile_size size)
{
    const int64_t n = plan->turn.last - plan->turn.first;
    bool *are_ill_conditioned = (bool *)(plan->shared + plan->at.marks_at);
    const int64_t first = n * i / plan->n_pieces;
    const int64_t last = n * (i + 1) / plan->n_pieces;
    int n_tiles = 0;

    for (int64_t j = 0; j < last; j++) {
        const ptac_tile_strip s = ptac_tile_strip_at(plan, plan->turn.first + j);

        if (j >= first)
            are_ill_conditioned[j] = transform_strip(
                plan, &s, n_tiles, size, plan->shared,
                plan->scratch + i * plan->at.n_private + plan->at.patch_at);
        n_tiles += s.n_rows * s.n_columns;
    }
}

INLINE void run_panels(const ptac_winograd_plan *plan, int64_t i, ptac_tile_size size)
{
    const int n = plan->conv.in_channels;
    const int64_t last = plan->n_panels * (i + 1) / plan->n_pieces;
    float *scratch = plan->scratch + i * plan->at.n_private;
    float *patch = scratch + plan->at.patch_at;
    float *products = scratch + plan->at.products_at;
    float *own = scratch + plan->at.panels_at;
    vec kept[2][MAX_TAPS * LANES];

    for (int64_t j = plan->n_panels * i / plan->n_pieces; j < last; j++) {
        const int channel = (int)j * PANEL;
        float *weights = plan->kept ? plan->kept + j * plan->at.panel : own;

        for (int c = 0; c < n && !plan->is_kept_ready; c++)
            for (int half = 0; half < 2; half++)
                transform_weights(plan, channel + half * LANES, c, size, kept[half],
                                  weights);
        for (int p = 0; p < size.n_points; p++)
            multiply_point(plan, plan->turn.n_tiles,
                           plan->shared + p * plan->at.tile_step,
                           weights + p * plan->at.panel_step,
                           products + p * plan->at.product_step);
        output_panel(plan, plan->turn.first, plan->turn.last,
                     (const bool *)(plan->shared + plan->at.marks_at), channel, size,
                     products, patch);
    }
}

#define DEFINE_STAGE(stage, name)                                                      \
    TARGET static void stage##_##name(int64_t begin, int64_t end, void *context)       \
    {                                                                                  \
        for (int64_t i = begin; i < end; i++)                                          \
            stage(context, i, size_##name);                                            \
    }
