/*
 * planes_tpl.h - images from planes of channels to pixels of channels and back, LANES
 * pixels by LANES fours of channels at a time.
 * The includer has included isa_tpl.h.
 */
#include <string.h>

/* In each lane, side by side as bytes, those of four; saturated, which is enough. */
INLINE vec bytes_side_by_side(ints a, ints b, ints c, ints d)
{
#define ORDER 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15
    static const _Alignas(64) uint8_t order[] = {ORDER, ORDER, ORDER, ORDER};
#undef ORDER
    const ints low = JOIN(VECTOR, packus, epi32)(a, b);
    const ints high = JOIN(VECTOR, packus, epi32)(c, d);

    return (vec)JOIN(VECTOR, shuffle, epi8)(JOIN(VECTOR, packus, epi16)(low, high),
                                            (ints)v_load((const float *)order));
}

/* LANES pixels of up to four planes: in each lane the four channels of a pixel. */
INLINE vec round_quad(const float *x, int64_t plane_stride, int64_t n_planes, int n,
                      vec by, vec from)
{
    ints q[PTAC_QUAD];

#pragma GCC unroll 4
    for (int i = 0; i < PTAC_QUAD; i++)
        q[i] = i < n_planes ? round_to(v_load_first(x + i * plane_stride, n), by, from)
                            : EPI32(set1)(0);
    return bytes_side_by_side(q[0], q[1], q[2], q[3]);
}

/* Where LANES pixels go, of which n are there. */
TARGET static void find_pixels(const ptac_pixels *image, int64_t first, int n,
                               uint8_t *q, uint8_t *pixels[LANES])
{
    int64_t x = first % image->width;
    uint8_t *line = q + first / image->width * image->line_bytes;

    for (int i = 0; i < n; i++) {
        pixels[i] = line + x * image->pixel_bytes;
        if (++x == image->width) {
            x = 0;
            line += image->line_bytes;
        }
    }
}

/* Pixels of a single quad lie side by side where a line goes on. */
TARGET static void store_quads(vec quads, uint8_t *const pixels[LANES], int n)
{
    _Alignas(64) float words[LANES];

    if (pixels[n - 1] == pixels[0] + PTAC_QUAD * (n - 1)) {
        v_store_first((float *)pixels[0], quads, n);
        return;
    }
    v_store(words, quads);
    for (int i = 0; i < n; i++)
        memcpy(pixels[i], &words[i], PTAC_QUAD);
}

/* A square of up to LANES fours of planes, of n pixels. */
INLINE void round_square(vec square[LANES], const float *x, int64_t plane_stride,
                         int64_t n_planes, int n, vec by, vec from)
{
    for (int j = 0; j < LANES; j++) {
        const int64_t c = j * PTAC_QUAD;
        const float *quad = x + c * plane_stride;

        if (c >= n_planes) {
            square[j] = v_zero();
            continue;
        }
        for (int64_t k = 0; k < PTAC_QUAD; k++)
            FETCH(quad + k * plane_stride, 128);
        square[j] = round_quad(quad, plane_stride, n_planes - c, n, by, from);
    }
}

/* LANES fours of planes after the others: as many pages as stay known. */
TARGET static void quantize_planes(const ptac_pixels *image, const float *planes,
                                   int64_t plane_stride, int64_t begin, int64_t end,
                                   float inverse, float zero, uint8_t *q)
{
    const vec by = v_set(inverse), from = v_set(zero);
    vec square[LANES];
    uint8_t *pixels[LANES];

    for (int64_t c = 0; c < image->n_channels; c += LANES * PTAC_QUAD)
        for (int64_t i = begin; i < end; i += LANES) {
            const int n = at_most_lanes(end - i);
            const int64_t n_planes = image->n_channels - c;
            const int filled = at_most_lanes(ptac_quads(n_planes));
            const float *x = planes + c * plane_stride + i;

            find_pixels(image, i, n, q, pixels);
            if (image->n_channels <= PTAC_QUAD) {
                store_quads(round_quad(x, plane_stride, n_planes, n, by, from), pixels,
                            n);
                continue;
            }
            round_square(square, x, plane_stride, n_planes, n, by, from);
            v_transpose(square);
            for (int p = 0; p < n; p++)
                v_store_first((float *)(pixels[p] + c), square[p], filled);
        }
}

TARGET static void store_planes(const float *rows, int n_pixels, int n_columns,
                                float *planes, int64_t plane_stride)
{
    for (int i = 0; i < n_pixels; i += LANES)
        for (int n = 0; n < n_columns; n += LANES) {
            vec square[LANES];

            for (int p = 0; p < LANES; p++)
                square[p] = v_load(rows + (i + p) * PTAC_PANEL + n);
            v_transpose(square);
            for (int c = 0; c < LANES && n + c < n_columns; c++)
                v_store_first(planes + (n + c) * plane_stride + i, square[c],
                              at_most_lanes(n_pixels - i));
        }
}
