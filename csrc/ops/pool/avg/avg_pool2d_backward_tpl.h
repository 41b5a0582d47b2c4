/*
 * avg_pool2d_backward_tpl.h - the gradient of average pooling, a vector at a time.
 *
 * NCHW: each row of outputs is divided once and laid out as the image's columns see it;
 * each row of the image is then written once, as the sum of what lies over it. Where no
 * window lies there is -0, which changes no sum. NHWC: a vector of channels at a time.
 *
 * pool_tpl.h has the words. Leaves OF(spread_planes), OF(spread_whole_planes) and
 * OF(spread_images), each a ptac_range_fn of a ptac_spread_job.
 */
#include "ops/pool/avg/avg_pool2d_backward.h"
#include "ops/pool/walks.h"

#include <string.h>

/* What one thread works with: rows of shares, and what the outputs along a row have. */
struct OF(shares) {
    REAL ring[PTAC_RING_REALS];
    REAL columns[PTAC_MOST_OUTPUTS + N_LANES]; /* part of the divisor */
    int32_t begin[PTAC_MOST_OUTPUTS], end[PTAC_MOST_OUTPUTS];
};

TARGET static void OF(prepare)(const ptac_avg_pool2d *p, const ptac_spread_plan *plan,
                               struct OF(shares) * shares)
{
    for (int64_t i = 0; i < plan->n_rows * plan->row; i++)
        shares->ring[i] = (REAL)-0.0;
    for (int64_t ow = 0; ow < p->image.out_w + N_LANES; ow++)
        shares->columns[ow] = 1;
    for (int64_t ow = 0; ow < p->image.out_w; ow++) {
        const ptac_extent w = ptac_avg_extent_w(p, ow);

        shares->columns[ow] = (REAL)ptac_avg_counted(p, &w);
        shares->begin[ow] = (int32_t)w.begin;
        shares->end[ow] = (int32_t)w.end;
    }
}

/* The shares of N_LANES outputs from ow on; -0 in lanes behind n. */
INLINE VEC OF(share)(const ptac_avg_pool2d *p, const ELEM *grad, const REAL *columns,
                     REAL rows, int n)
{
    VEC share = LOAD(grad, n);

    if (p->divisor) {
        share = DIV(share, ROUND(SET((REAL)p->divisor)));
    } else if (p->is_adaptive) {
        share = ROUND(DIV(share, ROUND(SET(rows))));
        share = DIV(share, ROUND(LOAD_REAL(columns)));
    } else {
        share = DIV(share, ROUND(MUL(SET(rows), LOAD_REAL(columns))));
    }
    return PICK(RANGE(0, n), SET((REAL)-0.0), ROUND(share));
}

/* Lay shares out over windows; where two overlap, the later one in a layer above. */
static inline void OF(spread)(const struct OF(shares) * shares, const REAL *share,
                              int64_t n_outputs, REAL *lower, REAL *upper)
{
    int32_t covered = 0;

    for (int64_t ow = 0; ow < n_outputs; ow++) {
        int32_t iw = shares->begin[ow];

        for (; iw < covered && iw < shares->end[ow]; iw++)
            upper[iw] = share[ow];
        for (; iw < shares->end[ow]; iw++)
            lower[iw] = share[ow];
        covered = iw;
    }
}

/* A row of outputs, in whose divisor rows counts, to a place in the ring. */
TARGET static inline void OF(lay_out_row)(const ptac_avg_pool2d *p,
                                          const ptac_spread_plan *plan,
                                          struct OF(shares) * shares, const ELEM *grad,
                                          REAL rows, int64_t place)
{
    const int64_t out_w = p->image.out_w;
    REAL *row = shares->ring + place * plan->row;
    REAL spread[PTAC_MOST_OUTPUTS + N_LANES];

    for (int64_t ow = 0; ow < out_w; ow += N_LANES) {
        const int n = out_w - ow < N_LANES ? (int)(out_w - ow) : N_LANES;
        const VEC share = OF(share)(p, grad + ow, shares->columns + ow, rows, n);

        if (plan->way == PTAC_SHIFTED) {
            STORE_REAL(row + plan->lead + ow, share);
        } else if (plan->way == PTAC_DOUBLED) {
            STORE_REAL_PAIRS(row + plan->lead + 2 * ow, share, share);
            if (plan->is_partial)
                STORE_REAL_PAIRS(row + plan->size + plan->lead + 2 * ow, share,
                                 SET((REAL)-0.0));
        } else {
            STORE_REAL(spread + ow, share);
        }
    }
    if (plan->way == PTAC_SPREAD)
        OF(spread)(shares, spread, out_w, row, row + plan->size);
}

/* n_rows equal rows of the image, from the rows of outputs over them. */
TARGET static inline void OF(collect_rows)(const ptac_avg_pool2d *p,
                                           const ptac_spread_plan *plan,
                                           const struct OF(shares) * shares,
                                           const ptac_cover *cover, ELEM *out,
                                           int64_t n_rows)
{
    const int64_t w = p->image.w;

    for (int64_t iw = 0; iw < w; iw += N_LANES) {
        const int n = w - iw < N_LANES ? (int)(w - iw) : N_LANES;
        VEC sum = SET(0);

        for (int64_t oh = cover->first; oh < cover->last; oh++) {
            const REAL *row = shares->ring + (oh & (plan->n_rows - 1)) * plan->row;

            for (int i = 0; i < plan->n_layers; i++)
                sum = ROUND(ADD(sum, LOAD_REAL(row + plan->layers[i] + iw)));
        }
        for (int64_t i = 0; i < n_rows; i++)
            STORE(out + i * w + iw, sum, n);
    }
}

