/*
 * gen_batch_norm.h - images and numbers of channels of random calls of batch
 * normalization and its gradient, with or without an activation.
 *
 * u is the unit roundoff of float32.
 */
#ifndef PTAC_TESTS_GEN_BATCH_NORM_H
#define PTAC_TESTS_GEN_BATCH_NORM_H

#include "checkrows.h"
#include "ops/norm/batch_norm.h"

static inline ptac_channel_norm *channel_norm_of(test_call *c)
{
    return (ptac_channel_norm *)c->params;
}

static inline int64_t channel_norm_elements(const ptac_channel_norm *p)
{
    return p->n_images * p->n_channels * p->n_pixels;
}

/* NCHW and NHWC, small images and large ones, of one part or several. */
void random_channel_norm(rng *r, ptac_channel_norm *p);

/* Channels apart from zero by up to a hundred times what they spread; some special. */
void fill_channel_images(rng *r, const ptac_channel_norm *p, float *x);

/* Tensors of a call; one number a channel, or none and NULL. */
float *channel_images(test_call *c);
float *channel_numbers(rng *r, test_call *c, bool is_there);
void channel_variances(rng *r, test_call *c, bool is_there);
void channel_output(test_call *c, bool is_there);
void channel_images_output(test_call *c);

/* Inputs of a gradient, whose mean is near to what x is; its outputs, and a note. */
void batch_norm_gradient(rng *r, test_call *c);
void batch_norm_gradient_outputs(rng *r, test_call *c);

void note_channel_norm(test_call *c);

/*
 * Scales of outputs: results are made of x and its mean, times 1 / sqrt(variance + eps)
 * at most.
 */
void scale_batch_norm(test_call *c);
void scale_batch_norm_backward(test_call *c);

#endif
