/*
 * max_pool3d_rows.h - which rows of a volume a row of outputs touches, and how many of
 * them a thread keeps the columns of.
 */
#ifndef PTAC_OPS_POOL_VOLUME_MAX_POOL3D_ROWS_H
#define PTAC_OPS_POOL_VOLUME_MAX_POOL3D_ROWS_H

#include "ops/pool/volume/max_pool3d.h"

enum {
    PTAC_VOLUME_REALS = 4096, /* of columns, in the nearest cache */
    PTAC_VOLUME_SLACK = 32,   /* that vectors may read, or write, behind a row */
};

/* Windows two columns apart that share none: rows of outputs are one line. */
static inline bool ptac_max_pool3d_is_line(const ptac_max_pool3d *p)
{
    const ptac_window *w = &p->slab.window.w;

    return w->stride == 2 && w->padding == 0 && ptac_window_reach(w) <= 2;
}

/* Windows of two side by side, all of them in the volume. */
static inline bool ptac_max_pool3d_is_halved(const ptac_window *w, int64_t n_outputs,
                                             int64_t size)
{
    return w->kernel == 2 && w->stride == 2 && w->padding == 0 && w->dilation == 1 &&
           2 * n_outputs <= size;
}

/* Along all axes. */
static inline bool ptac_max_pool3d_is_tiled(const ptac_max_pool3d *p)
{
    const ptac_image *slab = &p->slab.image;

    return ptac_max_pool3d_is_halved(&p->depth.window, p->depth.outputs,
                                     p->depth.size) &&
           ptac_max_pool3d_is_halved(&p->slab.window.h, slab->out_h, slab->h) &&
           ptac_max_pool3d_is_halved(&p->slab.window.w, slab->out_w, slab->w);
}

/*
 * Columns from one row of outputs to the next, with those outside the volume. In a line
 * a row's last vector may end behind it: the next row goes over that.
 */
static inline int64_t ptac_max_pool3d_row(const ptac_max_pool3d *p)
{
    const ptac_window *w = &p->slab.window.w;
    const int64_t inside = w->padding + p->slab.image.w;
    const int64_t reached =
        (p->slab.image.out_w - 1) * w->stride + ptac_window_reach(w);

    if (ptac_max_pool3d_is_line(p))
        return 2 * p->slab.image.out_w;
    return (inside > reached ? inside : reached) + PTAC_VOLUME_SLACK;
}

/* Rows of outputs whose columns have room; 0 where rows are too long or too many. */
static inline int64_t ptac_max_pool3d_rows_at_once(const ptac_max_pool3d *p)
{
    return p->depth.window.kernel > PTAC_MAX_TAPS / p->slab.window.h.kernel
               ? 0
               : (PTAC_VOLUME_REALS - PTAC_VOLUME_SLACK) / ptac_max_pool3d_row(p);
}

/* A row of outputs. */
typedef struct ptac_volume_row {
    int64_t plane, od, oh;
} ptac_volume_row;

/* Its place, and go on to the next; divisions are slow. */
static inline ptac_volume_row ptac_volume_row_step(const ptac_max_pool3d *p,
                                                   ptac_volume_row *next)
{
    const ptac_volume_row here = *next;

    if (++next->oh == p->slab.image.out_h) {
        next->oh = 0;
        if (++next->od == p->depth.outputs) {
            next->od = 0;
            next->plane++;
        }
    }
    return here;
}

/* The first positions of the rows of a plane that it touches; their number. */
static inline int ptac_max_pool3d_rows(const ptac_max_pool3d *p,
                                       const ptac_volume_row *row,
                                       int32_t rows[PTAC_MAX_TAPS])
{
    const ptac_image *slab = &p->slab.image;
    const ptac_window *d = &p->depth.window, *h = &p->slab.window.h;
    const int64_t id = row->od * d->stride - d->padding;
    const int64_t ih = row->oh * h->stride - h->padding;
    int64_t d0, d1, h0, h1;
    int n = 0;

    ptac_window_clip(d, id, p->depth.size, &d0, &d1);
    ptac_window_clip(h, ih, slab->h, &h0, &h1);
    for (int64_t kd = d0; kd < d1; kd++)
        for (int64_t kh = h0; kh < h1; kh++)
            rows[n++] =
                (int32_t)(((id + kd * d->dilation) * slab->h + ih + kh * h->dilation) *
                          slab->w);
    return n;
}

#endif
