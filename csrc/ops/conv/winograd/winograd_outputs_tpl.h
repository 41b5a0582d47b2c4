/*
 * winograd_outputs_tpl.h - from products of tiles to outputs. The includer defines the
 * lanes (winograd_rows_tpl.h), PANEL (2 * LANES), MAX_POINTS (6, of a tile's side) and
 * MAX_TAPS (25, of a kernel).
 *
 * While a strip's outputs of LANES channels lie in the first cache, the epilogue is
 * applied: a scale and a shift for each channel, ReLU or ReLU6, 2x2 max pooling. A
 * strip that transforms would spoil is convolved by the definition instead.
 */

/* What becomes of the sums of LANES channels: pool(clamp(scale * sum + shift)). */
typedef struct finish {
    vec scale, shift, least, most;
    bool pools;
} finish;

INLINE finish finish_of(const ptac_winograd *conv, int channel)
{
    const int n = lesser(LANES, conv->out_channels - channel);

    return (finish){
        .scale = conv->scale ? v_load_first(conv->scale + channel, n) : v_set(1),
        .shift = conv->bias ? v_load_first(conv->bias + channel, n) : v_zero(),
        .least = v_set(ptac_act_least(conv->act)),
        .most = v_set(ptac_act_most(conv->act)),
        .pools = conv->with_pool,
    };
}

/* NaN passes, as it does in torch's ReLU. */
INLINE vec finished(const finish *f, vec sum)
{
    return v_min(f->most, v_max(f->least, v_fma(sum, f->scale, f->shift)));
}

/* The larger one, or NaN where either is. */
INLINE vec larger(vec a, vec b)
{
    return v_pick(v_at_most(a, a), v_max(a, b), a);
}

/* LANES inputs from input on of NHWC weights: kept[i * LANES + c] is of tap i. */
INLINE void keep_taps(const ptac_winograd *conv, int output, int input, int n_taps,
                      vec *kept)
{
    const int64_t step = (int64_t)conv->in_channels * n_taps;
    const float *weight = conv->weight + output * step + input;
    const int n = lesser(LANES, conv->out_channels - output);
    const int n_inputs = lesser(LANES, conv->in_channels - input);

    for (int at = 0; at < n_taps; at++, weight += conv->in_channels, kept += LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            kept[i] = i < n ? v_load_first(weight + i * step, n_inputs) : v_zero();
        v_transpose(kept);
    }
}

/* The same as load_taps() of NHWC weights. */
INLINE void load_nhwc_taps(const ptac_winograd *conv, int output, int input, int n_taps,
                           vec *kept, vec *taps)
{
    const int64_t step = conv->out_channels;
    const float *weight = conv->weight + (int64_t)input * n_taps * step + output;
    const int n = greater(0, lesser(LANES, conv->out_channels - output));

    if (!conv->is_transposed && input % LANES == 0)
        keep_taps(conv, output, input, n_taps, kept);
    for (int at = 0; at < n_taps; at++)
        taps[at] = conv->is_transposed
                       ? v_load_first(weight + (n_taps - 1 - at) * step, n)
                       : kept[at * LANES + input % LANES];
}

/*
 * taps[i]: tap i of one input channel and LANES outputs from output on, or zeros. With
 * one output callers go from input 0 to the last: of NHWC weights those of LANES inputs
 * come together, and wait in kept, which has room for LANES times n_taps.
 */
INLINE void load_taps(const ptac_winograd *conv, int output, int input, int n_taps,
                      vec *kept, vec *taps)
{
    const int64_t step = conv->is_transposed ? n_taps : conv->in_channels * n_taps;
    const int n = lesser(LANES, conv->out_channels - output);
    const float *weight =
        conv->weight + (conv->is_transposed
                            ? ((int64_t)input * conv->out_channels + output) * n_taps
                            : ((int64_t)output * conv->in_channels + input) * n_taps);
    vec rows[LANES];

    if (conv->weight_is_nhwc) {
        load_nhwc_taps(conv, output, input, n_taps, kept, taps);
        return;
    }
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

/* Row i of a tile: an even one waits for the next, which gives the largest of four. */
INLINE void give_pooled(int i, int mw, vec *above, const vec *row, float *patch)
{
#pragma GCC unroll 6
    for (int j = 0; j < mw; j++)
        above[j] = i % 2 ? larger(above[j], row[j]) : row[j];
    if (i % 2 == 0)
        return;
#pragma GCC unroll 6
    for (int j = 0; j < mw; j += 2)
        v_store(patch + j / 2 * LANES, larger(above[j], above[j + 1]));
}

/* A row of tiles into a patch. */
INLINE void outputs_row(const float *products, int64_t step, int n_tiles,
                        ptac_tile_size size, const finish *f, float *patch,
                        int64_t row_step)
{
    const int64_t tile_step = (size.mw >> f->pools) * LANES;

    for (int t = 0; t < n_tiles; t++, products += PANEL, patch += tile_step) {
        vec columns[MAX_POINTS][MAX_POINTS], above[MAX_POINTS];

#pragma GCC unroll 6
        for (int j = 0; j < size.nw; j++)
            transform_column(OF_PRODUCTS, size.nh, size.mh, products + j * step,
                             size.nw * step, columns[j]);
#pragma GCC unroll 6
        for (int i = 0; i < size.mh; i++) {
            vec out[MAX_POINTS];

            transform_row(OF_PRODUCTS, size.nw, size.mw, columns, i, out);
#pragma GCC unroll 6
            for (int j = 0; j < size.mw; j++)
                out[j] = finished(f, out[j]);
            if (f->pools)
                give_pooled(i, size.mw, above, out, patch + i / 2 * row_step);
            else
                store_row(size.mw, out, patch + i * row_step, LANES);
        }
    }
}

/*
 * One channel of an image, whose pixels are step apart, with its padding: rows x
 * columns of it at (top, left).
 */
INLINE void copy_padded(const float *x, int64_t step, int h, int w, int top, int left,
                        int rows, int columns, float *plane)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            const bool is_inside =
                top + i >= 0 && top + i < h && left + j >= 0 && left + j < w;

            *plane++ = is_inside ? x[((int64_t)(top + i) * w + left + j) * step] : 0;
        }
}

