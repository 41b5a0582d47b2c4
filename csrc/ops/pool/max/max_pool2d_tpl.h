/*
 * max_pool2d_tpl.h - max pooling along rows (NCHW) and along channels (NHWC).
 *
 * pool_tpl.h has the words. Leaves OF(max_tiled_planes), OF(max_planes) and
 * OF(max_rows), each a ptac_range_fn of a ptac_call.
 */
#include "ops/pool/max/max_pool2d.h"
#include "ops/pool/walks.h"

#include <math.h>

/* Lanes where v wins over best. */
INLINE MASK OF(beats)(VEC v, VEC best)
{
    return OR(GREATER(v, best), UNORDERED(v, v));
}

/* One tap of the lanes in span; larger strides collect them one by one. */
INLINE VEC OF(load_tap)(const ELEM *p, int64_t stride, SPAN span, int lo, int hi)
{
    if (stride == 1)
        return LOAD_SPAN(p, span);
    if (stride == 2)
        return LOAD2_SPAN(p, span);

    ELEM lanes[N_LANES] = {0};

    for (int i = lo; i < hi; i++)
        lanes[i] = p[i * stride];
    return LOAD(lanes, N_LANES);
}

/*
 * N_LANES neighbouring outputs of every row, n of which exist. Tap kw exists in lanes
 * [lo[kw], hi[kw]), and a lane's first tap is at column first[lane]: where the piece
 * lies between the edges these are all n lanes, and column 0.
 */
struct OF(max_piece) {
    int64_t ow;
    int n;
    bool is_whole;
    int8_t lo[PTAC_MAX_TAPS], hi[PTAC_MAX_TAPS];
    SPAN spans[PTAC_MAX_TAPS];
    MASK lanes[PTAC_MAX_TAPS];
    int32_t first[N_LANES];
};

TARGET static void OF(cut_maxima)(const ptac_max_pool2d *p, int64_t ow,
                                  struct OF(max_piece) * piece)
{
    const ptac_window *w = &p->window.w;
    const int64_t rest = p->image.out_w - ow;

    piece->ow = ow;
    piece->n = rest < N_LANES ? (int)rest : N_LANES;
    piece->is_whole = true;
    for (int lane = 0; lane < N_LANES; lane++)
        piece->first[lane] = 0;
    for (int kw = (int)w->kernel - 1; kw >= 0; kw--) {
        int lo, hi;

        ptac_window_lanes(w, p->image.w, ow, piece->n, kw, &lo, &hi);
        for (int lane = lo; lane < piece->n; lane++)
            piece->first[lane] = (int32_t)(kw * w->dilation);
        piece->is_whole &= lo == 0 && hi == piece->n;
        piece->lo[kw] = (int8_t)lo;
        piece->hi[kw] = (int8_t)hi;
        piece->spans[kw] = SPAN_OF(w->stride, lo, hi);
        piece->lanes[kw] = RANGE(lo, hi);
    }
}

/*
 * One row of a piece. rows is the first row that its windows touch, at the piece's
 * first column, which for an edge piece may lie left of the image. Positions are kept
 * as offsets from there, the same for all lanes, until the end.
 */
