/*
 * gen_foreach.c - random lists of a few tensors of odd sizes.
 */
#include "checkrows.h"

#include "ops/foreach/foreach.h"

#include <math.h>
#include <stdio.h>

enum {
    MAX_ITEMS = 4,
};

/* What lies in test_call.params: the row sees the list, place() the rest. */
typedef struct random_list {
    ptac_foreach list;
    ptac_foreach_item items[MAX_ITEMS];
    int selves[MAX_ITEMS], others[MAX_ITEMS], norms, found; /* buffers; or -1 */
} random_list;

_Static_assert(sizeof(random_list) <= PARAMS_BYTES, "no room for the params");

/* Around one, with now and then what is rare. */
static int add_memory(rng *r, test_call *c, buffer_use use, ptac_dtype dtype, int64_t n)
{
    static const double rare[] = {0, -0.0, 1e-40, 1e30, INFINITY, -INFINITY, NAN};
    const int chance = rng_chance(r, 50) ? 2 : 0;
    void *content = test_memory(c, use, dtype, n);

    for (int64_t i = 0; i < n; i++) {
        const double value =
            rng_chance(r, chance)
                ? rare[rng_below(r, (int64_t)(sizeof rare / sizeof *rare))]
                : (double)rng_between(r, -2000000, 2000000) * 1e-6;

        if (dtype == PTAC_F32)
            ((float *)content)[i] = (float)value;
        else
            ((double *)content)[i] = value;
    }
    return c->n_buffers - 1;
}

static void make_list(rng *r, test_call *c, ptac_op op, ptac_dtype dtype,
                      bool has_other)
{
    random_list *l = (random_list *)c->params;
    const bool is_read = l->list.way == PTAC_FOREACH_NORM;

    c->call.op = op;
    c->call.n_inputs = 1;
    c->call.inputs[0].dtype = dtype; /* stands for all, and is no tensor */
    l->list.n_items = rng_between(r, 1, MAX_ITEMS);
    l->norms = l->found = -1;
    for (int64_t i = 0; i < l->list.n_items; i++) {
        const int64_t n =
            rng_chance(r, 8) ? rng_between(r, 70000, 90000) : rng_between(r, 0, 70);

        l->items[i].begin = c->call.inputs[0].n_elements;
        l->items[i].n = n;
        l->selves[i] = add_memory(r, c, is_read ? READS : UPDATES, dtype, n);
        l->others[i] = has_other ? add_memory(r, c, READS, dtype, n) : -1;
        c->call.inputs[0].n_elements += n;
    }
    snprintf(c->note, sizeof c->note,
             "%s, %d tensors, %lld elements, number %g, way %d", ptac_dtype_name(dtype),
             (int)l->list.n_items, (long long)c->call.inputs[0].n_elements,
             l->list.number, (int)l->list.way);
}

static void place(test_call *c)
{
    random_list *l = (random_list *)c->params;

    l->list.items = l->items;
    for (int64_t i = 0; i < l->list.n_items; i++) {
        l->items[i].self = c->buffers[l->selves[i]].data;
        l->items[i].other = l->others[i] < 0 ? NULL : c->buffers[l->others[i]].data;
    }
    l->list.norms = l->norms < 0 ? NULL : c->buffers[l->norms].data;
    l->list.found = l->found < 0 ? NULL : c->buffers[l->found].data;
}

static ptac_dtype random_dtype(rng *r)
{
    return rng_chance(r, 70) ? PTAC_F32 : PTAC_F64;
}

static void make_clip(rng *r, test_call *c)
{
    static const double factors[] = {1, 0.999, 0.1, 1e-30, NAN};
    random_list *l = (random_list *)c->params;
    const bool is_norm = rng_chance(r, 50);

    l->list.way = is_norm ? PTAC_FOREACH_NORM : PTAC_FOREACH_MAP;
    l->list.number = factors[rng_below(r, sizeof factors / sizeof *factors)];
    make_list(r, c, PTAC_OP_CLIP_GRAD_NORM, is_norm ? PTAC_F32 : random_dtype(r),
              false);
    if (is_norm) {
        test_memory(c, WRITES, PTAC_F32, l->list.n_items);
        l->norms = c->n_buffers - 1;
    }
}

static void make_clamp(rng *r, test_call *c)
{
    static const double limits[] = {0, -0.0, 0.5, -1, 1e-40};
    random_list *l = (random_list *)c->params;

    l->list.number = limits[rng_below(r, sizeof limits / sizeof *limits)];
    l->list.is_lower = rng_chance(r, 50);
    make_list(r, c, PTAC_OP_FOREACH_CLAMP, random_dtype(r), false);
}

static void make_lerp(rng *r, test_call *c)
{
    static const double weights[] = {0, 0.001, 0.3, 0.5, 0.7, 1, -0.4, -2, 5};

    ((random_list *)c->params)->list.number =
        weights[rng_below(r, sizeof weights / sizeof *weights)];
    make_list(r, c, PTAC_OP_FOREACH_LERP, random_dtype(r), true);
}

static void make_unscale(rng *r, test_call *c)
{
    random_list *l = (random_list *)c->params;

    l->list.number = rng_chance(r, 30) ? 1 : 1.0 / 65536;
    make_list(r, c, PTAC_OP_UNSCALE_GRADS, random_dtype(r), false);
    *(int *)test_memory(c, UPDATES, PTAC_F32, 1) = 0; /* an int, compared by its bits */
    l->found = c->n_buffers - 1;
}

GENERATOR(clip, .op = PTAC_OP_CLIP_GRAD_NORM, .make = make_clip, .place = place)

GENERATOR(clamp, .op = PTAC_OP_FOREACH_CLAMP, .make = make_clamp, .place = place)

GENERATOR(lerp, .op = PTAC_OP_FOREACH_LERP, .make = make_lerp, .place = place)

GENERATOR(unscale, .op = PTAC_OP_UNSCALE_GRADS, .make = make_unscale, .place = place)
