/*
 * depthwise_pack_tpl.h - strips of images with their padding, and transposed pixels.
 *
 * Expects the words of ops/math/lanes.h. A strip is cleared once; then each image's
 * pixels take the places of the one before, with the same padding around them. Vectors
 * that are stored may reach, with zeros, two vectors behind a packed row; rows are
 * packed in ascending order.
 */
#include "ops/conv/depthwise/depthwise_plan.h"
#include "ops/math/turned_tpl.h"

#include <string.h>

static const int32_t split_order_8[] = {0, 1, 4, 5, 2, 3, 6, 7};
static const int32_t split_order_16[] = {0, 1, 4, 5, 8,  9,  12, 13,
                                         2, 3, 6, 7, 10, 11, 14, 15};
static const int32_t spread_order_8[] = {0, 1, 4, 5, 2, 3, 6, 7};
static const int32_t spread_order_16[] = {0, 1, 8,  9,  2, 3, 10, 11,
                                          4, 5, 12, 13, 6, 7, 14, 15};

INLINE ints order_of(const int32_t *order)
{
    return (ints)v_load((const float *)(const void *)order);
}

/* Pixels with one zero behind each. */
INLINE void spread_pairs(const float *pixels, int n, float *to)
{
    const ints order = order_of(LANES_TABLE(spread_order));

    FOR_LANES(i, m, 0, n, {
        const vec v = v_permute(v_load_first(pixels + i, m), order);

        v_store(to + 2 * i, PS(unpacklo)(v, v_zero()));
        v_store(to + 2 * i + LANES, PS(unpackhi)(v, v_zero()));
    });
}

/* n even columns to to, n odd ones to to + n. */
INLINE void split_pairs(const float *columns, int n, float *to)
{
    const ints order = order_of(LANES_TABLE(split_order));

    for (int i = 0; i < n; i += LANES) {
        const vec a = v_load(columns + 2 * i), b = v_load(columns + 2 * i + LANES);

        v_store(to + i, v_permute(PS(shuffle)(a, b, 0x88), order));
        v_store(to + n + i, v_permute(PS(shuffle)(a, b, 0xdd), order));
    }
}

/* The pixels of a row to their columns. */
INLINE void place_row(const ptac_depthwise_plan *plan, const float *row, float *to)
{
    const int first = plan->columns.begin, n = plan->columns.end - first;
    const int up = plan->w.up;
    float *at = to + plan->w.pad + (int64_t)first * up;

    row += first;
    if (up == 1) {
        FOR_LANES(i, m, 0, n, { v_store(at + i, v_load_first(row + i, m)); });
    } else if (up == 2) {
        spread_pairs(row, n, at);
    } else {
        for (int i = 0; i < n; i++)
            at[(int64_t)i * up] = row[i];
    }
}

/* One row of a strip whose lanes are pixels. */
INLINE void pack_row(const ptac_depthwise_plan *plan, const float *row, float *to,
                     float *spare)
{
    const int s = plan->w.stride;

    if (s == 1) {
        place_row(plan, row, to);
        return;
    }
    place_row(plan, row, spare);
    if (s == 2) {
        split_pairs(spare, plan->part, to);
        return;
    }
    for (int phase = 0; phase < s; phase++)
        for (int i = 0; i < plan->part; i++)
            to[phase * plan->part + i] = spare[i * s + phase];
}

/* Packed rows [first, first + n) of a strip that hold no row of the image. */
INLINE void clear_rows(const ptac_depthwise_plan *plan, ptac_depthwise_span rows,
                       int64_t first, int n, int64_t row_step, float *strip)
{
    const int up = plan->h.up;

    for (int i = 0; i < n; i++) {
        const int64_t place = first + i - plan->h.pad;

        if (place < (int64_t)rows.begin * up || place >= (int64_t)rows.end * up ||
            (up > 1 && place % up != 0))
            memset(strip + i * row_step, 0, (size_t)row_step * sizeof *strip);
    }
}

/* Rows of a plane to their places in a strip that begins with packed row first. */
INLINE void pack_rows(const ptac_depthwise_plan *plan, const float *plane,
                      ptac_depthwise_span rows, int64_t first, float *strip)
{
    float *spare = strip + plan->n_packed - plan->width - 2 * LANES;

    strip += plan->lead;
    for (int i = rows.begin; i < rows.end; i++)
        pack_row(plan, plane + (int64_t)i * plan->w.size,
                 strip + (plan->h.pad + (int64_t)i * plan->h.up - first) * plan->width,
                 spare);
}

/* n pixels of each plane to vectors of channels, one behind the other. */
INLINE void transpose_planes(const float *planes, int64_t plane, int n_channels,
                             int64_t n, float *to)
{
    FOR_LANES(i, m, 0, n, {
        vec vectors[LANES];

        load_turned(planes + i, plane, n_channels, m, vectors);
        for (int at = 0; at < m; at++)
            v_store(to + (i + at) * LANES, vectors[at]);
    });
}

/* Back: n_channels planes of n pixels. */
INLINE void transpose_back(const float *from, int n_channels, int64_t n, float *planes,
                           int64_t plane)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const int m = at_most_lanes(n - i);
        vec vectors[LANES];

#pragma GCC unroll 16
        for (int at = 0; at < LANES; at++)
            vectors[at] = at < m ? v_load(from + (i + at) * LANES) : v_zero();
        v_transpose(vectors);
#pragma GCC unroll 16
        for (int c = 0; c < LANES; c++) {
            if (c >= n_channels)
                break;
            if (m == LANES)
                v_store(planes + c * plane + i, vectors[c]);
            else
                v_store_first(planes + c * plane + i, vectors[c], m);
        }
    }
}

/* Rows of pixels of NHWC. */
INLINE void pack_pixels(const ptac_depthwise_plan *plan, const float *image,
                        int n_channels, ptac_depthwise_span rows, int64_t first,
                        float *strip)
{
    const ptac_depthwise_span columns = plan->columns;
    const int64_t up = plan->w.up;

    for (int i = rows.begin; i < rows.end; i++) {
        const int64_t place = plan->h.pad + (int64_t)i * plan->h.up - first;
        float *to = strip + (place * plan->width + plan->w.pad) * LANES;
        const float *pixels = image + (int64_t)i * plan->w.size * plan->channels;

        for (int j = columns.begin; j < columns.end; j++)
            v_store(to + j * up * LANES,
                    v_load_first(pixels + (int64_t)j * plan->channels, n_channels));
    }
}

/* Rows of some planes, a vector of their channels for each pixel. */
INLINE void pack_planes(const ptac_depthwise_plan *plan, const float *planes,
                        int n_channels, ptac_depthwise_span rows, int64_t first,
                        float *strip)
{
    const int w = plan->w.size, begin = plan->columns.begin, end = plan->columns.end;
    const int64_t step = (int64_t)plan->w.up * LANES;
    const int64_t row_step = (int64_t)plan->h.up * plan->width * LANES;
    const int64_t last = (int64_t)rows.end * w;
    float *to = strip + ((plan->h.pad + (int64_t)rows.begin * plan->h.up - first) *
                             plan->width +
                         plan->w.pad) *
                            LANES;
    int column = 0;

    FOR_LANES(i, m, (int64_t)rows.begin * w, last, {
        vec vectors[LANES];

        load_turned(planes + i, (int64_t)plan->h.size * w, n_channels, m, vectors);
        for (int k = 0; k < m; k++) {
            if (column >= begin && column < end)
                v_store(to + column * step, vectors[k]);
            if (++column == w) {
                column = 0;
                to += row_step;
            }
        }
    });
}
