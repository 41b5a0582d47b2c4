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
#include "ops/product/panels.h"

enum {
    PTAC_LOWERED_AXES = 3,
};

/* What a place of one axis meets: element place * stride - pad + tap * dilation. */
typedef struct ptac_lowered_axis {
    int n, n_places, n_taps, stride, pad, dilation;
} ptac_lowered_axis;

/* A group of an image. */
typedef struct ptac_lowered {
    ptac_lowered_axis along[PTAC_LOWERED_AXES]; /* depth, rows, columns */
    int64_t n_taps, n_channels;
    const float *image; /* [channels, d, h, w]; [d, h, w, channels] in channels_last */
    int64_t pixel;      /* from each to the next in channels_last */
    float *columns;     /* terms by places: [channels, taps], or [taps, channels] */
    ptac_panels product;
} ptac_lowered;

/* For each level of instructions. */
typedef struct ptac_lowered_way {
    const ptac_panels_way *product;
    /* Channels [begin, end) into columns. */
    void (*lower)(int64_t begin, int64_t end, void *lowered);
    void (*lower_last)(int64_t begin, int64_t end, void *lowered); /* channels_last */
} ptac_lowered_way;

ptac_reason ptac_lowered_accepts(const ptac_call *call);
/*
 * One image, on CPUs other than AMD's not a large one, or several that stock does one
 * by one, to many channels; or any images of one place.
 */
bool ptac_lowered_pays(const ptac_call *call);
/*
 * Of several images a row of its own, so that tables say where they pay which were
 * measured with it: of small ones, to some channels.
 */
bool ptac_lowered_batch_pays(const ptac_call *call);
ptac_status ptac_lowered_run(const ptac_call *call, const ptac_lowered_way *way);

#endif
