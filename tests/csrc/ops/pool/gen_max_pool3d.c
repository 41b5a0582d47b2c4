/*
 * gen_max_pool3d.c - random calls of 3-d max pooling and of its gradient.
 */
#include "gen_pool.h"
#include "gen_volume.h"

#include "ops/pool/volume/max_pool3d.h"

static void make_forward(rng *r, test_call *c)
{
    ptac_max_pool3d *p = (ptac_max_pool3d *)c->params;
    random_volume x;
    void *values;

    random_volume_pool(r, &x, &p->slab.window, &p->slab.image, &p->depth, true);
    if (rng_chance(r, 2)) /* no row takes these, whatever is in them */
        x.dtype = PTAC_I64;
    c->call.op = PTAC_OP_MAX_POOL3D;
    values = test_input(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    fill_reals(r, x.dtype, values, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    test_output(c, PTAC_I64, x.n_dims, x.out_sizes, x.channels_last);
    note_volume_pool(c, &x, &p->slab.window, &p->slab.image, &p->depth);
}

GENERATOR(forward, .op = PTAC_OP_MAX_POOL3D, .make = make_forward, .nan_bits = ~0u)

/* Indices anywhere in the plane, as rows take them; some that stock leaves out. */
static void make_backward(rng *r, test_call *c)
{
    ptac_max_pool3d *p = (ptac_max_pool3d *)c->params;
    random_volume x;
    void *grad;
    int64_t *indices, n_in;
    const bool is_wild = rng_chance(r, 15);

    random_volume_pool(r, &x, &p->slab.window, &p->slab.image, &p->depth, true);
    n_in = ptac_volume_positions(&p->slab.image, &p->depth);
    c->call.op = PTAC_OP_MAX_POOL3D_BACKWARD;
    grad = test_input(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    fill_reals(r, x.dtype, grad, c->call.inputs[0].n_elements);
    indices = test_input(c, PTAC_I64, x.n_dims, x.out_sizes, x.channels_last);
    for (int64_t i = 0; i < c->call.inputs[1].n_elements; i++)
        indices[i] = rng_chance(r, 2) ? -1 : rng_below(r, n_in);
    if (is_wild)
        indices[rng_below(r, c->call.inputs[1].n_elements)] =
            RNG_PICK(r, n_in, -2, INT64_MIN, INT64_MAX, (INT64_C(1) << 32) + 1);
    test_output(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    c->must_be_given_back = is_wild;
    note_volume_pool(c, &x, &p->slab.window, &p->slab.image, &p->depth);
}

GENERATOR(backward, .op = PTAC_OP_MAX_POOL3D_BACKWARD, .make = make_backward,
          .nan_bits = 1u << PTAC_BF16)
