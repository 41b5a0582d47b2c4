/*
 * operators.c - _foreach_clamp_min_, _foreach_clamp_max_ and _foreach_lerp_ by a
 * number, and _amp_foreach_non_finite_check_and_unscale_, which GradScaler calls.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/foreach/foreach.h"
#include "bind/torch/overrides/override.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct arguments {
    at_tensor_span selves, others; /* others: as many, or none */
    const at_scalar *number;
    at_tensor found, factor; /* of unscale, which tells autograd of no write */
    bool is_lower;
} arguments;

static at_tensor tensor_at(at_tensor_span span, size_t i)
{
    return (at_tensor)(uintptr_t)&span.data[i];
}

/* Copies that a shadow check has stock write to, owned. */
typedef struct copies {
    at_tensor *tensors;
    void **words;
    size_t n;
} copies;

static void drop_copies(copies *c)
{
    for (size_t i = 0; i < c->n; i++)
        at_drop_tensor(&c->tensors[i]);
    free(c->tensors);
    free(c->words);
}

#define COPIES __attribute__((cleanup(drop_copies))) copies

static bool copy_all(const arguments *a, copies *c)
{
    c->tensors = calloc(a->selves.size, sizeof *c->tensors);
    c->words = calloc(a->selves.size, sizeof *c->words);
    if (!c->tensors || !c->words || !T.aoti_torch_copy_)
        return false;
    for (; c->n < a->selves.size; c->n++) {
        at_tensor self = tensor_at(a->selves, c->n), *copy = &c->tensors[c->n];
        ptac_view view;

        ptac_view_of(self, &view);
        if (view.n_dims > PTAC_MAX_DIMS ||
            ptac_new(view.dtype, view.n_dims, view.sizes, view.strides, copy, NULL) ||
            T.aoti_torch_copy_(*copy, self, 0)) {
            at_drop_tensor(copy);
            return false;
        }
        c->words[c->n] = *(void **)*copy;
    }
    return true;
}

typedef void (*stock_fn)(const arguments *a);

static void run_stock(const arguments *a, stock_fn stock)
{
    PTAC_MUTED;

    stock(a);
}

/* Have each that differs become stock's. */
static void settle(const ptac_kernel *row, const arguments *a, const copies *c)
{
    for (size_t i = 0; i < c->n; i++) {
        at_tensor self = tensor_at(a->selves, i);
        ptac_view ours, stock;

        ptac_view_of(self, &ours);
        ptac_view_of(c->tensors[i], &stock);
        if (!ptac_shadow_agrees(row, &ours, &stock, 1, 0, 0))
            at_must(T.aoti_torch_copy_(self, c->tensors[i], 0),
                    "could not copy stock's result");
    }
}

static ptac_reason gather(ptac_tensors *l, const arguments *a)
{
    ptac_reason why = PTAC_TAKE;

    if (a->others.data && a->others.size != a->selves.size)
        return PTAC_SHAPE;
    for (size_t i = 0; !why && i < a->selves.size; i++)
        why = ptac_tensors_add(l, tensor_at(a->selves, i),
                               a->others.data ? tensor_at(a->others, i) : NULL);
    return why ? why : ptac_tensors_ready(l);
}

