/*
 * gen_images.c - what random convolutions share, whatever their params are.
 */
#include "gen_images.h"

#include <math.h>

bool spoil_images(rng *r, test_call *c, float *pixels)
{
    static const float others[] = {NAN, INFINITY, -INFINITY, 1e9F, -3e30F};

    if (!rng_chance(r, 30))
        return false;
    pixels[rng_below(r, c->call.inputs[0].n_elements)] = others[rng_below(r, 5)];
    return true;
}

static double largest_of(const ptac_view *view)
{
    double largest = 0;

    for (int64_t i = 0; i < view->n_elements; i++)
        if (isfinite(((const float *)view->data)[i]))
            largest = fmax(largest, fabs(((const float *)view->data)[i]));
    return largest;
}

void scale_sums(test_call *c, double n_products, double n_gradients)
{
    const ptac_view *inputs = c->call.inputs;
    const double factor = c->call.n_inputs > 3 ? largest_of(&inputs[3]) : 1;
    const double product = largest_of(&inputs[0]) * largest_of(&inputs[1]) * factor;

    c->buffers[c->output_buffers[0]].least_scale = product * sqrt(n_products);
    if (c->call.n_outputs > 1)
        c->buffers[c->output_buffers[1]].least_scale =
            largest_of(&inputs[1]) * sqrt(n_gradients);
}
