/*
 * gen_pad.c - random calls of padding and of its gradients.
 */
#include "checkrows.h"
#include "ops/pad/pad.h"

#include <stdio.h>

/* Reflections reach no further than the other edge. */
static ptac_pad_axis random_axis(rng *r, ptac_op op, int64_t size)
{
    const bool is_constant = op == PTAC_OP_CONSTANT_PAD_ND;
    const bool reflects =
        op == PTAC_OP_REFLECTION_PAD || op == PTAC_OP_REFLECTION_PAD_BACKWARD;
    const int64_t most = reflects ? size - 1 : 20;
    const int64_t least = is_constant ? 1 - size : 0;
    int64_t front = 0, back = 0;

    if (rng_chance(r, 70)) {
        front = rng_between(r, least < -3 ? -3 : least, most < 5 ? most : 5);
        back = rng_between(r, least < -3 ? -3 : least, most);
    }
    if (size + front + back < 1)
        front = back = 0;
    return (ptac_pad_axis){size, size + front + back, front};
}

static void make(rng *r, test_call *c, ptac_op op)
{
    ptac_pad *p = (ptac_pad *)c->params;
    const bool is_back =
        op == PTAC_OP_REFLECTION_PAD_BACKWARD || op == PTAC_OP_REPLICATION_PAD_BACKWARD;

    c->call.op = op;
    p->planes = rng_between(r, 1, 4);
    p->value = (float)rng_between(r, -2, 2);
    p->axes[0] = random_axis(r, op, rng_chance(r, 60) ? 1 : rng_length(r, 5));
    p->axes[1] = random_axis(r, op, rng_length(r, 12));
    p->axes[2] = random_axis(r, op, rng_length(r, 90));

    const int64_t x[] = {p->planes, p->axes[0].size, p->axes[1].size, p->axes[2].size};
    const int64_t y[] = {p->planes, p->axes[0].padded, p->axes[1].padded,
                         p->axes[2].padded};
    const int64_t *in = is_back ? y : x;

    fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 4, in, false),
               in[0] * in[1] * in[2] * in[3]);
    test_output(c, PTAC_F32, 4, is_back ? x : y, false);
    snprintf(c->note, sizeof c->note,
             "%lld planes of %lld+%lld x %lld+%lld x %lld+%lld to %lld x %lld x %lld",
             (long long)x[0], (long long)x[1], (long long)p->axes[0].front,
             (long long)x[2], (long long)p->axes[1].front, (long long)x[3],
             (long long)p->axes[2].front, (long long)y[1], (long long)y[2],
             (long long)y[3]);
}

/* Where gradients add up, either NaN may come out. */
#define DEFINE_MAKE(name, OP, of_nan)                                                  \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make(r, c, PTAC_OP_##OP);                                                      \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##OP, .make = make_##name, .nan_bits = of_nan)

DEFINE_MAKE(constant, CONSTANT_PAD_ND, 1u << PTAC_F32)
DEFINE_MAKE(reflection, REFLECTION_PAD, 1u << PTAC_F32)
DEFINE_MAKE(replication, REPLICATION_PAD, 1u << PTAC_F32)
DEFINE_MAKE(reflection_backward, REFLECTION_PAD_BACKWARD, 0)
DEFINE_MAKE(replication_backward, REPLICATION_PAD_BACKWARD, 0)
