/*
 * gen_batch_norm_act.c - random calls of batch normalization with an activation behind
 * it, by running statistics and by the batch, and of the gradient by the batch.
 */
#include "gen_batch_norm.h"

static void pick_act(rng *r, ptac_channel_norm *p)
{
    p->act = (ptac_act)RNG_PICK(r, PTAC_ACT_NONE, PTAC_ACT_RELU, PTAC_ACT_RELU6,
                                PTAC_ACT_SILU, PTAC_ACT_HARDSWISH);
}

static void make_running_outputs(rng *r, test_call *c)
{
    if (rng_chance(r, 50))
        test_output_in_place(c, PTAC_BATCH_NORM_X);
    else
        channel_images_output(c);
}

static void make_batch_outputs(rng *r, test_call *c, bool has_running)
{
    const bool in_place = rng_chance(r, 50);

    channel_images_output(c);
    channel_output(c, true);
    channel_output(c, true);
    for (int i = 0; i < 2; i++)
        if (has_running && in_place)
            test_output_in_place(c, PTAC_BATCH_NORM_RUNNING_MEAN + i);
        else
            channel_output(c, has_running);
    channel_output(c, true);
    channel_output(c, true);
}

static void make(rng *r, test_call *c)
{
    ptac_channel_norm *p = channel_norm_of(c);
    bool has_running;

    c->call.op = PTAC_OP_BATCH_NORM_ACT;
    random_channel_norm(r, p);
    pick_act(r, p);
    has_running = !p->by_batch || rng_chance(r, 70);
    fill_channel_images(r, p, channel_images(c));
    channel_numbers(r, c, rng_chance(r, 70));
    channel_numbers(r, c, rng_chance(r, 70));
    channel_numbers(r, c, has_running);
    channel_variances(r, c, has_running);
    if (p->by_batch)
        make_batch_outputs(r, c, has_running);
    else
        make_running_outputs(r, c);
    note_channel_norm(c);
}

static void make_backward(rng *r, test_call *c)
{
    ptac_channel_norm *p = channel_norm_of(c);

    c->call.op = PTAC_OP_BATCH_NORM_ACT_BACKWARD;
    random_channel_norm(r, p);
    p->by_batch = true;
    pick_act(r, p);
    batch_norm_gradient(r, c);
    channel_numbers(r, c, true);
    channel_numbers(r, c, true);
    batch_norm_gradient_outputs(r, c);
}

/*
 * As those of batch_norm, and the slope of an activation is 1.1 at most. Backward all
 * rows form z by the same two roundings, so that none is on another side of an edge.
 */
GENERATOR(batch_norm_act, .op = PTAC_OP_BATCH_NORM_ACT, .make = make,
          .scale = scale_batch_norm, .roundings = 24)
GENERATOR(batch_norm_act_backward, .op = PTAC_OP_BATCH_NORM_ACT_BACKWARD,
          .make = make_backward, .scale = scale_batch_norm_backward, .roundings = 64)