/* A number that torch converts without complaint. */
static ptac_reason read_number(ptac_tensors *l, const arguments *a)
{
    return ptac_scalar_read(a->number, &l->params.number) &&
                   fabs(l->params.number) <= FLT_MAX
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

/* A float that a tensor on the CPU holds, or NULL. */
static float *float_in(at_tensor tensor)
{
    ptac_view view;

    ptac_view_of(tensor, &view);
    return view.dtype == PTAC_F32 && view.n_elements == 1 ? view.data : NULL;
}

static ptac_reason read_scale(ptac_tensors *l, const arguments *a)
{
    const float *factor = float_in(a->factor);

    if (!factor || !float_in(a->found))
        return PTAC_ARGUMENT;
    l->params.number = *factor;
    return PTAC_TAKE;
}

/* Where false, stock has to do it; the reason has been counted. */
static bool serve(ptac_op op, const arguments *a, stock_fn stock)
{
    int found = 0;
    PTAC_TENSORS l = {.call.op = op,
                      .params = {.is_lower = a->is_lower, .found = &found}};
    COPIES c = {NULL, NULL, 0};
    ptac_reason why = a->found ? read_scale(&l, a) : read_number(&l, a);
    const ptac_kernel *row;

    if (!why)
        why = gather(&l, a);
    if (why) {
        ptac_refuse(op, why);
        return false;
    }
    row = ptac_admit(&l.call);
    if (!row)
        return false;
    if (ptac_shadow_due(op)) {
        arguments copied = *a;

        if (copy_all(a, &c)) {
            copied.selves.data = c.words;
            run_stock(&copied, stock);
        } else {
            drop_copies(&c);
            c = (copies){NULL, NULL, 0};
        }
    }
    for (size_t i = 0; !a->found && i < a->selves.size; i++)
        T.bump_version(tensor_at(a->selves, i)); /* or torch's error */
    if (!ptac_run(row, &l.call))
        return false;
    if (found)
        *float_in(a->found) = 1;
    settle(row, a, &c);
    return true;
}

/* clamp */

static void stock_clamp_min(const arguments *a)
{
    T.foreach_clamp_min_(a->selves, a->number);
}

static void stock_clamp_max(const arguments *a)
{
    T.foreach_clamp_max_(a->selves, a->number);
}

static void typed_clamp_min(void *functor, uint64_t keys, at_tensor_span selves,
                            const at_scalar *limit)
{
    PTAC_IN_FLIGHT;
    const arguments a = {.selves = selves, .number = limit, .is_lower = true};

    (void)functor;
    (void)keys;
    if (ptac_is_off(PTAC_OP_FOREACH_CLAMP) ||
        !serve(PTAC_OP_FOREACH_CLAMP, &a, stock_clamp_min))
        stock_clamp_min(&a);
}

static void typed_clamp_max(void *functor, uint64_t keys, at_tensor_span selves,
                            const at_scalar *limit)
{
    PTAC_IN_FLIGHT;
    const arguments a = {.selves = selves, .number = limit};

    (void)functor;
    (void)keys;
    if (ptac_is_off(PTAC_OP_FOREACH_CLAMP) ||
        !serve(PTAC_OP_FOREACH_CLAMP, &a, stock_clamp_max))
        stock_clamp_max(&a);
}

/* lerp */

static void stock_lerp(const arguments *a)
{
    T.foreach_lerp_(a->selves, a->others, a->number);
}

static void typed_lerp(void *functor, uint64_t keys, at_tensor_span selves,
                       at_tensor_span others, const at_scalar *weight)
{
    PTAC_IN_FLIGHT;
    const arguments a = {.selves = selves, .others = others, .number = weight};

    (void)functor;
    (void)keys;
    if (ptac_is_off(PTAC_OP_FOREACH_LERP) ||
        !serve(PTAC_OP_FOREACH_LERP, &a, stock_lerp))
        stock_lerp(&a);
}

/* unscale */

static void stock_unscale(const arguments *a)
{
    T.cpu_unscale_grads_(a->selves, a->found, a->factor);
}

static void typed_unscale(void *functor, uint64_t keys, at_tensor_span selves,
                          at_tensor found, at_tensor factor)
{
    PTAC_IN_FLIGHT;
    const arguments a = {.selves = selves, .found = found, .factor = factor};

    (void)functor;
    (void)keys;
    if (ptac_is_off(PTAC_OP_UNSCALE_GRADS) ||
        !serve(PTAC_OP_UNSCALE_GRADS, &a, stock_unscale))
        stock_unscale(&a);
}

#define FOREACH_DIRECT(in_c, of_name, of_overload, of_op, torchs, function)            \
    static ptac_direct direct_##in_c = {                                               \
        .name = of_name,                                                               \
        .overload = of_overload,                                                       \
        .op = PTAC_OP_##of_op,                                                         \
        .symbol = &T.torchs,                                                           \
        .needs = &T.bump_version,                                                      \
        .typed = (const void *)(uintptr_t)function,                                    \
    };                                                                                 \
    PTAC_DIRECT(direct_##in_c)

FOREACH_DIRECT(clamp_min, "_foreach_clamp_min_", "Scalar", FOREACH_CLAMP,
               foreach_clamp_min_, typed_clamp_min)
FOREACH_DIRECT(clamp_max, "_foreach_clamp_max_", "Scalar", FOREACH_CLAMP,
               foreach_clamp_max_, typed_clamp_max)
FOREACH_DIRECT(lerp, "_foreach_lerp_", "Scalar", FOREACH_LERP, foreach_lerp_,
               typed_lerp)
FOREACH_DIRECT(unscale, "_amp_foreach_non_finite_check_and_unscale_", "", UNSCALE_GRADS,
               cpu_unscale_grads_, typed_unscale)
#endif
