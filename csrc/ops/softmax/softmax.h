/*
 * softmax.h - what rows of the softmax family agree on.
 */
#ifndef PTAC_OPS_SOFTMAX_SOFTMAX_H
#define PTAC_OPS_SOFTMAX_SOFTMAX_H

/*
 * Rows up to this width are worked on in blocks, which is faster than one by one up to
 * about 90 elements with AVX2 and 130 with AVX-512. Calibration measures them apart.
 */
enum {
    PTAC_SHORT_ROW = 96,
};

#endif