/* Sums of LANES channels of a strip by the definition: a channel's taps at a time. */
INLINE void sum_strip(const ptac_winograd_plan *plan, const ptac_tile_strip *s,
                      int channel, ptac_tile_size size, float *patch)
{
    const ptac_winograd *conv = &plan->conv;
    const int rows = s->n_rows * size.mh, columns = s->n_columns * size.mw;
    const int width = columns + size.r - 1;
    const int64_t n = (int64_t)rows * columns * LANES,
                  plane = (int64_t)conv->h * conv->w;
    const ptac_image_steps steps =
        ptac_image_steps_of(conv->x_is_nhwc, conv->in_channels, plane);
    const float *x = conv->x + s->image * conv->in_channels * plane;
    float *padded = patch + n;
    vec kept[MAX_TAPS * LANES];

    memset(patch, 0, (size_t)n * sizeof *patch);
    for (int c = 0; c < conv->in_channels; c++, x += steps.channel) {
        vec taps[MAX_TAPS];
        float *to = patch;

        load_taps(conv, channel, c, size.r * size.r, kept, taps);
        copy_padded(x, steps.pixel, conv->h, conv->w, s->row * size.mh - conv->pad_h,
                    s->column * size.mw - conv->pad_w, rows + size.r - 1, width,
                    padded);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++, to += LANES) {
                const float *from = padded + i * width + j;
                vec sum = v_zero();

#pragma GCC unroll 5
                for (int a = 0; a < size.r; a++)
#pragma GCC unroll 5
                    for (int b = 0; b < size.r; b++)
                        sum = v_fma(v_set(from[a * width + b]), taps[a * size.r + b],
                                    sum);
                v_store(to, v_add(v_load(to), sum));
            }
    }
}

/* The epilogue of a patch of rows x columns sums, in place. */
INLINE void finish_patch(const finish *f, int rows, int columns, float *patch)
{
    const int64_t row_step = (int64_t)columns * LANES;
    float *to = patch;

    for (int64_t i = 0; i < rows * row_step; i += LANES)
        v_store(patch + i, finished(f, v_load(patch + i)));
    for (int i = 0; i < rows && f->pools; i += 2)
        for (int j = 0; j < columns; j += 2, to += LANES) {
            const float *at = patch + i * row_step + j * LANES;
            const vec upper = larger(v_load(at), v_load(at + LANES));
            const vec lower =
                larger(v_load(at + row_step), v_load(at + row_step + LANES));

            v_store(to, larger(upper, lower));
        }
}

/* LANES channels, from channel on, of a strip. */
INLINE void output_strip(const ptac_winograd_plan *plan, const ptac_tile_strip *s,
                         bool is_ill_conditioned, int tile, int channel,
                         ptac_tile_size size, const float *products, float *patch)
{
    const ptac_winograd *conv = &plan->conv;
    const int half = conv->with_pool;
    const int rows = s->n_rows * size.mh, columns = s->n_columns * size.mw;
    const int h = conv->out_h >> half, w = conv->out_w >> half;
    const int64_t row_step = (int64_t)(columns >> half) * LANES;
    const int64_t plane = (int64_t)h * w;
    const ptac_image_steps steps =
        ptac_image_steps_of(conv->y_is_nhwc, conv->out_channels, plane);
    float *y =
        conv->y + s->image * conv->out_channels * plane + channel * steps.channel;
    const finish f = finish_of(conv, channel);

    if (conv->y_is_nhwc)
        fetch_patch(y, steps.pixel, h, w, s->row * size.mh >> half,
                    s->column * size.mw >> half, rows >> half, columns >> half);
    products += tile * PANEL;
    if (is_ill_conditioned) {
        sum_strip(plan, s, channel, size, patch);
        finish_patch(&f, rows, columns, patch);
    } else {
        for (int i = 0; i < s->n_rows; i++)
            outputs_row(products + i * s->n_columns * PANEL, plan->at.product_step,
                        s->n_columns, size, &f,
                        patch + (i * size.mh >> half) * row_step, row_step);
    }
    store_patch(y, steps, h, w, lesser(LANES, conv->out_channels - channel),
                s->row * size.mh >> half, s->column * size.mw >> half, rows >> half,
                columns >> half, patch);
}

/* A panel of outputs of strips [first, last), which are one block. */
INLINE void output_panel(const ptac_winograd_plan *plan, int64_t first, int64_t last,
                         const bool *are_ill_conditioned, int channel,
                         ptac_tile_size size, const float *products, float *patch)
{
    int tile = 0;

    for (int64_t i = first; i < last; i++) {
        const ptac_tile_strip s = ptac_tile_strip_at(plan, i);

        for (int half = 0; half < PANEL; half += LANES)
            if (channel + half < plan->conv.out_channels)
                output_strip(plan, &s, are_ill_conditioned[i - first], tile,
                             channel + half, size, products + half, patch);
        tile += s.n_rows * s.n_columns;
    }
}
