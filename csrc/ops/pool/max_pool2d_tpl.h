/*
 * max_pool2d_tpl.h - max pooling along rows (NCHW) and along channels (NHWC).
 *
 * Included once per element type and instruction set. The file that includes it
 * names the lanes:
 *
 *   SUFFIX(name)       name, made unique for this element type
 *   TARGET             function attribute that permits the instructions
 *   TYPE, VEC          an element in memory; LANES of them in compute form
 *   IVEC, MASK         LANES 32-bit positions; the result of a comparison
 *   LOAD(p, n)         p[0], p[1] ...: n lanes, no address behind them is read
 *   SPAN, SPAN_OF(stride, lo, hi)            which elements lanes [lo, hi) come from
 *   LOAD_SPAN(p, span), LOAD2_SPAN(p, span)  those of p[0], p[1] ... or p[0], p[2] ...
 *   LOAD_PAIRS(p, n, &even, &odd)            n lanes each of p[0], p[2] ... and p[1],
 *                                            p[3] ...
 *   STORE(p, v, n), STORE_INDEX(p, i, n)     the first n lanes; positions as int64
 *   RANGE(lo, hi)      mask of lanes [lo, hi)
 *   GREATER(a, b), UNORDERED(a, b)           comparisons
 *   OR(m, m), AND(m, m), NONE(m)             mask arithmetic
 *   PICK(m, a, b), IPICK(m, a, b)            m ? b : a
 *   LOWEST, ISET(i), ILOAD(p), IADD(a, b), IRAMP(step)   step: {0, step, 2 * step ...}
 */

/* Lanes where v wins over best. */
TARGET static inline MASK SUFFIX(beats)(VEC v, VEC best)
{
    return OR(GREATER(v, best), UNORDERED(v, v));
}

/* One tap of the lanes in span; larger strides collect them one by one. */
TARGET static inline VEC SUFFIX(load_tap)(const TYPE *p, int64_t stride, SPAN span,
                                          int lo, int hi)
{
    if (stride == 1)
        return LOAD_SPAN(p, span);
    if (stride == 2)
        return LOAD2_SPAN(p, span);

    TYPE lanes[LANES] = {0};

    for (int i = lo; i < hi; i++)
        lanes[i] = p[i * stride];
    return LOAD(lanes, LANES);
}

/*
 * LANES neighbouring outputs of every row, n of which exist. Tap kw exists in lanes
 * [lo[kw], hi[kw]), and a lane's first tap is at column first[lane]: where the piece
 * lies between the edges these are all n lanes, and column 0.
 */
typedef struct SUFFIX(piece) {
    int64_t ow;
    int n;
    bool is_whole;
    int8_t lo[PTAC_MAX_TAPS], hi[PTAC_MAX_TAPS];
    SPAN spans[PTAC_MAX_TAPS];
    MASK lanes[PTAC_MAX_TAPS];
    int32_t first[LANES];
} SUFFIX(piece);

