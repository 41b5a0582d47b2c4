/*
 * max_pool2d_backward_tpl.h - the gradient of max pooling, a vector at a time.
 *
 * NCHW windows of 2x2 side by side: each output's gradient goes to one of four
 * positions, so a row of outputs becomes two rows of inputs, written once and whole.
 * NHWC: a vector of channels at a time, tap by tap. Included once per element type
 * and instruction set; the file that includes it names the lanes:
 *
 *   SUFFIX(name), TARGET, TYPE, VEC, MASK, LANES   as in max_pool2d_tpl.h
 *   IVEC               LANES 32-bit positions
 *   LOAD(p, n), STORE(p, v, n)                     as in max_pool2d_tpl.h
 *   LOAD_INDEX(p, n)   n positions out of int64, saturated to 32 bits
 *   ISET, IADD, IRAMP, EQUAL(a, b)                 position arithmetic
 *   KEEP(m, v)         m ? v + 0 : 0; the sum turns -0 into +0, as adding to 0 does
 *   ADD_WHERE(sum, m, v)                           m ? sum + v : sum, rounded to TYPE
 *   FULL(n), IS_FULL(m, n), OR(a, b)               masks of the first n lanes
 *   ZIP(p, even, odd, n)                           interleave and store 2n elements
 *   SCATTER            one plane by the definition
 */

/* One row of outputs; false when an index is none of its window's four positions. */
TARGET static inline bool SUFFIX(tiled_row)(const TYPE *grad, const int64_t *index,
                                            TYPE *upper, TYPE *lower, int64_t position,
                                            int64_t w, int64_t out_w)
{
    bool known = true;

    for (int64_t ow = 0; ow < out_w; ow += LANES) {
        const int n = out_w - ow < LANES ? (int)(out_w - ow) : LANES;
        const VEC g = LOAD(grad + ow, n);
        const IVEC chosen = LOAD_INDEX(index + ow, n);
        const IVEC at = IADD(IRAMP(2), ISET((int32_t)(position + 2 * ow)));
        const MASK m0 = EQUAL(chosen, at);
        const MASK m1 = EQUAL(chosen, IADD(at, ISET(1)));
        const MASK m2 = EQUAL(chosen, IADD(at, ISET((int32_t)w)));
        const MASK m3 = EQUAL(chosen, IADD(at, ISET((int32_t)w + 1)));

        known &= IS_FULL(OR(OR(m0, m1), OR(m2, m3)), n);
        ZIP(upper + 2 * ow, KEEP(m0, g), KEEP(m1, g), n);
        ZIP(lower + 2 * ow, KEEP(m2, g), KEEP(m3, g), n);
    }
    return known;
}

TARGET static void SUFFIX(tiled_planes)(int64_t begin, int64_t end, void *context)
{
    ptac_scatter *job = context;
    const ptac_call *call = job->call;
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const int64_t w = image->w, out_w = image->out_w;
    const int64_t n_out = image->out_h * out_w, n_in = image->h * w;

    for (int64_t i = begin; i < end; i++) {
        const TYPE *grad = (const TYPE *)call->inputs[0].data + i * n_out;
        const int64_t *index = (const int64_t *)call->inputs[1].data + i * n_out;
        TYPE *out = (TYPE *)call->outputs[0].data + i * n_in;
        bool known = true;

        for (int64_t oh = 0; oh < image->out_h && known; oh++) {
            TYPE *upper = out + 2 * oh * w, *lower = upper + w;

            known = SUFFIX(tiled_row)(grad + oh * out_w, index + oh * out_w, upper,
                                      lower, 2 * oh * w, w, out_w);
            if (w > 2 * out_w)
                upper[w - 1] = lower[w - 1] = 0;
        }
        if (image->h > 2 * image->out_h)
            memset(out + 2 * image->out_h * w, 0, (size_t)w * sizeof *out);
        if (!known && !SCATTER(grad, index, out, n_out, n_in))
            __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);
    }
}

/* The channels of one output pixel; false when an index is none of the window's. */
TARGET static inline bool SUFFIX(pixel)(const TYPE *grad, const int64_t *index,
                                        TYPE *out, const ptac_max_pool2d *p, int64_t oh,
                                        int64_t ow)
{
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t channels = p->image.channels;
    const int64_t ih = oh * h->stride - h->padding, iw = ow * w->stride - w->padding;
    int64_t h0, h1, w0, w1;
    bool known = true;

    ptac_window_clip(h, ih, p->image.h, &h0, &h1);
    ptac_window_clip(w, iw, p->image.w, &w0, &w1);
    for (int64_t c = 0; c < channels; c += LANES) {
        const int n = channels - c < LANES ? (int)(channels - c) : LANES;
        const VEC g = LOAD(grad + c, n);
        const IVEC chosen = LOAD_INDEX(index + c, n);
        MASK seen = EQUAL(chosen, ISET(-1));

        for (int64_t kh = h0; kh < h1; kh++) {
            for (int64_t kw = w0; kw < w1; kw++) {
                const int64_t at =
                    (ih + kh * h->dilation) * p->image.w + iw + kw * w->dilation;
                const MASK here = EQUAL(chosen, ISET((int32_t)at));
                TYPE *home = out + at * channels + c;

                STORE(home, ADD_WHERE(LOAD(home, n), here, g), n);
                seen = OR(seen, here);
            }
        }
        known &= IS_FULL(seen, n);
    }
    return known;
}

TARGET static void SUFFIX(images)(int64_t begin, int64_t end, void *context)
{
    ptac_scatter *job = context;
    const ptac_call *call = job->call;
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const int64_t n_in = image->h * image->w * image->channels;
    const int64_t n_out = image->out_h * image->out_w * image->channels;

    for (int64_t i = begin; i < end; i++) {
        const TYPE *grad = (const TYPE *)call->inputs[0].data + i * n_out;
        const int64_t *index = (const int64_t *)call->inputs[1].data + i * n_out;
        TYPE *out = (TYPE *)call->outputs[0].data + i * n_in;

        memset(out, 0, (size_t)n_in * sizeof *out);
        for (int64_t at = 0; at < image->out_h * image->out_w; at++)
            if (!SUFFIX(pixel)(grad + at * image->channels,
                               index + at * image->channels, out, p, at / image->out_w,
                               at % image->out_w))
                __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);
    }
}

#undef SUFFIX
#undef TYPE
#undef VEC
#undef IVEC
#undef MASK
#undef LANES
#undef LOAD
#undef STORE
#undef LOAD_INDEX
#undef ISET
#undef IADD
#undef IRAMP
#undef EQUAL
#undef KEEP
#undef ADD_WHERE
#undef IS_FULL
#undef ZIP
#undef SCATTER
