/*
 * conv_job.h - what the two ways of int8_conv2d share: windows, and single points.
 */
#ifndef PTAC_OPS_INT8_CONV_CONV_JOB_H
#define PTAC_OPS_INT8_CONV_CONV_JOB_H

#include "ops/int8/conv/int8_conv2d.h"

enum {
    PTAC_STRIP = 48, /* pixels of output that are made before they are stored */
};

typedef struct ptac_conv_job {
    const ptac_int8_isa *isa;
    const ptac_call *call;
    const ptac_int8_conv2d *p;
    ptac_packed_shape shape;
    const float *x;
    float *y;
    const int8_t *packed;
    const float *scales, *bias; /* with the normalization in them, in scratch */
    const int64_t *segments;    /* of a tile, as n_segments and n_quads are */
    int64_t n_segments, n_quads;
    int64_t group_bytes; /* of a quantized pixel, those of one group */
    int64_t n_panels;    /* of all groups */
    int64_t n_strips;    /* of one image */
} ptac_conv_job;

/* Quantized activations of a strip: where its windows begin. */
typedef struct ptac_strip {
    const uint8_t *origin; /* of the first window */
    int64_t from;          /* window of the first pixel, counted from there */
    int64_t first;         /* pixel of y's image */
    int n_pixels;
    int64_t width;          /* pixels of a line, */
    int64_t step_x, step_y; /* bytes from one to the next, and from line to line */
    ptac_row_scale by;
    float *y; /* of the image */
} ptac_strip;

/* The first pixel of strip i of an image, and with i + 1 the end of it. */
int64_t ptac_strip_begin(const ptac_conv_job *job, int64_t i);

/* One strip by one panel. */
void ptac_multiply_strip(const ptac_conv_job *job, const ptac_strip *strip,
                         int64_t panel);

/* Multiply-adds of one image. */
int64_t ptac_conv_work(const ptac_int8_conv2d *p);

/*
 * The call's only scratch: scales and bias, which are filled in, and behind them
 * n_bytes at a cache line. NULL: no memory.
 */
void *ptac_conv_scratch(ptac_conv_job *job, int64_t n_bytes);
void ptac_conv_give_scratch(const ptac_conv_job *job);

/* PTAC_OK or PTAC_NO_MEMORY. */
ptac_status ptac_convolve_windows(ptac_conv_job *job);
ptac_status ptac_convolve_points(ptac_conv_job *job);

#endif