TARGET static void SUFFIX(cut_piece)(const ptac_max_pool2d *p, int64_t ow,
                                     SUFFIX(piece) * piece)
{
    const ptac_window *w = &p->window.w;
    const int64_t rest = p->image.out_w - ow;

    piece->ow = ow;
    piece->n = rest < LANES ? (int)rest : LANES;
    piece->is_whole = true;
    for (int lane = 0; lane < LANES; lane++)
        piece->first[lane] = 0;
    for (int kw = (int)w->kernel - 1; kw >= 0; kw--) {
        int lo = 0, hi = piece->n;

        for (int lane = 0; lane < piece->n; lane++) {
            const int64_t iw = (ow + lane) * w->stride - w->padding + kw * w->dilation;

            if (iw < 0)
                lo = lane + 1;
            else if (iw >= p->image.w && hi > lane)
                hi = lane;
            if (iw >= 0)
                piece->first[lane] = (int32_t)(kw * w->dilation);
        }
        hi = hi > lo ? hi : lo;
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
TARGET static inline void SUFFIX(row)(const TYPE *rows, const ptac_max_pool2d *p,
                                      const SUFFIX(piece) * piece, int64_t n_rows,
                                      int32_t position, TYPE *y, int64_t *index)
{
    const ptac_window *w = &p->window.w;
    const int64_t down = p->window.h.dilation * p->image.w;
    VEC best = LOWEST;
    IVEC offset = ILOAD(piece->first);

    /* Each row by itself, then the rows: three short chains instead of a long one. */
    for (int64_t kh = 0; kh < n_rows; kh++, rows += down) {
        VEC row_best = SUFFIX(load_tap)(rows, w->stride, piece->spans[0], piece->lo[0],
                                        piece->hi[0]);
        IVEC row_offset = ISET(0);
        MASK beats;

        if (!piece->is_whole) {
            row_best = PICK(piece->lanes[0], LOWEST, row_best);
            row_offset = ILOAD(piece->first);
        }
        for (int64_t kw = 1; kw < w->kernel; kw++) {
            const VEC v =
                SUFFIX(load_tap)(rows + kw * w->dilation, w->stride, piece->spans[kw],
                                 piece->lo[kw], piece->hi[kw]);

            beats = SUFFIX(beats)(v, row_best);
            if (!piece->is_whole)
                beats = AND(beats, piece->lanes[kw]);
            row_best = PICK(beats, row_best, v);
            row_offset = IPICK(beats, row_offset, ISET((int32_t)(kw * w->dilation)));
        }
        beats = SUFFIX(beats)(row_best, best);
        best = PICK(beats, best, row_best);
        offset = IPICK(beats, offset, IADD(row_offset, ISET((int32_t)(kh * down))));
    }
    STORE(y, best, piece->n);
    STORE_INDEX(index, IADD(IADD(offset, IRAMP((int32_t)w->stride)), ISET(position)),
                piece->n);
}

/* Windows of 2x2 side by side: each row pair is read once, as pairs. */
TARGET static inline void SUFFIX(tiled_row)(const TYPE *upper, int64_t w,
                                            int32_t position, int64_t out_w, TYPE *y,
                                            int64_t *index)
{
    for (int64_t ow = 0; ow < out_w; ow += LANES) {
        const int n = out_w - ow < LANES ? (int)(out_w - ow) : LANES;
        const int32_t at = position + 2 * (int32_t)ow;
        VEC best, v1, v2, v3;
        MASK m1, m2, m3;
        IVEC offset;

        LOAD_PAIRS(upper + 2 * ow, n, &best, &v1);
        LOAD_PAIRS(upper + w + 2 * ow, n, &v2, &v3);
        m1 = GREATER(v1, best);
        if (__builtin_expect(!NONE(OR(UNORDERED(best, v1), UNORDERED(v2, v3))), 0)) {
            m1 = SUFFIX(beats)(v1, best);
            best = PICK(m1, best, v1);
            m2 = SUFFIX(beats)(v2, best);
            best = PICK(m2, best, v2);
            m3 = SUFFIX(beats)(v3, best);
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

TARGET static void SUFFIX(tiled_planes)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const int64_t w = image->w, out_w = image->out_w;

    for (int64_t i = begin; i < end; i++) {
        const TYPE *x = (const TYPE *)call->inputs[0].data + i * image->h * w;
        TYPE *y = (TYPE *)call->outputs[0].data + i * image->out_h * out_w;
        int64_t *index = (int64_t *)call->outputs[1].data + i * image->out_h * out_w;

        for (int64_t oh = 0; oh < image->out_h; oh++) {
            ptac_prefetch(x + 2 * oh * w + image->h * w, 2 * w * (int64_t)sizeof *x);
            SUFFIX(tiled_row)
            (x + 2 * oh * w, w, (int32_t)(2 * oh * w), out_w, y + oh * out_w,
             index + oh * out_w);
        }
    }
}

/* One piece in all rows of one plane. */
TARGET static void SUFFIX(column)(const ptac_call *call, int64_t plane,
                                  const SUFFIX(piece) * piece)
{
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t n_in = image->h * image->w;
    const TYPE *x = (const TYPE *)call->inputs[0].data + plane * n_in;
    int64_t out = plane * image->out_h * image->out_w + piece->ow;

    for (int64_t oh = 0; oh < image->out_h; oh++, out += image->out_w) {
        const int64_t ih = oh * h->stride - h->padding;
        int64_t first, last, at;

        ptac_window_clip(h, ih, image->h, &first, &last);
        at = (ih + first * h->dilation) * image->w + piece->ow * w->stride - w->padding;
        ptac_prefetch(x + at + n_in, h->stride * image->w * (int64_t)sizeof *x);
        SUFFIX(row)
        (x + at, p, piece, last - first, (int32_t)at,
         (TYPE *)call->outputs[0].data + out, (int64_t *)call->outputs[1].data + out);
    }
}

TARGET static void SUFFIX(planes)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_max_pool2d *p = call->params;
    SUFFIX(piece) piece;

    /* A few planes at a time, so that the pieces of a row find it in the cache. */
    for (int64_t i = begin; i < end; i += 4) {
        const int64_t stop = end - i < 4 ? end : i + 4;

        for (int64_t ow = 0; ow < p->image.out_w; ow += LANES) {
            SUFFIX(cut_piece)(p, ow, &piece);
            for (int64_t plane = i; plane < stop; plane++)
                SUFFIX(column)(call, plane, &piece);
        }
    }
}

/* NHWC: pixels [begin, end) of the output, a vector of channels at a time. */
TARGET static void SUFFIX(pixels)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t n_out = image->out_h * image->out_w, channels = image->channels;

    for (int64_t i = begin; i < end; i++) {
        const int64_t ih = i % n_out / image->out_w * h->stride - h->padding;
        const int64_t iw = i % image->out_w * w->stride - w->padding;
        const TYPE *x = (const TYPE *)call->inputs[0].data +
                        i / n_out * image->h * image->w * channels;
        TYPE *y = (TYPE *)call->outputs[0].data + i * channels;
        int64_t *index = (int64_t *)call->outputs[1].data + i * channels;
        int64_t h0, h1, w0, w1;

        ptac_window_clip(h, ih, image->h, &h0, &h1);
        ptac_window_clip(w, iw, image->w, &w0, &w1);
        for (int64_t c = 0; c < channels; c += LANES) {
            const int n = channels - c < LANES ? (int)(channels - c) : LANES;
            int64_t at = (ih + h0 * h->dilation) * image->w + iw + w0 * w->dilation;
            VEC best = LOAD(x + at * channels + c, n);
            IVEC position = ISET((int32_t)at);

            for (int64_t kh = h0; kh < h1; kh++) {
                for (int64_t kw = kh == h0 ? w0 + 1 : w0; kw < w1; kw++) {
                    at = (ih + kh * h->dilation) * image->w + iw + kw * w->dilation;

                    const VEC v = LOAD(x + at * channels + c, n);
                    const MASK beats = SUFFIX(beats)(v, best);

                    best = PICK(beats, best, v);
                    position = IPICK(beats, position, ISET((int32_t)at));
                }
            }
            STORE(y + c, best, n);
            STORE_INDEX(index + c, position, n);
        }
    }
}

#undef SUFFIX
#undef TYPE
#undef VEC
#undef IVEC
#undef MASK
#undef LANES
#undef LOAD
#undef SPAN
#undef SPAN_OF
#undef LOAD_SPAN
#undef LOAD2_SPAN
#undef LOAD_PAIRS
#undef STORE
#undef STORE_INDEX
#undef RANGE
#undef GREATER
#undef UNORDERED
#undef NONE
#undef PICK
#undef IPICK
#undef LOWEST
#undef ISET
#undef ILOAD
#undef IADD
#undef IRAMP