TARGET static void OF(spread_planes)(int64_t begin, int64_t end, void *context)
{
    const ptac_spread_job *job = context;
    const ptac_spread_plan *plan = &job->plan;
    const ptac_avg_pool2d *p = job->call->params;
    const ptac_image *image = &p->image;
    const int64_t n_out = image->out_h * image->out_w, n_in = image->h * image->w;
    struct OF(shares) shares;

    OF(prepare)(p, plan, &shares);
    for (int64_t i = begin; i < end; i++) {
        const ELEM *grad = (const ELEM *)job->call->inputs[0].data + i * n_out;
        ELEM *out = (ELEM *)job->call->outputs[0].data + i * n_in;
        ptac_cover cover = {0, 0};
        int64_t n_laid = 0;

        for (int64_t ih = 0, next; ih < image->h; ih = next) {
            next = ptac_cover_rows(p, ih, &cover);
            /* One row ahead: stores are slow to load at once from another offset. */
            for (; n_laid <= cover.last && n_laid < image->out_h; n_laid++) {
                const ptac_extent h = ptac_avg_extent_h(p, n_laid);

                OF(lay_out_row)
                (p, plan, &shares, grad + n_laid * image->out_w,
                 (REAL)ptac_avg_counted(p, &h), n_laid & (plan->n_rows - 1));
            }
            OF(collect_rows)(p, plan, &shares, &cover, out + ih * image->w, next - ih);
        }
    }
}

/* One value in n elements; where there are enough, the last vector overlaps. */
TARGET static inline void OF(fill)(ELEM *out, VEC v, int64_t n)
{
    if (n < N_LANES) {
        STORE(out, v, (int)n);
        return;
    }
    for (int64_t i = 0; i < n - N_LANES; i += N_LANES)
        STORE(out + i, v, N_LANES);
    STORE(out + n - N_LANES, v, N_LANES);
}

/* Planes [begin, end) that have one window each, the whole plane. */
TARGET static void OF(spread_whole_planes)(int64_t begin, int64_t end, void *context)
{
    const ptac_spread_job *job = context;
    const ptac_avg_pool2d *p = job->call->params;
    const ptac_extent h = ptac_avg_extent_h(p, 0), w = ptac_avg_extent_w(p, 0);
    const int64_t n_in = p->image.h * p->image.w;
    REAL columns[N_LANES], shares[N_LANES];

    for (int lane = 0; lane < N_LANES; lane++)
        columns[lane] = (REAL)ptac_avg_counted(p, &w);
    for (int64_t i = begin; i < end; i += N_LANES) {
        const ELEM *grad = (const ELEM *)job->call->inputs[0].data + i;
        ELEM *out = (ELEM *)job->call->outputs[0].data + i * n_in;
        const int n = end - i < N_LANES ? (int)(end - i) : N_LANES;
        const VEC share = OF(share)(p, grad, columns, (REAL)ptac_avg_counted(p, &h), n);

        STORE_REAL(shares, ADD(share, SET(0))); /* -0 becomes +0 */
        for (int lane = 0; lane < n; lane++)
            OF(fill)(out + lane * n_in, SET(shares[lane]), n_in);
    }
}

/* NHWC: add one output's gradient to its window, n_vectors of channels from c on. */
INLINE void OF(spread_pixel)(const ptac_image *image, const ptac_extent *h,
                             const ptac_extent *w, REAL divisor, const ELEM *grad,
                             ELEM *out, int64_t c, int n_vectors, int n)
{
    VEC share[MOST_VECTORS];

    FOR_VECTORS(i, n_vectors)
    share[i] = ROUND(DIV(LOAD(grad + c + i * N_LANES, n), ROUND(SET(divisor))));
    for (int64_t ih = h->begin; ih < h->end; ih++) {
        for (int64_t iw = w->begin; iw < w->end; iw++) {
            ELEM *at = out + (ih * image->w + iw) * image->channels + c;

            FOR_VECTORS(i, n_vectors)
            {
                ELEM *home = at + i * N_LANES;

                STORE(home, ROUND(ADD(LOAD(home, n), share[i])), n);
            }
        }
    }
}

TARGET static void OF(spread_images)(int64_t begin, int64_t end, void *context)
{
    const ptac_spread_job *job = context;
    const ptac_avg_pool2d *p = job->call->params;
    const ptac_image *image = &p->image;
    const int64_t channels = image->channels, row = image->w * channels;

    for (int64_t i = begin; i < end; i++) {
        const ELEM *grad = (const ELEM *)job->call->inputs[0].data +
                           i * image->out_h * image->out_w * channels;
        ELEM *out = (ELEM *)job->call->outputs[0].data + i * image->h * row;
        int64_t n_cleared = 0;

        for (int64_t oh = 0; oh < image->out_h; oh++) {
            const ptac_extent h = ptac_avg_extent_h(p, oh);

            for (; n_cleared < h.end; n_cleared++)
                memset(out + n_cleared * row, 0, (size_t)row * sizeof *out);
            for (int64_t ow = 0; ow < image->out_w; ow++, grad += channels) {
                const ptac_extent w = ptac_avg_extent_w(p, ow);
                const REAL divisor = (REAL)ptac_avg_divisors(p, &h, &w).first;

                OVER_CHANNELS(channels, OF(spread_pixel), image, &h, &w, divisor, grad,
                              out);
            }
        }
        for (; n_cleared < image->h; n_cleared++)
            memset(out + n_cleared * row, 0, (size_t)row * sizeof *out);
    }
}
