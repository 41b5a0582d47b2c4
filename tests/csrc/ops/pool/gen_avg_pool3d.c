/*
 * gen_avg_pool3d.c - random calls of 3-d average pooling, plain and adaptive, and of
 * their gradients. Sums of several NaNs may have any of them.
 */
#include "gen_pool.h"
#include "gen_volume.h"

#include "ops/pool/volume/avg_pool3d.h"

static void random_params(rng *r, random_volume *x, ptac_avg_pool3d *p,
                          bool is_adaptive)
{
    if (is_adaptive) {
        random_adaptive_volume_pool(r, x, &p->slab.image, &p->depth);
        ptac_avg_pool3d_adapt(p);
    } else {
        random_volume_pool(r, x, &p->slab.window, &p->slab.image, &p->depth, false);
        p->slab.count_include_pad = rng_chance(r, 50);
        p->slab.is_regular = true;
        if (rng_chance(r, 20))
            p->slab.divisor = RNG_PICK(r, 1, 3, 7, -2, 65537, INT64_C(1) << 40);
    }
    /* As bind does: results are contiguous, and so are the volumes that rows see. */
    p->slab.image.channels_last = x->channels_last = false;
    if (rng_chance(r, 98)) /* no row takes bfloat16 */
        x->dtype = RNG_PICK(r, PTAC_F32, PTAC_F64);
}

static void make(rng *r, test_call *c, ptac_op op, bool is_adaptive, bool is_backward)
{
    ptac_avg_pool3d *p = (ptac_avg_pool3d *)c->params;
    random_volume x;
    void *values;

    random_params(r, &x, p, is_adaptive);
    c->call.op = op;
    values =
        test_input(c, x.dtype, x.n_dims, is_backward ? x.out_sizes : x.sizes, false);
    fill_reals(r, x.dtype, values, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, is_backward ? x.sizes : x.out_sizes, false);
    note_volume_pool(c, &x, &p->slab.window, &p->slab.image, &p->depth);
}

#define DEFINE_GENERATOR(g, operator, is_adaptive, is_backward)                        \
    static void make_##g(rng *r, test_call *c)                                         \
    {                                                                                  \
        make(r, c, operator, is_adaptive, is_backward);                                \
    }                                                                                  \
    GENERATOR(g, .op = operator, .make = make_##g)

DEFINE_GENERATOR(plain, PTAC_OP_AVG_POOL3D, false, false)
DEFINE_GENERATOR(plain_gradient, PTAC_OP_AVG_POOL3D_BACKWARD, false, true)
DEFINE_GENERATOR(adaptive, PTAC_OP_ADAPTIVE_AVG_POOL3D, true, false)
DEFINE_GENERATOR(adaptive_gradient, PTAC_OP_ADAPTIVE_AVG_POOL3D_BACKWARD, true, true)
