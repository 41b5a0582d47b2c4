/*
 * avg_pool3d_ref_tpl.h - 3-d average pooling by its definition, for one type.
 *
 * Expects OF(name), which gives name_f32 or name_f64, and undefines it; words of
 * elements.h. Leaves OF(average_groups) and OF(spread_groups), each a ptac_range_fn of
 * a ptac_call.
 */

/* One output of n_planes planes, n_in positions and n_out outputs apart. */
static inline __attribute__((always_inline)) void OF(average)(
    const ptac_image *slab, const box *b, const ELEM *x, int64_t n_in, ELEM *y,
    int64_t n_out, int n_planes, bool keeps_sign)
{
    ELEM sum[GROUP] = {0};

    for (int64_t id = b->d.begin; id < b->d.end; id++) {
        for (int64_t ih = b->h.begin; ih < b->h.end; ih++) {
            for (int64_t iw = b->w.begin; iw < b->w.end; iw++) {
                const ELEM *at = x + (id * slab->h + ih) * slab->w + iw;

#pragma GCC unroll 8
                for (int i = 0; i < n_planes; i++)
                    sum[i] += at[i * n_in];
            }
        }
    }
    for (int i = 0; i < n_planes; i++) {
        const ELEM mean =
            sum[i] / (ELEM)b->divisors[0] / (ELEM)b->divisors[1] / (ELEM)b->divisors[2];

        /* ATen adds other means to a cleared output, which makes -0 positive. */
        y[i * n_out] = keeps_sign ? mean : 0 + mean;
    }
}

/* Add one output's gradient of n_planes planes to its window. */
static inline __attribute__((always_inline)) void OF(spread)(const ptac_image *slab,
                                                             const box *b,
                                                             const ELEM *grad,
                                                             int64_t n_out, ELEM *out,
                                                             int64_t n_in, int n_planes)
{
    ELEM share[GROUP];

    for (int i = 0; i < n_planes; i++)
        share[i] = grad[i * n_out] / (ELEM)b->divisors[0] / (ELEM)b->divisors[1] /
                   (ELEM)b->divisors[2];
    for (int64_t id = b->d.begin; id < b->d.end; id++) {
        for (int64_t ih = b->h.begin; ih < b->h.end; ih++) {
            for (int64_t iw = b->w.begin; iw < b->w.end; iw++) {
                ELEM *at = out + (id * slab->h + ih) * slab->w + iw;

#pragma GCC unroll 8
                for (int i = 0; i < n_planes; i++)
                    at[i * n_in] += share[i];
            }
        }
    }
}

/* All outputs of a group of planes are computed, or their gradients spread. */
static inline __attribute__((always_inline)) void OF(visit_group)(const ptac_call *call,
                                                                  int64_t first,
                                                                  int n_planes,
                                                                  bool is_backward)
{
    const ptac_avg_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const int64_t n_in = ptac_volume_positions(slab, &p->depth),
                  n_out = ptac_volume_outputs(slab, &p->depth);
    const ELEM *in = call->inputs[0].data;
    ELEM *out = call->outputs[0].data;

    in += first * (is_backward ? n_out : n_in);
    out += first * (is_backward ? n_in : n_out);
    if (is_backward)
        memset(out, 0, (size_t)(n_planes * n_in) * sizeof *out);
    for (int64_t od = 0, i = 0; od < p->depth.outputs; od++) {
        for (int64_t oh = 0; oh < slab->out_h; oh++) {
            for (int64_t ow = 0; ow < slab->out_w; ow++, i++) {
                const box b = box_of(p, od, oh, ow);

                if (is_backward)
                    OF(spread)(slab, &b, in + i, n_out, out, n_in, n_planes);
                else
                    OF(average)
                (slab, &b, in, n_in, out + i, n_out, n_planes, p->slab.is_adaptive);
            }
        }
    }
}

static inline __attribute__((always_inline)) void OF(visit_groups)(
    const ptac_call *call, int64_t begin, int64_t end, bool is_backward)
{
    const ptac_image *slab = &((const ptac_avg_pool3d *)call->params)->slab.image;

    for (int64_t i = begin * GROUP; i < end * GROUP; i += GROUP) {
        const int64_t rest = slab->n * slab->channels - i;

        if (rest >= GROUP)
            OF(visit_group)(call, i, GROUP, is_backward);
        else
            OF(visit_group)(call, i, (int)rest, is_backward);
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
