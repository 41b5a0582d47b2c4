/*
 * lowered_columns_last_tpl.h - an image in channels_last into columns: for each tap and
 * channel, what places meet, and 0 where that lies in the padding.
 */
#include "ops/conv/lowered/lowered_columns_tpl.h"

/* The channels of the pixel that a place meets by a tap; NULL: padding. */
INLINE const float *pixel_of(const ptac_lowered *l, int64_t tap, int64_t place)
{
    int64_t at = 0, n = 1;

    for (int i = PTAC_LOWERED_AXES - 1; i >= 0; i--) {
        const ptac_lowered_axis *a = &l->along[i];
        const int element =
            element_of(a, (int)(tap % a->n_taps), (int)(place % a->n_places));

        if (element < 0 || element >= a->n)
            return NULL;
        at += element * n;
        n *= a->n;
        tap /= a->n_taps;
        place /= a->n_places;
    }
    return l->image + at * l->pixel;
}

/* Channels [begin, end) of up to LANES neighbouring places by a tap. */
INLINE void lower_pixels(const float *pixels[LANES], int n_pixels, int64_t begin,
                         int64_t end, float *to, int64_t to_row)
{
    for (int64_t channel = begin; channel < end; channel += LANES) {
        const int n = at_most_lanes(end - channel);
        vec channels[LANES];

#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            channels[i] = pixels[i] ? v_load_first(pixels[i] + channel, n) : v_zero();
        v_transpose(channels);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (i < n)
                v_store_first(to + (channel + i) * to_row, channels[i], n_pixels);
    }
}

TARGET static void lower_channels_last(int64_t begin, int64_t end, void *context)
{
    const ptac_lowered *l = context;

    for (int64_t tap = 0; tap < l->n_taps; tap++) {
        float *columns = l->columns + tap * l->n_channels * l->product.n_places;

        for (int64_t place = 0; place < l->product.n_places; place += LANES) {
            const int n = at_most_lanes(l->product.n_places - place);
            const float *pixels[LANES];

            for (int i = 0; i < LANES; i++)
                pixels[i] = i < n ? pixel_of(l, tap, place + i) : NULL;
            lower_pixels(pixels, n, begin, end, columns + place, l->product.n_places);
        }
    }
}
