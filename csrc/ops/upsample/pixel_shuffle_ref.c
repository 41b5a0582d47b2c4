/*
 * pixel_shuffle_ref.c - pixel shuffling by definition, and its shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/upsample/pixel_shuffle.h"

/* Factors have loops of their own, and so have rows below 16. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_pixel_shuffle *p = call->params;

    shape->kind = p->factor < 2 || p->factor > PTAC_MOST_SHUFFLED ? 4
                  : p->w < 16                                     ? 3
                                                                  : (int)p->factor - 2;
    shape->work = call->inputs[0].n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(PIXEL_SHUFFLE, classify, "by_2", "by_3", "by_4", "narrow", "by_others")
PTAC_SHAPES(PIXEL_UNSHUFFLE, classify, "by_2", "by_3", "by_4", "narrow", "by_others")

ptac_reason ptac_pixel_shuffle_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

/* Rows [begin, end), between the planes of channels and those of pixels. */
static void move_rows(const ptac_pixel_shuffle *p, int64_t begin, int64_t end,
                      const float *from, float *to, bool is_back)
{
    const int64_t n = p->factor, w = p->w, plane = p->h * w;

    for (int64_t i = begin; i < end; i++) {
        const int64_t h = i % p->h, first = i / p->h * n * n * plane;

        for (int64_t k = 0; k < n * n; k++) {
            const int64_t channel = first + k * plane + h * w;
            const int64_t pixel = first + (h * n + k / n) * w * n + k % n;

            for (int64_t j = 0; j < w; j++) {
                if (is_back)
                    to[channel + j] = from[pixel + j * n];
                else
                    to[pixel + j * n] = from[channel + j];
            }
        }
    }
}

static void shuffle(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;

    move_rows(call->params, begin, end, call->inputs[0].data, call->outputs[0].data,
              false);
}

static void unshuffle(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;

    move_rows(call->params, begin, end, call->inputs[0].data, call->outputs[0].data,
              true);
}

static ptac_status run_shuffle(const ptac_call *call)
{
    ptac_share_shuffled(call, shuffle);
    return PTAC_OK;
}

static ptac_status run_unshuffle(const ptac_call *call)
{
    ptac_share_shuffled(call, unshuffle);
    return PTAC_OK;
}

PTAC_ROW(PIXEL_SHUFFLE, "scalar", PTAC_EXACT, 0, ptac_pixel_shuffle_accepts,
         run_shuffle)
PTAC_ROW(PIXEL_UNSHUFFLE, "scalar", PTAC_EXACT, 0, ptac_pixel_shuffle_accepts,
         run_unshuffle)