TARGET static inline void OF(max_row)(const ELEM *rows, const ptac_max_pool2d *p,
                                      const struct OF(max_piece) * piece,
                                      int64_t n_rows, int32_t position, ELEM *y,
                                      int64_t *index)
{
    const ptac_window *w = &p->window.w;
    const int64_t down = p->window.h.dilation * p->image.w;
    VEC best = SET(-INFINITY);
    IVEC offset = ILOAD(piece->first);

    /* Each row by itself, then the rows: three short chains instead of a long one. */
    for (int64_t kh = 0; kh < n_rows; kh++, rows += down) {
        VEC row_best =
            OF(load_tap)(rows, w->stride, piece->spans[0], piece->lo[0], piece->hi[0]);
        IVEC row_offset = ISET(0);
        MASK beats;

        if (!piece->is_whole) {
            row_best = PICK(piece->lanes[0], SET(-INFINITY), row_best);
            row_offset = ILOAD(piece->first);
        }
        for (int64_t kw = 1; kw < w->kernel; kw++) {
            const VEC v = OF(load_tap)(rows + kw * w->dilation, w->stride,
                                       piece->spans[kw], piece->lo[kw], piece->hi[kw]);

            beats = OF(beats)(v, row_best);
            if (!piece->is_whole)
                beats = AND(beats, piece->lanes[kw]);
            row_best = PICK(beats, row_best, v);
            row_offset = IPICK(beats, row_offset, ISET((int32_t)(kw * w->dilation)));
        }
        beats = OF(beats)(row_best, best);
        best = PICK(beats, best, row_best);
        offset = IPICK(beats, offset, IADD(row_offset, ISET((int32_t)(kh * down))));
    }
    STORE(y, best, piece->n);
    STORE_INDEX(index, IADD(IADD(offset, IRAMP((int32_t)w->stride)), ISET(position)),
                piece->n);
}

/* Windows of 2x2 side by side: each row pair is read once, as pairs. */
TARGET static inline void OF(max_tiled_row)(const ELEM *upper, int64_t w,
                                            int32_t position, int64_t out_w, ELEM *y,
                                            int64_t *index)
{
    for (int64_t ow = 0; ow < out_w; ow += N_LANES) {
        const int n = out_w - ow < N_LANES ? (int)(out_w - ow) : N_LANES;
        const int32_t at = position + 2 * (int32_t)ow;
        VEC best, v1, v2, v3;
        MASK m1, m2, m3;
        IVEC offset;

        LOAD_PAIRS(upper + 2 * ow, n, &best, &v1);
        LOAD_PAIRS(upper + w + 2 * ow, n, &v2, &v3);
        m1 = GREATER(v1, best);
        if (__builtin_expect(!IS_NONE(OR(UNORDERED(best, v1), UNORDERED(v2, v3))), 0)) {
            m1 = OF(beats)(v1, best);
            best = PICK(m1, best, v1);
            m2 = OF(beats)(v2, best);
            best = PICK(m2, best, v2);
            m3 = OF(beats)(v3, best);
            best = PICK(m3, best, v3);
        } else {
            best = PICK(m1, best, v1);
            m2 = GREATER(v2, best);
            best = PICK(m2, best, v2);
            m3 = GREATER(v3, best);
            best = PICK(m3, best, v3);
        }
        offset = IADD(IRAMP(2), ISET(at));
        offset = IPICK(m1, offset, IADD(IRAMP(2), ISET(at + 1)));
        offset = IPICK(m2, offset, IADD(IRAMP(2), ISET(at + (int32_t)w)));
        offset = IPICK(m3, offset, IADD(IRAMP(2), ISET(at + (int32_t)w + 1)));
        STORE(y + ow, best, n);
        STORE_INDEX(index + ow, offset, n);
    }
}

TARGET static void OF(max_tiled_planes)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const int64_t w = image->w, out_w = image->out_w;

    for (int64_t i = begin; i < end; i++) {
        const ELEM *x = (const ELEM *)call->inputs[0].data + i * image->h * w;
        ELEM *y = (ELEM *)call->outputs[0].data + i * image->out_h * out_w;
        int64_t *index = (int64_t *)call->outputs[1].data + i * image->out_h * out_w;

        for (int64_t oh = 0; oh < image->out_h; oh++, y += out_w, index += out_w) {
            const int64_t at = 2 * oh * w;

            ptac_prefetch(x + at + image->h * w, 2 * w * (int64_t)sizeof *x);
            OF(max_tiled_row)(x + at, w, (int32_t)at, out_w, y, index);
        }
    }
}

