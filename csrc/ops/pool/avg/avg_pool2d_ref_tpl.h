/*
 * avg_pool2d_ref_tpl.h - average pooling by its definition, for one type of element.
 *
 * Expects OF(name), which gives name_f32, name_bf16 or name_f64, words of elements.h,
 * and INLINED, what makes a function static and always inlined. Leaves
 * OF(average_groups) and OF(spread_groups), each a ptac_range_fn of a ptac_call.
 */

/* One output of n_planes planes. */
INLINED void OF(average)(const ptac_avg_pool2d *p, const ptac_group *group,
                         const ptac_extent *h, const ptac_extent *w, const ELEM *x,
                         ELEM *y, int n_planes)
{
    const ptac_divisors by = ptac_avg_divisors(p, h, w);
    /* Elsewhere ATen adds the mean to a cleared output, which makes -0 positive. */
    const bool keeps_sign = p->is_adaptive || p->image.channels_last;
    REAL sum[PTAC_GROUP] = {0};

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

INLINED void OF(average_group)(const ptac_call *call, const ptac_group *group,
                               int n_planes)
{
    const ptac_avg_pool2d *p = call->params;
    const ELEM *x = (const ELEM *)call->inputs[0].data + group->x;
    ELEM *y = (ELEM *)call->outputs[0].data + group->y;

    for (int64_t oh = 0; oh < p->image.out_h; oh++) {
        const ptac_extent h = ptac_avg_extent_h(p, oh);
        const int64_t rows = (h.end - h.begin) * p->image.w * (int64_t)sizeof *x;

        for (int i = 0; group->pixel == 1 && i < n_planes; i++)
            ptac_prefetch(x + (n_planes + i) * group->x_plane + h.begin * p->image.w,
                          rows);
        for (int64_t ow = 0; ow < p->image.out_w; ow++, y += group->pixel) {
            const ptac_extent w = ptac_avg_extent_w(p, ow);

            OF(average)(p, group, &h, &w, x, y, n_planes);
        }
    }
}

static void OF(average_groups)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_avg_pool2d *p = call->params;

    for (int64_t i = begin; i < end; i++) {
        const ptac_group group = ptac_group_of(&p->image, i);

        if (group.n_planes == PTAC_GROUP)
            OF(average_group)(call, &group, PTAC_GROUP);
        else
            OF(average_group)(call, &group, group.n_planes);
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
INLINED void OF(spread)(const ptac_avg_pool2d *p, const ptac_group *group,
                        const ptac_extent *h, const ptac_extent *w, const ELEM *grad,
                        ELEM *out, int n_planes)
{
    const ptac_divisors by = ptac_avg_divisors(p, h, w);
    ELEM share[PTAC_GROUP];

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

INLINED void OF(spread_group)(const ptac_call *call, const ptac_group *group,
                              int n_planes)
{
    const ptac_avg_pool2d *p = call->params;
    const int64_t n_in = p->image.h * p->image.w;
    const ELEM *grad = (const ELEM *)call->inputs[0].data + group->y;
    ELEM *out = (ELEM *)call->outputs[0].data + group->x;

    for (int64_t at = 0; at < n_in; at++)
        for (int i = 0; i < n_planes; i++)
            out[at * group->pixel + i * group->x_plane] = 0;
    for (int64_t oh = 0; oh < p->image.out_h; oh++) {
        const ptac_extent h = ptac_avg_extent_h(p, oh);

        for (int64_t ow = 0; ow < p->image.out_w; ow++, grad += group->pixel) {
            const ptac_extent w = ptac_avg_extent_w(p, ow);

            OF(spread)(p, group, &h, &w, grad, out, n_planes);
        }
    }
}

static void OF(spread_groups)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_avg_pool2d *p = call->params;

    for (int64_t i = begin; i < end; i++) {
        const ptac_group group = ptac_group_of(&p->image, i);

        if (group.n_planes == PTAC_GROUP)
            OF(spread_group)(call, &group, PTAC_GROUP);
        else
            OF(spread_group)(call, &group, group.n_planes);
    }
}
