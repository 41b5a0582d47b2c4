/*
 * conv_1x1.c - a convolution with a window of one place: a product of pixels.
 *
 * Pixels do not share anything, so that each band of them has a scale of its own. It is
 * measured, quantized and multiplied while it is in cache: the images are read once.
 */
#include "ops/int8/conv/conv_job.h"

#include "core/host.h"

enum {
    BAND_BYTES = 512 << 10, /* of floats */
};

typedef struct points_job {
    const ptac_conv_job *conv;
    int64_t n_channels, n_parts;
    int64_t strips_per_band, n_bands; /* of one image */
    int64_t band_pixels, pixel_bytes, part_bytes;
    bool skips;    /* pixels, by a stride */
    char *scratch; /* of each part: a band as bytes, and as floats where it is picked */
} points_job;

/* Channel by channel, the band's pixels in rows of a band each. */
static void pick(const points_job *job, const float *image, int64_t first,
                 int64_t n_pixels, float *picked)
{
    const ptac_int8_conv2d *p = job->conv->p;

    for (int64_t c = 0; c < job->n_channels; c++) {
        const float *plane = image + c * p->height * p->width;
        int64_t y = first / p->out_width, x = first % p->out_width;

        for (int64_t i = 0; i < n_pixels;) {
            const int64_t n = ptac_least(n_pixels - i, p->out_width - x);

            job->conv->isa->pick(plane + (y * p->stride[0]) * p->width +
                                     x * p->stride[1],
                                 p->stride[1], n, picked + c * job->band_pixels + i);
            i += n;
            x = 0;
            y++;
        }
    }
}

/* From planes: a band of each, as it lies or picked. */
static ptac_row_scale quantize_planes(const points_job *job, const float *image,
                                      int64_t first, int64_t n_pixels, float *picked,
                                      uint8_t *q)
{
    const ptac_conv_job *conv = job->conv;
    const ptac_int8_conv2d *p = conv->p;
    const ptac_pixels pixels = {
        .n_channels = p->c, .width = job->band_pixels, .pixel_bytes = job->pixel_bytes};
    const int64_t stride = job->skips ? job->band_pixels : p->height * p->width;
    const float *planes = job->skips ? picked : image + first;
    ptac_range range = {0};
    ptac_row_scale by;

    if (job->skips)
        pick(job, image, first, n_pixels, picked);
    for (int64_t c = 0; c < job->n_channels; c++)
        conv->isa->measure(planes + c * stride, n_pixels, &range);
    by = ptac_scale_of(&range, 255.0f);
    for (int64_t g = 0; g < p->groups; g++)
        conv->isa->quantize_planes(&pixels, planes + g * p->c * stride, stride, 0,
                                   n_pixels, by.inverse, (float)by.zero,
                                   q + g * conv->group_bytes);
    return by;
}

/* From NHWC: where a pixel of y has its channels. */
static const float *pixel_of(const points_job *job, const float *image, int64_t i)
{
    const ptac_int8_conv2d *p = job->conv->p;
    const int64_t y = i / p->out_width, x = i % p->out_width;

    return image + (y * p->stride[0] * p->width + x * p->stride[1]) * job->n_channels;
}

static ptac_row_scale quantize_pixels(const points_job *job, const float *image,
                                      int64_t first, int64_t n_pixels, uint8_t *q)
{
    const ptac_conv_job *conv = job->conv;
    const ptac_int8_conv2d *p = conv->p;
    ptac_range range = {0};
    ptac_row_scale by;

    if (job->skips)
        for (int64_t i = 0; i < n_pixels; i++)
            conv->isa->measure(pixel_of(job, image, first + i), job->n_channels,
                               &range);
    else
        conv->isa->measure(image + first * job->n_channels, n_pixels * job->n_channels,
                           &range);
    by = ptac_scale_of(&range, 255.0f);
    for (int64_t i = 0; i < n_pixels; i++) {
        const float *pixel = pixel_of(job, image, first + i);

        for (int64_t g = 0; g < p->groups; g++)
            conv->isa->quantize(pixel + g * p->c, p->c, by.inverse, (float)by.zero,
                                q + i * job->pixel_bytes + g * conv->group_bytes);
    }
    return by;
}

