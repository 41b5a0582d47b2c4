/*
 * max_pool2d_backward_tpl.h - the gradient of max pooling, a vector at a time.
 *
 * Each position collects the gradients of the outputs that chose it, so that it is
 * written once. Indices are compared with the positions in their window: one that is
 * none of them, which only the caller can have made up, is not found, and then the
 * definition does it all again. In NCHW only windows of 2x2 side by side are done so;
 * for others the definition was measured to be faster.
 *
 * pool_tpl.h has the words. Leaves OF(scatter_tiled_planes) and
 * OF(collect_pixel_rows), each a ptac_range_fn of a ptac_scatter.
 */
#include "ops/pool/max/max_pool2d.h"
#include "ops/pool/walks.h"

#include <string.h>

/*
 * Windows of 2x2 side by side: a row of outputs becomes two rows of inputs. How many
 * indices are one of their window's four positions.
 */
TARGET static inline int64_t OF(scatter_tiled_row)(const ELEM *grad,
                                                   const int64_t *index, ELEM *upper,
                                                   ELEM *lower, int32_t position,
                                                   int64_t w, int64_t out_w)
{
    int64_t n_found = 0;

    for (int64_t ow = 0; ow < out_w; ow += N_LANES) {
        const int n = out_w - ow < N_LANES ? (int)(out_w - ow) : N_LANES;
        /* Added to 0 as stock does: -0 becomes +0, and a bfloat16 NaN c10's own. */
        const VEC g = ROUND(ADD(LOAD(grad + ow, n), SET(0)));
        const IVEC chosen = LOAD_INDEX(index + ow, n);
        const IVEC at = IADD(IRAMP(2), ISET(position + 2 * (int32_t)ow));
        const MASK m0 = IEQUAL(chosen, at);
        const MASK m1 = IEQUAL(chosen, IADD(at, ISET(1)));
        const MASK m2 = IEQUAL(chosen, IADD(at, ISET((int32_t)w)));
        const MASK m3 = IEQUAL(chosen, IADD(at, ISET((int32_t)w + 1)));

        n_found += COUNT(OR(OR(m0, m1), OR(m2, m3)));
        STORE_PAIRS(upper + 2 * ow, KEEP(m0, g), KEEP(m1, g), n);
        STORE_PAIRS(lower + 2 * ow, KEEP(m2, g), KEEP(m3, g), n);
    }
    return n_found;
}

TARGET static void OF(scatter_tiled_planes)(int64_t begin, int64_t end, void *context)
{
    ptac_scatter *job = context;
    const ptac_call *call = job->call;
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const int64_t w = image->w, out_w = image->out_w, n_out = image->out_h * out_w;
    int64_t n_found = 0;

    for (int64_t i = begin; i < end; i++) {
        const ELEM *grad = (const ELEM *)call->inputs[0].data + i * n_out;
        const int64_t *index = (const int64_t *)call->inputs[1].data + i * n_out;
        ELEM *out = (ELEM *)call->outputs[0].data + i * image->h * w;

        for (int64_t oh = 0; oh < image->out_h; oh++) {
            ELEM *upper = out + 2 * oh * w, *lower = upper + w;

            n_found +=
                OF(scatter_tiled_row)(grad + oh * out_w, index + oh * out_w, upper,
                                      lower, (int32_t)(2 * oh * w), w, out_w);
            if (w > 2 * out_w)
                upper[w - 1] = lower[w - 1] = 0;
        }
        if (image->h > 2 * image->out_h)
            memset(out + 2 * image->out_h * w, 0, (size_t)w * sizeof *out);
    }
    __atomic_fetch_add(&job->n_found, n_found, __ATOMIC_RELAXED);
}

/* One NHWC position of x, and the outputs whose windows reach over it. */
struct OF(place) {
    const ELEM *grad;
    const int64_t *index;
    ptac_cover h, w;
    int64_t at;
    ELEM *out;
    IVEC n_found; /* lane by lane */
};

/* n_vectors of channels from c on, the last of n lanes. */
INLINE void OF(collect)(const ptac_image *image, struct OF(place) * place, int64_t c,
                        int n_vectors, int n)
{
    VEC sum[MOST_VECTORS];

    FOR_VECTORS(i, n_vectors)
    sum[i] = SET(0);
    for (int64_t oh = place->h.first; oh < place->h.last; oh++) {
        for (int64_t ow = place->w.first; ow < place->w.last; ow++) {
            const int64_t from = (oh * image->out_w + ow) * image->channels + c;

            FOR_VECTORS(i, n_vectors)
            {
                const MASK here =
                    INDEX_IS(place->index + from + i * N_LANES, n, place->at);
                const VEC g = LOAD(place->grad + from + i * N_LANES, n);

                sum[i] = ADD_WHERE(here, sum[i], g);
                place->n_found = TALLY(place->n_found, here);
            }
        }
    }
    FOR_VECTORS(i, n_vectors)
    STORE(place->out + c + i * N_LANES, sum[i], n);
}

/* NHWC: rows [begin, end) of x. */
TARGET static void OF(collect_pixel_rows)(int64_t begin, int64_t end, void *context)
{
    ptac_scatter *job = context;
    const ptac_call *call = job->call;
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const int64_t channels = image->channels;
    int64_t n_found = 0;

    for (int64_t i = begin; i < end; i++) {
        const int64_t ih = i % image->h;
        const int64_t from = i / image->h * image->out_h * image->out_w * channels;
        struct OF(place) place = {
            .grad = (const ELEM *)call->inputs[0].data + from,
            .index = (const int64_t *)call->inputs[1].data + from,
            .at = ih * image->w,
            .out = (ELEM *)call->outputs[0].data + i * image->w * channels,
            .n_found = ISET(0),
        };

        ptac_cover_advance(&place.h, &p->window.h, ih, image->out_h);
        for (int64_t iw = 0; iw < image->w; iw++) {
            ptac_cover_advance(&place.w, &p->window.w, iw, image->out_w);
            OVER_CHANNELS(channels, OF(collect), image, &place);
            place.at++;
            place.out += channels;
        }
        n_found += ISUM(place.n_found);
    }
    __atomic_fetch_add(&job->n_found, n_found, __ATOMIC_RELAXED);
}
