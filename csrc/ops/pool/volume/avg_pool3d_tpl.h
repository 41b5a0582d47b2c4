/*
 * avg_pool3d_tpl.h - 3-d average pooling and its gradient along rows, for float and
 * double.
 *
 * Forward goes on adding slab after slab what avg_pool2d_tpl.h adds up in one. The
 * gradient lays a row of outputs out as the columns see it, and adds it to each row of
 * the volume that its windows reach over, so that a position's gradients add up in the
 * order of the outputs.
 *
 * pool_tpl.h has the words. Leaves OF(average_volumes), a ptac_range_fn of a ptac_call,
 * and OF(spread_volumes), one of a ptac_spread_job.
 */
#include "ops/pool/volume/avg_pool3d.h"

/* One piece in all rows of one plane. */
TARGET static void OF(average_volume)(const ptac_call *call, int64_t plane,
                                      const struct OF(average_piece) * piece)
{
    const ptac_avg_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const ptac_window *w = &p->slab.window.w;
    const int64_t n_slab = slab->h * slab->w;
    const ELEM *x = (const ELEM *)call->inputs[0].data +
                    plane * ptac_volume_positions(slab, &p->depth);
    ELEM *y = (ELEM *)call->outputs[0].data +
              plane * ptac_volume_outputs(slab, &p->depth) + piece->ow;
    const VEC by = SET((REAL)p->slab.divisor);

    for (int64_t od = 0; od < p->depth.outputs; od++) {
        const ptac_extent d = ptac_avg_extent_d(p, od);
        const REAL slabs = (REAL)ptac_avg_counted(&p->slab, &d);

        for (int64_t oh = 0; oh < slab->out_h; oh++, y += slab->out_w) {
            const ptac_extent h = ptac_avg_extent_h(&p->slab, oh);
            const VEC rows = SET((REAL)ptac_avg_counted(&p->slab, &h));
            const ELEM *at = x + h.begin * slab->w + piece->ow * w->stride - w->padding;
            VEC mean = SET(0);

            for (int64_t id = d.begin; id < d.end; id++)
                mean = OF(sum_row)(mean, at + id * n_slab, &p->slab, piece,
                                   h.end - h.begin);
            if (p->slab.is_adaptive)
                mean = DIV(DIV(DIV(mean, SET(slabs)), rows), piece->columns);
            else /* ATen adds it to a cleared output, which makes -0 positive */
                mean = ADD(DIV(mean, p->slab.divisor
                                         ? by
                                         : MUL(MUL(SET(slabs), rows), piece->columns)),
                           SET(0));
            STORE(y, mean, piece->n);
        }
    }
}

OVER_PIECES(OF(average_volumes), ptac_avg_pool3d, p->slab, struct OF(average_piece),
            OF(cut_averages), OF(average_volume))

/* Add a row of outputs, as it is laid out, to a row of the volume. */
TARGET static inline void OF(add_row)(const ptac_spread_plan *plan, const REAL *row,
                                      ELEM *out, int64_t w)
{
    for (int64_t iw = 0; iw < w; iw += N_LANES) {
        const int n = w - iw < N_LANES ? (int)(w - iw) : N_LANES;
        VEC sum = LOAD(out + iw, n);

        for (int i = 0; i < plan->n_layers; i++)
            sum = ADD(sum, LOAD_REAL(row + plan->layers[i] + iw));
        STORE(out + iw, sum, n);
    }
}

/* One plane, which is cleared. */
TARGET static inline void OF(spread_volume)(const ptac_avg_pool3d *p,
                                            const ptac_spread_plan *plan,
                                            struct OF(shares) * shares,
                                            const ELEM *grad, ELEM *out)
{
    const ptac_image *slab = &p->slab.image;
    const int64_t out_w = slab->out_w;
    ELEM divided[PTAC_MOST_OUTPUTS];

    for (int64_t od = 0; od < p->depth.outputs; od++) {
        const ptac_extent d = ptac_avg_extent_d(p, od);
        const REAL slabs = (REAL)ptac_avg_counted(&p->slab, &d);

        for (int64_t oh = 0; oh < slab->out_h; oh++, grad += out_w) {
            const ptac_extent h = ptac_avg_extent_h(&p->slab, oh);
            const REAL rows = (REAL)ptac_avg_counted(&p->slab, &h);

            if (p->slab.is_adaptive) { /* first of all by the depth */
                for (int64_t ow = 0; ow < out_w; ow++)
                    divided[ow] = grad[ow] / slabs;
                OF(lay_out_row)(&p->slab, plan, shares, divided, rows, 0);
            } else {
                OF(lay_out_row)(&p->slab, plan, shares, grad, slabs * rows, 0);
            }
            for (int64_t id = d.begin; id < d.end; id++)
                for (int64_t ih = h.begin; ih < h.end; ih++)
                    OF(add_row)
            (plan, shares->ring, out + (id * slab->h + ih) * slab->w, slab->w);
        }
    }
}

/* Planes [begin, end). */
TARGET static void OF(spread_volumes)(int64_t begin, int64_t end, void *context)
{
    const ptac_spread_job *job = context;
    const ptac_avg_pool3d *p = job->call->params;
    const int64_t n_out = ptac_volume_outputs(&p->slab.image, &p->depth),
                  n_in = ptac_volume_positions(&p->slab.image, &p->depth);
    struct OF(shares) shares;

    OF(prepare)(&p->slab, &job->plan, &shares);
    for (int64_t i = begin; i < end; i++) {
        ELEM *out = (ELEM *)job->call->outputs[0].data + i * n_in;

        memset(out, 0, (size_t)n_in * sizeof *out);
        OF(spread_volume)
        (p, &job->plan, &shares, (const ELEM *)job->call->inputs[0].data + i * n_out,
         out);
    }
}
