/*
 * packed.h - convolutions by kernels of 1x1 as products of matrices that are laid out
 * for the caches, of all images together.
 *
 * Forward and for the gradient of the data, places are columns: of images that follow
 * one another, so that small ones fill vectors too. Weights are laid out once, or kept
 * from an earlier call. For the gradient of the weight, places of all images are terms.
 * How a product runs see product_packed_tpl.h, whose tiles and panels these are.
 *
 * The order of terms in a sum depends neither on threads nor, but for the gradient of
 * the weight, on other images.
 */
#ifndef PTAC_OPS_CONV_PACKED_PACKED_H
#define PTAC_OPS_CONV_PACKED_PACKED_H

#include "ops/conv/conv2d.h"
#include "ops/product/product.h"

/* The product of an image: result channels, summed channels or places, the rest. */
typedef struct ptac_packed_conv {
    ptac_product image;
    int64_t n_images, a_image, b_image, y_image; /* from image to image */
    const float *scale, *shift;                  /* of rows, or NULL */
    float least, most;
} ptac_packed_conv;

ptac_packed_conv ptac_packed_conv_of(const ptac_call *call);

ptac_reason ptac_packed_conv_accepts(const ptac_call *call);
/* Not of few channels or few places, of which what is laid out is most of the work. */
bool ptac_packed_conv_pays(const ptac_call *call);
/* Bytes of all weights, laid out. */
size_t ptac_packed_conv_kept_bytes(const ptac_call *call);

#endif
