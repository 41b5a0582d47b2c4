/*
 * conv_spatial.c - a convolution as tiles of pixels by panels of channels.
 *
 * The images are measured and written as bytes, pixel by pixel, with a margin of zeros.
 * In such an image the window of a pixel is a few runs of bytes, the segments of a
 * tile, which is therefore the same as that of a matrix product.
 */
#include "ops/int8/conv/conv_job.h"

#include "core/host.h"

#include <string.h>

enum {
    PIECE = 1 << 15,        /* floats that are worth a thread */
    MOST_BYTES = 512 << 10, /* of quantized images a thread, that stay in cache */
};

typedef struct window_job {
    const ptac_conv_job *conv;
    const float *x; /* of the first image */
    float *y;
    int64_t batch; /* images at a time */
    int64_t image_floats;
    ptac_pixels pixels; /* of a quantized image, margin included in line_bytes */
    int64_t image_bytes;
    int64_t segments[PTAC_INT8_MOST_TAPS];
    int64_t n_bands; /* of an image, that are measured and quantized apart */
    ptac_range *ranges;
    ptac_row_scale *scales;
    uint8_t *q;
    int64_t strip_parts, panel_parts;
} window_job;

/* Sizes of the quantized image, and where the pieces of a window lie in it. */
static void lay_out(ptac_conv_job *conv, window_job *job)
{
    const ptac_int8_conv2d *p = conv->p;
    const int64_t pixel_bytes = p->groups * conv->group_bytes;
    const bool is_run = p->groups == 1 && p->dilation[1] == 1;

    job->image_floats = p->groups * p->c * p->height * p->width;
    job->pixels = (ptac_pixels){
        .n_channels = p->c,
        .width = p->width,
        .pixel_bytes = pixel_bytes,
        .line_bytes = (p->width + 2 * p->padding[1]) * pixel_bytes,
    };
    job->image_bytes =
        ptac_whole_lines((p->height + 2 * p->padding[0]) * job->pixels.line_bytes);
    conv->segments = job->segments;
    conv->n_quads = (is_run ? p->kernel[1] : 1) * ptac_quads(p->c);
    for (int64_t i = 0; i < p->kernel[0]; i++)
        for (int64_t j = 0; j < (is_run ? 1 : p->kernel[1]); j++)
            job->segments[conv->n_segments++] =
                i * p->dilation[0] * job->pixels.line_bytes +
                j * p->dilation[1] * pixel_bytes;
}

/* A band of lines of one image, which one thread writes. */
typedef struct band {
    int64_t begin, end;
    const float *x;  /* of the image */
    uint8_t *image;  /* where the quantized image begins, margin included */
    uint8_t *pixels; /* where its first pixel is */
    ptac_row_scale by;
} band;

static band band_of(const window_job *job, int64_t part)
{
    const ptac_int8_conv2d *p = job->conv->p;
    const int64_t i = part / job->n_bands, j = part % job->n_bands;
    uint8_t *image = job->q + i * job->image_bytes;

    return (band){
        .begin = p->height * j / job->n_bands,
        .end = p->height * (j + 1) / job->n_bands,
        .x = job->x + i * job->image_floats,
        .image = image,
        .pixels = image + p->padding[0] * job->pixels.line_bytes +
                  p->padding[1] * job->pixels.pixel_bytes,
        .by = job->scales[i],
    };
}

/* The ends of the band's lines; the first band has the lines above, the last below. */
static void write_margin(const window_job *job, const band *b)
{
    const ptac_int8_conv2d *p = job->conv->p;
    const int64_t line = job->pixels.line_bytes, edge = p->padding[0] * line;
    const int64_t side = p->padding[1] * job->pixels.pixel_bytes;
    uint8_t *first = b->image + edge;

    if (b->begin == 0)
        memset(b->image, b->by.zero, (size_t)edge);
    if (b->end == p->height)
        memset(first + p->height * line, b->by.zero, (size_t)edge);
    for (int64_t i = b->begin; side > 0 && i < b->end; i++) {
        memset(first + i * line, b->by.zero, (size_t)side);
        memset(first + (i + 1) * line - side, b->by.zero, (size_t)side);
    }
}

/* From NHWC: a pixel's channels lie side by side already, group by group. */
static void quantize_pixels(const window_job *job, const band *b)
{
    const ptac_int8_conv2d *p = job->conv->p;
    const int64_t channels = p->groups * p->c;
    const float inverse = b->by.inverse, zero = (float)b->by.zero;

    for (int64_t i = b->begin; i < b->end; i++) {
        const float *line = b->x + i * p->width * channels;
        uint8_t *to = b->pixels + i * job->pixels.line_bytes;

        if (job->conv->group_bytes == p->c) {
            job->conv->isa->quantize(line, p->width * channels, inverse, zero, to);
            continue;
        }
        for (int64_t j = 0; j < p->width * p->groups; j++)
            job->conv->isa->quantize(line + j * p->c, p->c, inverse, zero,
                                     to + j * job->conv->group_bytes);
    }
}

static void quantize_bands(int64_t begin, int64_t end, void *context)
{
    const window_job *job = context;
    const ptac_int8_conv2d *p = job->conv->p;
    const int64_t plane = p->height * p->width;

    for (int64_t part = begin; part < end; part++) {
        const band b = band_of(job, part);

        write_margin(job, &b);
        if (p->channels_last) {
            quantize_pixels(job, &b);
            continue;
        }
        for (int64_t g = 0; g < p->groups; g++)
            job->conv->isa->quantize_planes(&job->pixels, b.x + g * p->c * plane, plane,
                                            b.begin * p->width, b.end * p->width,
                                            b.by.inverse, (float)b.by.zero,
                                            b.pixels + g * job->conv->group_bytes);
    }
}

