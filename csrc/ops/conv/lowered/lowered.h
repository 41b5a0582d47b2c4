/*
 * lowered.h - convolutions of few places as products of the weights, read as they lie,
 * and of a matrix of columns.
 *
 * A column is what a place meets of its image, [channel, tap]; K. Chellapilla, S. Puri
 * and P. Simard, High Performance Convolutional Neural Networks for Document
 * Processing, 2006. Of a kernel of 1x1 the image is that matrix. Where places are few
 * and weights many, each weight is read once, which libraries first put into an order
 * of theirs. The order of terms in a sum depends neither on threads nor on other
 * images.
 */
#ifndef PTAC_OPS_CONV_LOWERED_LOWERED_H
#define PTAC_OPS_CONV_LOWERED_LOWERED_H

#include "ops/conv/conv2d.h"

enum {
    PTAC_LOWERED_AXES = 3,
    PTAC_LOWERED_ODD = 4,
    PTAC_LOWERED_TERMS = 192, /* at once, of which the first cache holds a panel */
};

/* What a place of one axis meets: element place * stride - pad + tap * dilation. */
typedef struct ptac_lowered_axis {
    int n, n_places, n_taps, stride, pad, dilation;
} ptac_lowered_axis;

/* A group of an image, or of images whose places lie side by side. */
typedef struct ptac_lowered {
    ptac_lowered_axis along[PTAC_LOWERED_AXES]; /* depth, rows, columns */
    int64_t n_images, n_places;                 /* of all of them */
    int64_t n_taps, n_channels;
    const float
        *image; /* [channels, d, h, w], or in channels_last [d, h, w, channels] */
    int64_t next_image; /* from each to the next */
    int64_t pixel;      /* likewise in channels_last */
    float *columns;     /* terms by places: [channels, taps], or [taps, channels] */
    int most_odd;       /* places that are computed alone */
    int64_t n_rows, n_terms;
    const float *weight;        /* [rows, terms] */
    const float *scale, *shift; /* of rows, or NULL */
    float least, most;
    float *y; /* [rows, places] */
} ptac_lowered;

/* For each level of instructions. */
typedef struct ptac_lowered_way {
    int n_lanes, n_panel; /* places of a vector, of a panel */
    /* Channels [begin, end) into columns. */
    void (*lower)(int64_t begin, int64_t end, void *lowered);
    void (*lower_last)(int64_t begin, int64_t end, void *lowered); /* channels_last */
    void (*multiply)(const ptac_lowered *lowered);
    /* Rows [n_rows, n_places] of one image to [n_places, n_rows], to_row apart. */
    void (*turn)(const ptac_lowered *lowered, const float *rows, float *to,
                 int64_t to_row);
} ptac_lowered_way;

ptac_reason ptac_lowered_accepts(const ptac_call *call);
ptac_status ptac_lowered_run(const ptac_call *call, const ptac_lowered_way *way);

#endif
