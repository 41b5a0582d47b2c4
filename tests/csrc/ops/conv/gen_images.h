/*
 * gen_images.h - what random convolutions share, whatever their params are.
 */
#ifndef PTAC_TESTS_GEN_IMAGES_H
#define PTAC_TESTS_GEN_IMAGES_H

#include "checkrows.h"

/*
 * Now and then make one pixel of the call's first input NaN or infinite, or one that
 * dwarfs all others. Whether one was.
 */
bool spoil_images(rng *r, test_call *c, float *pixels);

/*
 * What results are made of, sums of so many products of the two inputs' largest, times
 * the largest of a fourth; and gradients of the bias, of so many terms.
 */
void scale_sums(test_call *c, double n_products, double n_gradients);

#endif