static void measure_bands(int64_t begin, int64_t end, void *context)
{
    const window_job *job = context;

    for (int64_t part = begin; part < end; part++) {
        const int64_t i = part / job->n_bands, j = part % job->n_bands;
        const int64_t from = job->image_floats * j / job->n_bands;
        const int64_t to = job->image_floats * (j + 1) / job->n_bands;

        job->ranges[part] = (ptac_range){0};
        job->conv->isa->measure(job->x + i * job->image_floats + from, to - from,
                                &job->ranges[part]);
    }
}

static void find_scale(const window_job *job, int64_t image)
{
    ptac_range all = {0};

    for (int64_t j = 0; j < job->n_bands; j++) {
        const ptac_range *r = &job->ranges[image * job->n_bands + j];

        all.lo = r->lo < all.lo ? r->lo : all.lo;
        all.hi = r->hi > all.hi ? r->hi : all.hi;
        all.poison += r->poison;
    }
    job->scales[image] = ptac_scale_of(&all, 255.0f);
}

/* Images in cache: what has been measured is quantized at once. */
static void quantize_images(int64_t begin, int64_t end, void *context)
{
    for (int64_t i = begin; i < end; i++) {
        measure_bands(i, i + 1, context);
        find_scale(context, i);
        quantize_bands(i, i + 1, context);
    }
}

static void quantize(window_job *job)
{
    const int64_t few = job->conv->call->n_threads;
    const int64_t per_piece = 1 + PIECE / job->image_floats;

    job->n_bands = 1;
    if (job->batch >= few || job->image_floats < PIECE) {
        ptac_parallel_for(0, job->batch, per_piece, quantize_images, job);
        return;
    }
    job->n_bands = ptac_least(few, job->conv->p->height);
    ptac_parallel_for(0, job->batch * job->n_bands, 1, measure_bands, job);
    for (int64_t i = 0; i < job->batch; i++)
        find_scale(job, i);
    ptac_parallel_for(0, job->batch * job->n_bands, 1, quantize_bands, job);
}

static ptac_strip strip_of(const window_job *job, int64_t i)
{
    const ptac_int8_conv2d *p = job->conv->p;
    const int64_t image = i / job->conv->n_strips, strip = i % job->conv->n_strips;
    const int64_t first = ptac_strip_begin(job->conv, strip);

    return (ptac_strip){
        .origin = job->q + image * job->image_bytes,
        .first = first,
        .from = first,
        .n_pixels = (int)(ptac_strip_begin(job->conv, strip + 1) - first),
        .width = p->out_width,
        .step_x = p->stride[1] * job->pixels.pixel_bytes,
        .step_y = p->stride[0] * job->pixels.line_bytes,
        .by = job->scales[image],
        .y = job->y + image * p->n * p->out_height * p->out_width,
    };
}

static void multiply_parts(int64_t begin, int64_t end, void *context)
{
    const window_job *job = context;
    const int64_t n_strips = job->batch * job->conv->n_strips;

    for (int64_t part = begin; part < end; part++) {
        const int64_t i = part / job->panel_parts, j = part % job->panel_parts;
        const int64_t last_panel = job->conv->n_panels * (j + 1) / job->panel_parts;
        const int64_t last_strip = n_strips * (i + 1) / job->strip_parts;

        for (int64_t n = job->conv->n_panels * j / job->panel_parts; n < last_panel;
             n++)
            for (int64_t s = n_strips * i / job->strip_parts; s < last_strip; s++) {
                const ptac_strip strip = strip_of(job, s);

                ptac_multiply_strip(job->conv, &strip, n);
            }
    }
}

/* Panels where they come out even and strips are few, else strips. */
static void share_out(window_job *job)
{
    const int64_t n_strips = job->batch * job->conv->n_strips;
    const int64_t n = job->conv->call->n_threads;

    job->strip_parts = job->panel_parts = 1;
    if (n <= 1 || job->batch * ptac_conv_work(job->conv->p) < 2 * PTAC_INT8_GRAIN)
        return;
    if (job->conv->n_panels % n == 0 && n_strips < 16 * n)
        job->panel_parts = n;
    else
        job->strip_parts = ptac_least(n_strips, n);
}

ptac_status ptac_convolve_windows(ptac_conv_job *conv)
{
    const ptac_int8_conv2d *p = conv->p;
    const int64_t bands = conv->call->n_threads;
    window_job job = {.conv = conv};
    int64_t most;
    char *scratch;

    lay_out(conv, &job);
    most = ptac_least(bands * (1 + MOST_BYTES / job.image_bytes), p->batch);
    scratch = ptac_conv_scratch(conv, most * job.image_bytes +
                                          most * bands * (int64_t)sizeof(ptac_range) +
                                          most * (int64_t)sizeof(ptac_row_scale));
    if (!scratch)
        return PTAC_NO_MEMORY;
    job.q = (uint8_t *)scratch;
    job.ranges = (ptac_range *)(scratch + most * job.image_bytes);
    job.scales = (ptac_row_scale *)(job.ranges + most * bands);
    for (int64_t first = 0; first < p->batch; first += most) {
        job.batch = ptac_least(p->batch - first, most);
        job.x = conv->x + first * job.image_floats;
        job.y = conv->y + first * p->n * p->out_height * p->out_width;
        quantize(&job);
        share_out(&job);
        ptac_parallel_for(0, job.strip_parts * job.panel_parts, 1, multiply_parts,
                          &job);
    }
    ptac_conv_give_scratch(conv);
    return PTAC_OK;
}
