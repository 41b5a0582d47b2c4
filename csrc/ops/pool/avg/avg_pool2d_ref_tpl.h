/*
 * avg_pool2d_ref_tpl.h - average pooling by its definition, for one type of element.
 *
 * Expects OF(name), which gives name_f32, name_bf16 or name_f64, and undefines it;
 * words of elements.h; and INLINED: static and always inlined. Leaves
 * OF(average_groups) and OF(spread_groups), each a ptac_range_fn of a ptac_call.
 */

/* One output of n_planes planes. */
INLINED void OF(average)(const ptac_avg_pool2d *p, const planes *group,
                         const ptac_extent *h, const ptac_extent *w, const ELEM *x,
                         ELEM *y, int n_planes)
{
    const ptac_divisors by = ptac_avg_divisors(p, h, w);
    /* Elsewhere ATen adds the mean to a cleared output, which makes -0 positive. */
    const bool keeps_sign = p->is_adaptive || p->image.channels_last;
    REAL sum[GROUP] = {0};

    for (int64_t ih = h->begin; ih < h->end; ih++) {
        for (int64_t iw = w->begin; iw < w->end; iw++) {
            const ELEM *at = x + (ih * p->image.w + iw) * group->pixel;

#pragma GCC unroll 8
            for (int i = 0; i < n_planes; i++)
                sum[i] += WIDEN(at[i * group->x_plane]);
        }
    }
    for (int i = 0; i < n_planes; i++) {
        const REAL mean = sum[i] / (REAL)by.first / (REAL)by.second;

        y[i * group->y_plane] =
            keeps_sign ? NARROW(mean) : NARROW(0 + WIDEN(NARROW(mean)));
    }
}

/* A gradient's share for each position of its window, rounded at each step. */
static inline ELEM OF(share)(ELEM grad, const ptac_divisors *by)
{
    const ELEM first = NARROW((REAL)by->first), second = NARROW((REAL)by->second);
    const ELEM share = NARROW(WIDEN(grad) / WIDEN(first));

    return NARROW(WIDEN(share) / WIDEN(second));
}

/* Add one output's gradient of n_planes planes to its window. */
INLINED void OF(spread)(const ptac_avg_pool2d *p, const planes *group,
                        const ptac_extent *h, const ptac_extent *w, const ELEM *grad,
                        ELEM *out, int n_planes)
{
    const ptac_divisors by = ptac_avg_divisors(p, h, w);
    ELEM share[GROUP];

    for (int i = 0; i < n_planes; i++)
        share[i] = OF(share)(grad[i * group->y_plane], &by);
    for (int64_t ih = h->begin; ih < h->end; ih++) {
        for (int64_t iw = w->begin; iw < w->end; iw++) {
            ELEM *at = out + (ih * p->image.w + iw) * group->pixel;

#pragma GCC unroll 8
            for (int i = 0; i < n_planes; i++) {
                ELEM *home = at + i * group->x_plane;

                *home = NARROW(WIDEN(*home) + WIDEN(share[i]));
            }
        }
    }
}

/* All outputs of n_planes planes are computed, or their gradients spread. */
INLINED void OF(visit_outputs)(const ptac_call *call, const planes *group, int n_planes,
                               bool is_backward)
{
    const ptac_avg_pool2d *p = call->params;
    const ELEM *in = call->inputs[0].data;
    ELEM *out = call->outputs[0].data;

    in += is_backward ? group->y : group->x;
    out += is_backward ? group->x : group->y;
    for (int64_t at = 0; is_backward && at < p->image.h * p->image.w; at++)
        for (int i = 0; i < n_planes; i++)
            out[at * group->pixel + i * group->x_plane] = 0;
    for (int64_t oh = 0; oh < p->image.out_h; oh++) {
        const ptac_extent h = ptac_avg_extent_h(p, oh);
        const int64_t row_bytes = p->image.w * (int64_t)sizeof *in;

        for (int i = 0; !is_backward && group->pixel == 1 && i < n_planes; i++)
            ptac_prefetch(in + (n_planes + i) * group->x_plane + h.begin * p->image.w,
                          (h.end - h.begin) * row_bytes);
        for (int64_t ow = 0; ow < p->image.out_w; ow++) {
            const ptac_extent w = ptac_avg_extent_w(p, ow);

            if (is_backward) {
                OF(spread)(p, group, &h, &w, in, out, n_planes);
                in += group->pixel;
            } else {
                OF(average)(p, group, &h, &w, in, out, n_planes);
                out += group->pixel;
            }
        }
    }
}

INLINED void OF(visit_groups)(const ptac_call *call, int64_t begin, int64_t end,
                              bool is_backward)
{
    for (int64_t i = begin; i < end; i++) {
        const ptac_avg_pool2d *p = call->params;
        const planes group = group_of(&p->image, i);

        if (group.n_planes == GROUP)
            OF(visit_outputs)(call, &group, GROUP, is_backward);
        else
            OF(visit_outputs)(call, &group, group.n_planes, is_backward);
    }
}

static void OF(average_groups)(int64_t begin, int64_t end, void *context)
{
    OF(visit_groups)(context, begin, end, false);
}

static void OF(spread_groups)(int64_t begin, int64_t end, void *context)
{
    OF(visit_groups)(context, begin, end, true);
}
#undef OF
