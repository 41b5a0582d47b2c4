/*
 * avg_pool2d_tpl.h - average pooling along rows (NCHW) and along channels (NHWC).
 *
 * A tap outside the image is read as +0: a sum that starts from +0 is never -0, so
 * that adding +0 leaves it as it is.
 *
 * pool_tpl.h has the words. Leaves OF(average_planes) and OF(average_rows), each a
 * ptac_range_fn of a ptac_call.
 */
#include "ops/pool/avg/avg_pool2d.h"
#include "ops/pool/walks.h"

/* N_LANES neighbouring outputs of every row, n of which exist. */
struct OF(average_piece) {
    int64_t ow;
    int n;
    bool is_tiled; /* windows two wide, side by side, all inside the image */
    SPAN spans[PTAC_MAX_TAPS]; /* of each tap, the lanes in which it is in the image */
    VEC columns;               /* each lane's part of the divisor */
};

TARGET static void OF(cut_averages)(const ptac_avg_pool2d *p, int64_t ow,
                                    struct OF(average_piece) * piece)
{
    const ptac_window *w = &p->window.w;
    const int64_t rest = p->image.out_w - ow;
    REAL columns[N_LANES];

    piece->ow = ow;
    piece->n = rest < N_LANES ? (int)rest : N_LANES;
    piece->is_tiled = w->kernel == 2 && w->stride == 2 && w->padding == 0 &&
                      2 * (ow + piece->n) <= p->image.w;
    for (int kw = 0; kw < w->kernel; kw++) {
        int lo, hi;

        ptac_window_lanes(w, p->image.w, ow, piece->n, kw, &lo, &hi);
        piece->spans[kw] = SPAN_OF(w->stride, lo, hi);
    }
    for (int lane = 0; lane < N_LANES; lane++) {
        const ptac_extent extent = ptac_avg_extent_w(p, ow + lane);

        columns[lane] = lane < piece->n ? (REAL)ptac_avg_counted(p, &extent) : 1;
    }
    piece->columns = LOAD_REAL(columns);
}

/*
 * sum and those of one row; x is where its first window begins, maybe left of the
 * image.
 */
INLINE VEC OF(sum_row)(VEC sum, const ELEM *x, const ptac_avg_pool2d *p,
                       const struct OF(average_piece) * piece, int64_t n_rows)
{
    const ptac_window *w = &p->window.w;
    VEC even, odd;

    for (int64_t kh = 0; kh < n_rows; kh++, x += p->image.w) {
        if (piece->is_tiled) {
            LOAD_PAIRS(x, piece->n, &even, &odd);
            sum = ADD(ADD(sum, even), odd);
        } else if (w->stride == 1) {
            for (int64_t kw = 0; kw < w->kernel; kw++)
                sum = ADD(sum, LOAD_SPAN(x + kw, piece->spans[kw]));
        } else {
            for (int64_t kw = 0; kw < w->kernel; kw++)
                sum = ADD(sum, LOAD2_SPAN(x + kw, piece->spans[kw]));
        }
    }
    return sum;
}

/* One piece in all rows of one plane. */
TARGET static void OF(average_column)(const ptac_call *call, int64_t plane,
                                      const struct OF(average_piece) * piece)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_window *w = &p->window.w;
    const int64_t n_in = image->h * image->w, n_out = image->out_h * image->out_w;
    const ELEM *x = (const ELEM *)call->inputs[0].data + plane * n_in;
    ELEM *y = (ELEM *)call->outputs[0].data + plane * n_out + piece->ow;
    const VEC by = SET((REAL)p->divisor);
    VEC mean;

    for (int64_t oh = 0; oh < image->out_h; oh++, y += image->out_w) {
        const ptac_extent h = ptac_avg_extent_h(p, oh);
        const VEC rows = SET((REAL)ptac_avg_counted(p, &h));
        const int64_t at = h.begin * image->w + piece->ow * w->stride - w->padding;

        ptac_prefetch(x + at + n_in,
                      p->window.h.stride * image->w * (int64_t)sizeof *x);
        mean = OF(sum_row)(SET(0), x + at, p, piece, h.end - h.begin);
        if (p->is_adaptive)
            mean = ROUND(DIV(DIV(mean, rows), piece->columns));
        else /* ATen adds it to a cleared output, which makes -0 positive */
            mean = ADD(ROUND(DIV(mean, p->divisor ? by : MUL(rows, piece->columns))),
                       SET(0));
        STORE(y, mean, piece->n);
    }
}

OVER_PIECES(OF(average_planes), ptac_avg_pool2d, *p, struct OF(average_piece),
            OF(cut_averages), OF(average_column))

/* NHWC: n_vectors of channels of one output from c on, the last of n lanes. */
INLINE void OF(average_pixel)(const ptac_image *image, const ptac_extent *h,
                              const ptac_extent *w, REAL divisor, const ELEM *x,
                              ELEM *y, int64_t c, int n_vectors, int n)
{
    VEC sum[MOST_VECTORS];

    FOR_VECTORS(i, n_vectors)
    sum[i] = SET(0);
    for (int64_t ih = h->begin; ih < h->end; ih++) {
        for (int64_t iw = w->begin; iw < w->end; iw++) {
            const ELEM *at = x + (ih * image->w + iw) * image->channels + c;

            FOR_VECTORS(i, n_vectors)
            sum[i] = ADD(sum[i], LOAD(at + i * N_LANES, n));
        }
    }
    FOR_VECTORS(i, n_vectors)
    STORE(y + c + i * N_LANES, ROUND(DIV(sum[i], SET(divisor))), n);
}

/* NHWC: rows [begin, end) of the output. */
TARGET static void OF(average_rows)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const int64_t channels = image->channels;

    for (int64_t i = begin; i < end; i++) {
        const ptac_extent h = ptac_avg_extent_h(p, i % image->out_h);
        const ELEM *x = (const ELEM *)call->inputs[0].data +
                        i / image->out_h * image->h * image->w * channels;
        ELEM *y = (ELEM *)call->outputs[0].data + i * image->out_w * channels;

        for (int64_t ow = 0; ow < image->out_w; ow++, y += channels) {
            const ptac_extent w = ptac_avg_extent_w(p, ow);
            const REAL divisor = (REAL)ptac_avg_divisors(p, &h, &w).first;

            OVER_CHANNELS(channels, OF(average_pixel), image, &h, &w, divisor, x, y);
        }
    }
}
