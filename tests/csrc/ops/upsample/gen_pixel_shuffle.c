/*
 * gen_pixel_shuffle.c - random calls of pixel shuffling, both ways.
 */
#include "checkrows.h"
#include "ops/upsample/pixel_shuffle.h"

#include <stdio.h>

static void make(rng *r, test_call *c, ptac_op op)
{
    ptac_pixel_shuffle *p = (ptac_pixel_shuffle *)c->params;
    const bool is_back = op == PTAC_OP_PIXEL_UNSHUFFLE;

    p->planes = rng_between(r, 1, 4);
    p->factor = rng_between(r, 1, 5);
    p->h = rng_length(r, 10);
    p->w = rng_length(r, 70);

    const int64_t channels[] = {p->planes * p->factor * p->factor, p->h, p->w};
    const int64_t pixels[] = {p->planes, p->h * p->factor, p->w * p->factor};

    c->call.op = op;
    fill_reals(r, PTAC_F32,
               test_input(c, PTAC_F32, 3, is_back ? pixels : channels, false),
               p->planes * p->factor * p->factor * p->h * p->w);
    test_output(c, PTAC_F32, 3, is_back ? channels : pixels, false);
    snprintf(c->note, sizeof c->note, "%lld planes of %lldx%lld, factor %lld",
             (long long)p->planes, (long long)p->h, (long long)p->w,
             (long long)p->factor);
}

static void make_shuffle(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_PIXEL_SHUFFLE);
}

static void make_unshuffle(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_PIXEL_UNSHUFFLE);
}

GENERATOR(shuffle, .op = PTAC_OP_PIXEL_SHUFFLE, .make = make_shuffle,
          .nan_bits = 1u << PTAC_F32)
GENERATOR(unshuffle, .op = PTAC_OP_PIXEL_UNSHUFFLE, .make = make_unshuffle,
          .nan_bits = 1u << PTAC_F32)