static void convolve_band(const points_job *job, int64_t image, int64_t band,
                          char *scratch)
{
    const ptac_conv_job *conv = job->conv;
    const ptac_int8_conv2d *p = conv->p;
    const float *x = conv->x + image * job->n_channels * p->height * p->width;
    const int64_t i = band * job->strips_per_band;
    const int64_t last = ptac_least(i + job->strips_per_band, conv->n_strips);
    const int64_t first = ptac_strip_begin(conv, i);
    const int64_t n_pixels = ptac_strip_begin(conv, last) - first;
    uint8_t *q = (uint8_t *)scratch;
    float *picked = (float *)(scratch + job->band_pixels * job->pixel_bytes);
    ptac_strip strip = {
        .origin = q,
        .width = job->band_pixels,
        .step_x = job->pixel_bytes,
        .by = p->channels_last ? quantize_pixels(job, x, first, n_pixels, q)
                               : quantize_planes(job, x, first, n_pixels, picked, q),
        .y = conv->y + image * p->n * p->out_height * p->out_width,
    };

    for (int64_t panel = 0; panel < conv->n_panels; panel++)
        for (int64_t s = i; s < last; s++) {
            strip.first = ptac_strip_begin(conv, s);
            strip.from = strip.first - first;
            strip.n_pixels = (int)(ptac_strip_begin(conv, s + 1) - strip.first);
            ptac_multiply_strip(conv, &strip, panel);
        }
}

static void convolve_parts(int64_t begin, int64_t end, void *context)
{
    const points_job *job = context;
    const int64_t n_bands = job->conv->p->batch * job->n_bands;

    for (int64_t part = begin; part < end; part++) {
        const int64_t last = n_bands * (part + 1) / job->n_parts;

        for (int64_t b = n_bands * part / job->n_parts; b < last; b++)
            convolve_band(job, b / job->n_bands, b % job->n_bands,
                          job->scratch + part * job->part_bytes);
    }
}

ptac_status ptac_convolve_points(ptac_conv_job *conv)
{
    const ptac_int8_conv2d *p = conv->p;
    const bool is_shared = p->batch * ptac_conv_work(p) >= 2 * PTAC_INT8_GRAIN;
    points_job job = {
        .conv = conv,
        .n_channels = p->groups * p->c,
        .pixel_bytes = p->groups * conv->group_bytes,
        .skips = p->stride[0] > 1 || p->stride[1] > 1,
    };
    static const int64_t no_offset = 0;
    const int64_t float_bytes = job.n_channels * (int64_t)sizeof(float);
    const int64_t picked_bytes = job.skips && !p->channels_last ? float_bytes : 0;

    conv->segments = &no_offset;
    conv->n_segments = 1;
    conv->n_quads = ptac_quads(p->c);
    job.strips_per_band = /* two threads may share an image */
        ptac_least(1 + BAND_BYTES / (PTAC_STRIP * float_bytes),
                   ptac_parts(conv->n_strips, 2));
    job.n_bands = ptac_parts(conv->n_strips, job.strips_per_band);
    job.band_pixels = job.strips_per_band * PTAC_STRIP;
    job.n_parts =
        ptac_least(is_shared ? conv->call->n_threads : 1, p->batch * job.n_bands);
    job.part_bytes =
        ptac_whole_lines(job.band_pixels * (job.pixel_bytes + picked_bytes));
    job.scratch = ptac_conv_scratch(conv, job.n_parts * job.part_bytes);
    if (!job.scratch)
        return PTAC_NO_MEMORY;
    ptac_parallel_for(0, job.n_parts, 1, convolve_parts, &job);
    ptac_conv_give_scratch(conv);
    return PTAC_OK;
}
