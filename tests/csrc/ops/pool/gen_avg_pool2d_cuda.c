/*
 * gen_avg_pool2d_cuda.c - average pooling and its gradient as ATen's kernels on CUDA
 * compute them: AveragePool2d.cu and AdaptiveAveragePooling.cu of aten/src/ATen/native.
 *
 * Operations on floats are done in double and rounded, which gives float's own bits: a
 * double has more than twice the digits (Figueroa, "When is double rounding
 * innocuous?", 1995). Products that are added are the exception.
 */
#include "gen_avg_pool2d.h"

#include "ops/pool/avg/avg_pool2d.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>

/* A result in the type that sums are in. */
static double real(ptac_dtype dtype, double x)
{
    return dtype == PTAC_F64 ? x : (double)(float)x;
}

/* A result in the type of the elements. */
static double element(ptac_dtype dtype, double x)
{
    double stored;

    set_real(dtype, &stored, 0, real(dtype, x));
    return real_at(dtype, &stored, 0);
}

static double fused(ptac_dtype dtype, double a, double b, double c)
{
    return dtype == PTAC_F64 ? fma(a, b, c)
                             : (double)fmaf((float)a, (float)b, (float)c);
}

/* The device has but one NaN that it rounds to bfloat16. */
static void store(ptac_dtype dtype, void *memory, int64_t i, double x)
{
    if (dtype == PTAC_BF16 && isnan(x))
        ((uint16_t *)memory)[i] = 0x7fff;
    else
        set_real(dtype, memory, i, x);
}

static bool multiplies(const ptac_avg_pool2d *p)
{
    return p->is_adaptive && p->image.channels_last;
}

static double mean(const ptac_avg_pool2d *p, ptac_dtype dtype, const ptac_extent *h,
                   const ptac_extent *w, double sum)
{
    const double n_h = (double)ptac_avg_counted(p, h);
    const double n_w = (double)ptac_avg_counted(p, w);

    if (multiplies(p))
        return sum * element(dtype, 1 / element(dtype, n_h * n_w));
    if (p->is_adaptive)
        return real(dtype, sum / n_h) / n_w;
    return sum / real(dtype, p->divisor ? (double)p->divisor : n_h * n_w);
}

/* The sum at a position, and what a gradient adds to it. */
static double with_share(const ptac_avg_pool2d *p, ptac_dtype dtype,
                         const ptac_extent *h, const ptac_extent *w, double grad,
                         double sum)
{
    const double n_h = (double)ptac_avg_counted(p, h);
    const double n_w = (double)ptac_avg_counted(p, w);
    double by = p->divisor ? (double)p->divisor : n_h * n_w;

    if (multiplies(p)) {
        by = element(dtype, element(dtype, 1 / element(dtype, n_w)) *
                                element(dtype, 1 / element(dtype, n_h)));
        return fused(dtype, grad, by, sum);
    }
    if (p->is_adaptive) {
        grad = element(dtype, grad / element(dtype, n_w));
        by = n_h;
    }
    return real(dtype, sum + element(dtype, grad / element(dtype, by)));
}

/* A plane's first element in an image batch of so many pixels each. */
static int64_t plane_of(const ptac_image *image, int64_t plane, int64_t n_pixels)
{
    const int64_t channels = image->channels;

    return image->channels_last
               ? plane / channels * channels * n_pixels + plane % channels
               : plane * n_pixels;
}

/* The pixels of one window, in order; false where it has been left. */
static bool next(const ptac_extent *h, const ptac_extent *w, int64_t *ih, int64_t *iw)
{
    if (++*iw < w->end)
        return true;
    *iw = w->begin;
    return ++*ih < h->end;
}

ptac_reason accepts_on_cuda(const ptac_call *call)
{
    return call->inputs[0].dtype <= PTAC_F64 || call->inputs[0].dtype == PTAC_F16
               ? PTAC_TAKE
               : PTAC_DTYPE;
}

ptac_status average_on_cuda(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int64_t step = image->channels_last ? image->channels : 1;
    const int64_t n_in = image->h * image->w, n_out = image->out_h * image->out_w;

    for (int64_t i = 0; i < image->n * image->channels * n_out; i++) {
        const int64_t from = plane_of(image, i / n_out, n_in);
        const ptac_extent h = ptac_avg_extent_h(p, i % n_out / image->out_w);
        const ptac_extent w = ptac_avg_extent_w(p, i % image->out_w);
        int64_t ih = h.begin, iw = w.begin;
        double sum = 0;

        do {
            const int64_t at = from + (ih * image->w + iw) * step;

            sum = real(dtype, sum + real_at(dtype, call->inputs[0].data, at));
        } while (next(&h, &w, &ih, &iw));
        store(dtype, call->outputs[0].data,
              plane_of(image, i / n_out, n_out) + i % n_out * step,
              real(dtype, mean(p, dtype, &h, &w, sum)));
    }
    return PTAC_OK;
}

ptac_status spread_on_cuda(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int64_t step = image->channels_last ? image->channels : 1;
    const int64_t n_in = image->h * image->w, n_out = image->out_h * image->out_w;
    const int64_t n_planes = image->n * image->channels;
    double *sums = calloc((size_t)(n_planes * n_in), sizeof *sums);

    if (!sums)
        abort();
    for (int64_t i = 0; i < n_planes * n_out; i++) {
        const int64_t to = plane_of(image, i / n_out, n_in);
        const ptac_extent h = ptac_avg_extent_h(p, i % n_out / image->out_w);
        const ptac_extent w = ptac_avg_extent_w(p, i % image->out_w);
        const double grad =
            real_at(dtype, call->inputs[0].data,
                    plane_of(image, i / n_out, n_out) + i % n_out * step);
        int64_t ih = h.begin, iw = w.begin;

        do {
            double *sum = &sums[to + (ih * image->w + iw) * step];

            *sum = with_share(p, dtype, &h, &w, grad, *sum);
        } while (next(&h, &w, &ih, &iw));
    }
    for (int64_t i = 0; i < n_planes * n_in; i++)
        store(dtype, call->outputs[0].data, i, sums[i]);
    free(sums);
    return PTAC_OK;
}
