/*
 * winograd_weight_tpl.h - the gradient of the weights by transformed tiles. The
 * includer defines what winograd_rows_tpl.h lists.
 *
 * A tile of mh x mw output gradients is the kernel here, the r x r taps are outputs:
 * the same minimal filtering with the roles exchanged. Products are summed over tiles,
 * in float over TILE_CUT tiles at a time:
 *
 *   grads      [point][group of LANES output channels][tile][LANES]
 *   sums       [panel][point][input channel][2 * LANES output channels]
 */
#include "ops/conv/winograd/winograd.h"
#include "ops/conv/winograd/winograd_tpl.h"

enum {
    TILE_CUT = 64,
    CHANNEL_CHUNK = 64,       /* input channels whose sums stay in the second cache */
    MAX_CHANNELS = LANES / 2, /* input channels that are multiplied together */
    BIASES = 32 * LANES,      /* gradients that are summed together */
};

/* sums[c] = (is_first ? 0 : sums[c]) + tiles[t][c] * grads[t], for n channels c. */
INLINE void add_products(int n, const float *tiles, const float *left,
                         const float *right, int n_tiles, bool is_first, float *sums)
{
    for (int t = 0; t < n_tiles; t += TILE_CUT) {
        const int last = lesser(n_tiles, t + TILE_CUT);
        vec parts[MAX_CHANNELS][2];

#pragma GCC unroll 8
        for (int c = 0; c < n; c++)
            parts[c][0] = parts[c][1] = v_zero();
        for (int i = t; i < last; i++) {
            const vec a = v_load(left + i * LANES), b = v_load(right + i * LANES);

#pragma GCC unroll 8
            for (int c = 0; c < n; c++) {
                const vec value = v_set(tiles[i * LANES + c]);

                parts[c][0] = v_fma(value, a, parts[c][0]);
                parts[c][1] = v_fma(value, b, parts[c][1]);
            }
        }
        if (!is_first || t > 0) {
#pragma GCC unroll 8
            for (int c = 0; c < n; c++) {
                parts[c][0] = v_add(v_load(sums + c * PANEL), parts[c][0]);
                parts[c][1] = v_add(v_load(sums + c * PANEL + LANES), parts[c][1]);
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < n; c++) {
            v_store(sums + c * PANEL, parts[c][0]);
            v_store(sums + c * PANEL + LANES, parts[c][1]);
        }
    }
}

/* Input channels [first, last) of one panel, whose sums those are. */
TARGET static void multiply_panel(const ptac_winograd_plan *plan, int n_tiles,
                                  int first, int last, bool is_wide, const float *tiles,
                                  const float *grads, bool is_first, float *sums)
{
    const int64_t group = (int64_t)plan->max_tiles * LANES;

    for (int p = 0; p < plan->tile.n_points; p++) {
        const float *left = grads + p * plan->at.product_step;
        const float *right = is_wide ? left + group : left;

        for (int c = first; c < last; c += MAX_CHANNELS)
            add_products(MAX_CHANNELS,
                         tiles + p * plan->at.tile_step + c / LANES * group + c % LANES,
                         left, right, n_tiles, is_first,
                         sums + p * plan->at.panel_step + c * PANEL);
    }
}

/* taps[c * n_taps + i], LANES outputs of tap i of input c, to [output][tap][input]. */
INLINE void store_nhwc_weights(const vec *taps, int n_taps, int n_inputs, int n_outputs,
                               int64_t in_channels, float *weight)
{
    for (int at = 0; at < n_taps; at++, weight += in_channels) {
        vec rows[LANES];

        for (int c = 0; c < LANES; c++)
            rows[c] = c < n_inputs ? taps[c * n_taps + at] : v_zero();
        v_transpose(rows);
        for (int k = 0; k < n_outputs; k++)
            v_store_first(weight + k * n_taps * in_channels, rows[k], n_inputs);
    }
}

/* LANES output channels, from output on, and LANES input channels, from input on. */
INLINE void store_weights(const ptac_winograd_plan *plan, int output, int input,
                          ptac_tile_size size, const float *sums)
{
    const ptac_winograd *conv = &plan->conv;
    const int n_taps = size.r * size.r;
    const int n_inputs = lesser(LANES, conv->in_channels - input);
    const int n = n_inputs * n_taps;
    const int n_outputs = lesser(LANES, conv->out_channels - output);
    const int64_t step = (int64_t)conv->in_channels * n_taps;
    const int64_t point = plan->at.panel_step;
    float *weight = plan->grad_weight + output * step;
    vec taps[LANES * MAX_TAPS]; /* the input channel's first */

    for (int c = 0; c < n_inputs; c++, sums += PANEL) {
        vec columns[MAX_POINTS][MAX_POINTS];

#pragma GCC unroll 6
        for (int j = 0; j < size.nw; j++)
            transform_column(OF_PRODUCTS, size.nh, size.r, sums + j * point,
                             size.nw * point, columns[j]);
#pragma GCC unroll 5
        for (int i = 0; i < size.r; i++)
            transform_row(OF_PRODUCTS, size.nw, size.r, columns, i,
                          taps + c * n_taps + i * size.r);
    }
    if (conv->weight_is_nhwc) {
        store_nhwc_weights(taps, n_taps, n_inputs, n_outputs, conv->in_channels,
                           weight + input);
        return;
    }
    weight += (int64_t)input * n_taps;
    for (int at = 0; at < n; at += LANES) {
        v_transpose(taps + at);
        for (int k = 0; k < n_outputs; k++)
            v_store_first(weight + k * step + at, taps[at + k], lesser(LANES, n - at));
    }
}

/* Both halves of a panel, of input channels [first, last). */
INLINE void store_panel(const ptac_winograd_plan *plan, int panel, int first, int last,
                        ptac_tile_size size, const float *sums)
{
    for (int half = 0; half < PANEL; half += LANES)
        if (panel * PANEL + half < plan->conv.out_channels)
            for (int c = first; c < last; c += LANES)
                store_weights(plan, panel * PANEL + half, c, size,
                              sums + c * PANEL + half);
}

INLINE bool is_wide(const ptac_winograd_plan *plan, int panel)
{
    return panel * PANEL + LANES < plan->conv.out_channels;
}

/* Pieces of the batch [begin, end), each with sums of its own over all channels. */
INLINE void sum_pieces(const ptac_winograd_plan *plan, int64_t i, ptac_tile_size size)
{
    const ptac_winograd *conv = &plan->conv;
    const int64_t start = plan->strips.n * i / plan->n_pieces;
    const int64_t last = plan->strips.n * (i + 1) / plan->n_pieces;
    float *tiles = plan->scratch + i * plan->at.n_private;
    float *grads = tiles + plan->at.products_at;
    float *sums = tiles + plan->at.panels_at;
    float *patch = tiles + plan->at.patch_at;

    for (int64_t block = start; block < last; block += plan->block) {
        const int64_t block_end = ptac_least(block + plan->block, last);
        int n_tiles = 0;

        for (int64_t j = block; j < block_end; j++) {
            const ptac_tile_strip s = ptac_tile_strip_at(plan, j);

            transform_strip(plan, &s, n_tiles, size, tiles, patch);
            transform_channels(plan, &s, n_tiles, OF_TAPS, size, 0, conv->out_channels,
                               grads, patch);
            n_tiles += s.n_rows * s.n_columns;
        }
        for (int panel = 0; panel < plan->n_panels; panel++)
            multiply_panel(plan, n_tiles, 0, conv->in_channels, is_wide(plan, panel),
                           tiles, grads + panel * 2 * (int64_t)plan->max_tiles * LANES,
                           block == start, sums + panel * plan->at.panel);
    }
}

/* Groups [begin, end) of input channels of panels: the sums of all pieces together. */
INLINE void store_pieces(const ptac_winograd_plan *plan, int64_t i, ptac_tile_size size)
{
    const int n_groups = (plan->conv.in_channels + LANES - 1) / LANES;
    const int panel = (int)(i / n_groups), c = (int)(i % n_groups) * LANES;
    float *sums = plan->scratch + plan->at.panels_at + panel * plan->at.panel;

    for (int piece = 1; piece < plan->n_pieces; piece++) {
        const float *others = sums + piece * plan->at.n_private;

        for (int p = 0; p < size.n_points; p++) {
            const int64_t at = p * plan->at.panel_step + c * PANEL;

            for (int j = 0; j < LANES * PANEL; j += LANES)
                v_store(sums + at + j,
                        v_add(v_load(sums + at + j), v_load(others + at + j)));
        }
    }
    store_panel(plan, panel, c, lesser(c + LANES, plan->conv.in_channels), size, sums);
}

/*
 * For many channels, whose sums would not fit: threads share the tiles of a block and
 * have panels of their own, n_slots at a time. With a single block sums need no longer
 * life than a panel, and one slot serves all.
 */
INLINE void sum_panels(const ptac_winograd_plan *plan, int64_t i, ptac_tile_size size)
{
    const ptac_winograd *conv = &plan->conv;
    const ptac_turn *turn = &plan->turn;
    const bool is_single = ptac_winograd_is_single(plan);
    const bool is_first = turn->first == 0, is_last = turn->last == plan->strips.n;
    float *grads = plan->scratch + i * plan->at.n_private;
    float *slots = grads + plan->at.panels_at;
    float *patch = grads + plan->at.patch_at;
    const int start = (int)(plan->n_panels * i / plan->n_pieces);
    const int last = (int)(plan->n_panels * (i + 1) / plan->n_pieces);
    const int n = is_single ? last - start : plan->n_slots;

    for (int j = 0; j < n; j++) {
        const int panel = start + turn->pass * n + j, output = panel * PANEL;
        float *sums = slots + (is_single ? 0 : j * plan->at.panel);
        int n_tiles = 0;

        if (panel >= last)
            break;
        for (int64_t k = turn->first; k < turn->last; k++) {
            const ptac_tile_strip s = ptac_tile_strip_at(plan, k);

            transform_channels(plan, &s, n_tiles, OF_TAPS, size, output,
                               lesser(output + PANEL, conv->out_channels), grads,
                               patch);
            n_tiles += s.n_rows * s.n_columns;
        }
        for (int c = 0; c < conv->in_channels; c += CHANNEL_CHUNK) {
            const int c_end = lesser(c + CHANNEL_CHUNK, conv->in_channels);

            multiply_panel(plan, n_tiles, c, c_end, is_wide(plan, panel), plan->shared,
                           grads, is_first, sums);
            if (is_last)
                store_panel(plan, panel, c, c_end, size, sums);
        }
    }
}

/*
 * Gradients of at most BIASES biases [first, last) from NHWC gradients: blocks of
 * pixels in turn, of which one stays in the second cache.
 */
TARGET static void add_nhwc_biases(const ptac_winograd_plan *plan, int first, int last)
{
    enum { BLOCK = 64 };
    const ptac_winograd *conv = &plan->conv;
    const int64_t n_pixels = conv->n * conv->out_h * conv->out_w;
    const int n = last - first;
    double sums[BIASES];

    memset(sums, 0, sizeof sums);
    for (int64_t at = 0; at < n_pixels; at += BLOCK) {
        const int64_t end = ptac_least(at + BLOCK, n_pixels);

        for (int k = 0; k < n; k += LANES) {
            const float *grad = conv->y + first + k;
            vec parts[2] = {v_zero(), v_zero()};

            for (int64_t i = at; i < end; i++)
                parts[i % 2] =
                    v_add(parts[i % 2], v_load_first(grad + i * conv->out_channels,
                                                     lesser(LANES, n - k)));
            v_add_to_f64(sums + k, v_add(parts[0], parts[1]));
        }
    }
    for (int k = 0; k < n; k++)
        plan->grad_bias[first + k] = (float)sums[k];
}

/* Gradients of biases [begin, end): each the sum of its channel's. */
TARGET static void add_biases(int64_t begin, int64_t end, void *context)
{
    enum { BLOCK = 64 * LANES };
    const ptac_winograd_plan *plan = context;
    const ptac_winograd *conv = &plan->conv;
    const int64_t plane = (int64_t)conv->out_h * conv->out_w;

    if (conv->y_is_nhwc) {
        for (int first = (int)begin; first < end; first += BIASES)
            add_nhwc_biases(plan, first, lesser(first + BIASES, (int)end));
        return;
    }
    for (int64_t k = begin; k < end; k++) {
        double sum = 0;

        for (int64_t n = 0; n < conv->n; n++) {
            const float *grad = conv->y + (n * conv->out_channels + k) * plane;

            for (int64_t at = 0; at < plane; at += BLOCK) {
                const int64_t last = ptac_least(at + BLOCK, plane);
                vec sums[2] = {v_zero(), v_zero()};
                int64_t i = at;

                for (; i + 2 * LANES <= last; i += 2 * LANES) {
                    sums[0] = v_add(sums[0], v_load(grad + i));
                    sums[1] = v_add(sums[1], v_load(grad + i + LANES));
                }
                for (; i < last; i += LANES)
                    sums[0] =
                        v_add(sums[0], v_load_first(grad + i, at_most_lanes(last - i)));
                sum += v_sum_f64(v_add(sums[0], sums[1]));
            }
        }
        plan->grad_bias[k] = (float)sum;
    }
}

/* smaller_ is the address of other stages, or NULL. */
#define DEFINE_WINOGRAD(name, mh_, mw_, r_, smaller_)                                  \
    static const ptac_tile_size size_##name = PTAC_TILE_SIZE(mh_, mw_, r_, LANES);     \
    DEFINE_STAGE(transform_halves, name)                                               \
    DEFINE_STAGE(run_pieces, name)                                                     \
    DEFINE_STAGE(share_tiles, name)                                                    \
    DEFINE_STAGE(run_panels, name)                                                     \
    DEFINE_STAGE(sum_pieces, name)                                                     \
    DEFINE_STAGE(store_pieces, name)                                                   \
    DEFINE_STAGE(sum_panels, name)                                                     \
    static const ptac_winograd_stages stages_##name = {                                \
        .tile = PTAC_TILE_SIZE(mh_, mw_, r_, LANES),                                   \
        .smaller = smaller_,                                                           \
        .transform_halves = transform_halves_##name,                                   \
        .run_pieces = run_pieces_##name,                                               \
        .share_tiles = share_tiles_##name,                                             \
        .run_panels = run_panels_##name,                                               \
        .sum_pieces = sum_pieces_##name,                                               \
        .store_pieces = store_pieces_##name,                                           \
        .sum_panels = sum_panels_##name,                                               \
        .sum_biases = add_biases,                                                      \
        .is_unsuited = is_unsuited,                                                    \
    };                                                                                 \
    static ptac_reason accepts_##name(const ptac_call *call)                           \
    {                                                                                  \
        return ptac_winograd_accepts(call, &stages_##name);                            \
    }                                                                                  \
    static size_t kept_##name(const ptac_call *call)                                   \
    {                                                                                  \
        return ptac_winograd_kept_bytes(call, &stages_##name);                         \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        return ptac_winograd_run(call, &stages_##name);                                \
    }
