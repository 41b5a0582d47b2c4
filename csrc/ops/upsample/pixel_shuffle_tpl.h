/*
 * pixel_shuffle_tpl.h - pixel shuffling, a vector of pixels at a time.
 *
 * A row of pixels has factor vectors for each vector of a channel. Both ways a vector
 * is put together of factor others: from all of them the same lanes, of which each is
 * taken where it belongs.
 *
 * Included behind typed_<isa>.h. The includer also defines ISA and NEEDS, see
 * upsample_rows_tpl.h.
 */
#include "ops/math/weave_tpl.h"
#include "ops/upsample/pixel_shuffle.h"

_Static_assert((int)PTAC_MOST_SHUFFLED == (int)MOST_WOVEN, "factors that are woven");

/* n elements of each channel, and as many squares' rows of pixels. */
INLINE void shuffle_step(const weave *w, int factor, const float *channels,
                         int64_t plane, float *pixels, int n)
{
    vec parts[MOST_WOVEN];

#pragma GCC unroll 4
    for (int i = 0; i < factor; i++)
        parts[i] = load_f32(channels + i * plane, n);
#pragma GCC unroll 4
    for (int k = 0; k < factor; k++)
        store_f32(pixels + k * LANES, woven(w, parts, factor, k),
                  n == LANES ? LANES : part_of(n * factor, k));
}

INLINE void unshuffle_step(const weave *w, int factor, float *channels, int64_t plane,
                           const float *pixels, int n)
{
    vec parts[MOST_WOVEN];

#pragma GCC unroll 4
    for (int i = 0; i < factor; i++)
        parts[i] =
            load_f32(pixels + i * LANES, n == LANES ? LANES : part_of(n * factor, i));
#pragma GCC unroll 4
    for (int k = 0; k < factor; k++)
        store_f32(channels + k * plane, woven(w, parts, factor, k), n);
}

/* step() for each vector of a row; the last one overlaps where there is room. */
#define OVER_ROW(step, w, factor, channels, plane, pixels, size)                       \
    do {                                                                               \
        if ((size) < LANES)                                                            \
            step(w, factor, channels, plane, pixels, (int)(size));                     \
        for (int64_t at = 0; at < (size) && (size) >= LANES; at += LANES) {            \
            const int64_t j = ptac_least(at, (size)-LANES);                            \
                                                                                       \
            step(w, factor, (channels) + j, plane, (pixels) + j * (factor), LANES);    \
        }                                                                              \
    } while (0)

/* Rows [begin, end), where factor is a constant. */
#define DEFINE_SHUFFLE(name, step, is_back, channels_type, pixels_type, channels_of,   \
                       pixels_of)                                                      \
    INLINE void name##_by(const ptac_call *call, int factor, int64_t begin,            \
                          int64_t end)                                                 \
    {                                                                                  \
        const ptac_pixel_shuffle *p = call->params;                                    \
        const int64_t w = p->w, plane = p->h * w;                                      \
        const weave lanes = weave_of(factor, is_back);                                 \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const int64_t first = i / p->h * factor * factor * plane, h = i % p->h;    \
            channels_type channels = (channels_type)channels_of + first + h * w;       \
            pixels_type pixels =                                                       \
                (pixels_type)pixels_of + first + h * factor * factor * w;              \
                                                                                       \
            for (int k = 0; k < factor; k++)                                           \
                OVER_ROW(step, &lanes, factor, channels + k * factor * plane, plane,   \
                         pixels + k * w * factor, w);                                  \
        }                                                                              \
    }                                                                                  \
    TARGET static void name(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const int64_t factor = ((const ptac_pixel_shuffle *)call->params)->factor;     \
                                                                                       \
        if (factor == 2)                                                               \
            name##_by(call, 2, begin, end);                                            \
        else if (factor == 3)                                                          \
            name##_by(call, 3, begin, end);                                            \
        else                                                                           \
            name##_by(call, 4, begin, end);                                            \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        ptac_share_shuffled(call, name);                                               \
        return PTAC_OK;                                                                \
    }

DEFINE_SHUFFLE(shuffle, shuffle_step, false, const float *, float *,
               call->inputs[0].data, call->outputs[0].data)
DEFINE_SHUFFLE(unshuffle, unshuffle_step, true, float *, const float *,
               call->outputs[0].data, call->inputs[0].data)

static ptac_reason accepts_factor(const ptac_call *call)
{
    const ptac_pixel_shuffle *p = call->params;

    if (p->factor < 2 || p->factor > PTAC_MOST_SHUFFLED)
        return PTAC_ARGUMENT;
    return ptac_pixel_shuffle_accepts(call);
}

PTAC_ROW(PIXEL_SHUFFLE, ISA, PTAC_EXACT, NEEDS, accepts_factor, run_shuffle)
PTAC_ROW(PIXEL_UNSHUFFLE, ISA, PTAC_EXACT, NEEDS, accepts_factor, run_unshuffle)