/* One piece in all rows of one plane. */
TARGET static void OF(max_column)(const ptac_call *call, int64_t plane,
                                  const struct OF(max_piece) * piece)
{
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t n_in = image->h * image->w;
    const int64_t out = plane * image->out_h * image->out_w + piece->ow;
    const ELEM *x = (const ELEM *)call->inputs[0].data + plane * n_in;
    ELEM *y = (ELEM *)call->outputs[0].data + out;
    int64_t *index = (int64_t *)call->outputs[1].data + out;

    for (int64_t oh = 0; oh < image->out_h; oh++) {
        const int64_t ih = oh * h->stride - h->padding;
        int64_t first, last, at;

        ptac_window_clip(h, ih, image->h, &first, &last);
        at = (ih + first * h->dilation) * image->w + piece->ow * w->stride - w->padding;
        ptac_prefetch(x + at + n_in, h->stride * image->w * (int64_t)sizeof *x);
        OF(max_row)(x + at, p, piece, last - first, (int32_t)at, y, index);
        y += image->out_w;
        index += image->out_w;
    }
}

OVER_PIECES(OF(max_planes), ptac_max_pool2d, *p, struct OF(max_piece), OF(cut_maxima),
            OF(max_column))

/*
 * The taps of one NHWC output: n_rows by n_columns, the first at position at. In a
 * volume as many in each of n_slabs, which begin slab positions apart.
 */
struct OF(taps) {
    const ELEM *x;
    int64_t at, n_rows, n_columns, n_slabs, slab;
    ELEM *y;
    int64_t *index;
};

/* NHWC: n_vectors of channels from c on, the last of n lanes. */
INLINE void OF(max_pixel)(const ptac_max_pool2d *p, const struct OF(taps) * taps,
                          int64_t c, int n_vectors, int n)
{
    const int64_t down = p->window.h.dilation * p->image.w;
    const int64_t channels = p->image.channels;
    const ELEM *x = taps->x + c;
    int64_t at = taps->at;
    VEC best[MOST_VECTORS];
    IVEC position[MOST_VECTORS];

    FOR_VECTORS(i, n_vectors)
    {
        best[i] = LOAD(x + at * channels + i * N_LANES, n);
        position[i] = ISET((int32_t)at);
    }
    for (int64_t kd = 0; kd < taps->n_slabs; kd++, at += taps->slab) {
        for (int64_t kh = 0; kh < taps->n_rows; kh++) {
            for (int64_t kw = 0; kw < taps->n_columns; kw++) {
                const int64_t here = at + kh * down + kw * p->window.w.dilation;

                FOR_VECTORS(i, n_vectors)
                {
                    const VEC v = LOAD(x + here * channels + i * N_LANES, n);
                    const MASK beats = OF(beats)(v, best[i]);

                    best[i] = PICK(beats, best[i], v);
                    position[i] = IPICK(beats, position[i], ISET((int32_t)here));
                }
            }
        }
    }
    FOR_VECTORS(i, n_vectors)
    {
        STORE(taps->y + c + i * N_LANES, best[i], n);
        STORE_INDEX(taps->index + c + i * N_LANES, position[i], n);
    }
}

/* NHWC: rows [begin, end) of the output. */
TARGET static void OF(max_rows)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t channels = image->channels;

    for (int64_t i = begin; i < end; i++) {
        const int64_t ih = i % image->out_h * h->stride - h->padding;
        const int64_t out = i * image->out_w * channels;
        struct OF(taps) taps = {
            .x = (const ELEM *)call->inputs[0].data +
                 i / image->out_h * image->h * image->w * channels,
            .y = (ELEM *)call->outputs[0].data + out,
            .index = (int64_t *)call->outputs[1].data + out,
            .n_slabs = 1,
        };
        int64_t h0, h1, w0, w1;

        ptac_window_clip(h, ih, image->h, &h0, &h1);
        taps.n_rows = h1 - h0;
        for (int64_t ow = 0; ow < image->out_w; ow++) {
            const int64_t iw = ow * w->stride - w->padding;

            ptac_window_clip(w, iw, image->w, &w0, &w1);
            taps.n_columns = w1 - w0;
            taps.at = (ih + h0 * h->dilation) * image->w + iw + w0 * w->dilation;
            OVER_CHANNELS(channels, OF(max_pixel), p, &taps);
            taps.y += channels;
            taps.index += channels;
        }
    }
}
