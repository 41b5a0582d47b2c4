/*
 * lowered_columns_tpl.h - an image into columns: for each channel and tap, what places
 * meet, and 0 where that lies in the padding.
 */
#ifndef PTAC_OPS_CONV_LOWERED_COLUMNS_TPL_H
#define PTAC_OPS_CONV_LOWERED_COLUMNS_TPL_H

#include "ops/conv/lowered/lowered.h"

#include <string.h>

/* Places of an axis, [first, end). */
typedef struct places {
    int first, end;
} places;

/* Those whose tap lies within the image. */
INLINE places places_within(const ptac_lowered_axis *a, int tap)
{
    const int64_t lead = (int64_t)a->pad - (int64_t)tap * a->dilation;
    const int64_t before = lead > 0 ? ptac_parts(lead, a->stride) : 0;
    const int64_t last = a->n - 1 + lead;
    const int64_t until = last < 0 ? 0 : last / a->stride + 1;
    const int first = (int)ptac_least(before, a->n_places);
    const int end = (int)ptac_least(until, a->n_places);

    return (places){first, end > first ? end : first};
}

INLINE int element_of(const ptac_lowered_axis *a, int tap, int place)
{
    return place * a->stride - a->pad + tap * a->dilation;
}

/* count of every second float; none behind the last one is read. */
INLINE vec load_every_second(const float *from, int count)
{
    const int n = 2 * count - 1;
    const vec low = v_load_first(from, n < LANES ? n : LANES);

    return v_evens(low, n > LANES ? v_load_first(from + LANES, n - LANES) : v_zero());
}

INLINE void copy_places(const float *from, int stride, int n, float *to)
{
    if (stride == 1)
        FOR_LANES(i, count, 0, n,
                  v_store_first(to + i, v_load_first(from + i, count), count));
    else if (stride == 2)
        FOR_LANES(i, count, 0, n,
                  v_store_first(to + i, load_every_second(from + 2 * i, count), count));
    else
        for (int i = 0; i < n; i++, from += stride)
            to[i] = *from;
}

/* What the places of one row meet by a tap, of which these are within. */
INLINE void lower_row(const ptac_lowered_axis *a, int tap, places within,
                      const float *row, float *to)
{
    for (int i = 0; i < within.first; i++)
        to[i] = 0;
    if (within.first < within.end)
        copy_places(row + element_of(a, tap, within.first), a->stride,
                    within.end - within.first, to + within.first);
    for (int i = within.end; i < a->n_places; i++)
        to[i] = 0;
}

/*
 * The same of all rows of a plane at once, which are as long as rows of the image: what
 * places meet lies side by side, but for those that meet the padding.
 */
INLINE void lower_shifted(const ptac_lowered *l, int row_tap, int tap,
                          const float *plane, float *to)
{
    const ptac_lowered_axis *rows = &l->along[1], *a = &l->along[2];
    const places down = places_within(rows, row_tap), across = places_within(a, tap);

    memset(to, 0, sizeof *to * (size_t)(rows->n_places * a->n_places));
    if (down.first >= down.end || across.first >= across.end)
        return;

    const int64_t begin = (int64_t)down.first * a->n + across.first;
    const int64_t n = (int64_t)(down.end - 1) * a->n + across.end - begin;
    const float *from = plane + (int64_t)element_of(rows, row_tap, down.first) * a->n +
                        element_of(a, tap, across.first);

    memcpy(to + begin, from, sizeof *to * (size_t)n);
    for (int i = down.first; i < down.end; i++) {
        float *row = to + (int64_t)i * a->n;

        for (int j = 0; j < across.first; j++)
            row[j] = 0;
        for (int j = across.end; j < a->n; j++)
            row[j] = 0;
    }
}

INLINE void lower_plane(const ptac_lowered *l, int row_tap, int tap, const float *plane,
                        float *to)
{
    const ptac_lowered_axis *rows = &l->along[1], *a = &l->along[2];
    const places within = places_within(a, tap);

    if (rows->stride == 1 && a->stride == 1 && a->n_places == a->n) {
        lower_shifted(l, row_tap, tap, plane, to);
        return;
    }
    for (int i = 0; i < rows->n_places; i++, to += a->n_places) {
        const int row = element_of(rows, row_tap, i);

        if (row >= 0 && row < rows->n)
            lower_row(a, tap, within, plane + (int64_t)row * a->n, to);
        else
            memset(to, 0, sizeof *to * (size_t)a->n_places);
    }
}

/* A channel by a tap, [places]. */
INLINE void lower_tap(const ptac_lowered *l, int64_t tap, const float *channel,
                      float *to)
{
    const ptac_lowered_axis *planes = &l->along[0], *rows = &l->along[1];
    const ptac_lowered_axis *a = &l->along[2];
    const int64_t n_places = (int64_t)rows->n_places * a->n_places;
    const int at = (int)(tap % a->n_taps),
              row_at = (int)(tap / a->n_taps % rows->n_taps);
    const int plane_at = (int)(tap / a->n_taps / rows->n_taps);

    for (int i = 0; i < planes->n_places; i++, to += n_places) {
        const int plane = element_of(planes, plane_at, i);

        if (plane >= 0 && plane < planes->n)
            lower_plane(l, row_at, at, channel + (int64_t)plane * rows->n * a->n, to);
        else
            memset(to, 0, sizeof *to * (size_t)n_places);
    }
}

TARGET static void lower_channels(int64_t begin, int64_t end, void *context)
{
    const ptac_lowered *l = context;
    const int64_t channel = (int64_t)l->along[0].n * l->along[1].n * l->along[2].n;

    for (int64_t i = begin; i < end; i++)
        for (int64_t tap = 0; tap < l->n_taps; tap++)
            lower_tap(l, tap, l->image + i * channel,
                      l->columns + (i * l->n_taps + tap) * l->product.n_places);
}

#endif
