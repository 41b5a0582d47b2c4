/*
 * cat.c - aten::cat, to which stack() comes too.
 *
 * Everything calls it, mostly with long runs, which stock copies as fast as memory
 * allows: the first tensor that has such ends it.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/direct.h"
#include "bind/torch/overrides/override.h"

#include "ops/copy/cat.h"

enum {
    LONG_RUN = 1024, /* elements: no table serves such */
};

/* Runs of a tensor, its dimensions from dim on, and how far they are apart. */
static bool read_runs(const ptac_view *x, int dim, int64_t *width, int64_t *stride)
{
    int64_t expected;
    int i = x->n_dims - 1;

    *width = 1;
    for (; i >= dim; i--) {
        if (x->sizes[i] > 1 && x->strides[i] != *width)
            return false;
        *width *= x->sizes[i];
    }
    *stride = *width;
    while (i >= 0 && x->sizes[i] == 1)
        i--;
    if (i < 0)
        return true;
    *stride = expected = x->strides[i];
    for (; i >= 0; i--) {
        if (x->sizes[i] > 1 && x->strides[i] != expected)
            return false;
        expected *= x->sizes[i];
    }
    return *stride > 0;
}

static bool is_like(const ptac_view *x, const ptac_view *first, int dim)
{
    if (x->n_dims != first->n_dims)
        return false;
    for (int i = 0; i < x->n_dims; i++)
        if (i != dim && x->sizes[i] != first->sizes[i])
            return false;
    return true;
}

/* The i-th tensor, of which what the first one is like is known. */
static ptac_reason read_tensor(const at_list_ref *list, ptac_call *call, ptac_cat *p,
                               int dim, int i)
{
    const ptac_view *x = &call->inputs[i];

    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (!x->data)
        return PTAC_ARGUMENT;
    if (ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    if (!is_like(x, &call->inputs[0], dim))
        return PTAC_ARGUMENT;
    if (!read_runs(x, dim, &p->widths[i], &p->strides[i]))
        return PTAC_LAYOUT;
    if (ptac_has_names((at_tensor)&list->span.data[i]))
        return PTAC_ARGUMENT;
    p->width += p->widths[i];
    return PTAC_TAKE;
}

static ptac_reason read(const at_list_ref *list, int64_t dim, ptac_call *call,
                        ptac_cat *p, int64_t *sizes)
{
    const ptac_view *first = &call->inputs[0];
    const size_t n = list->span.size;

    if (list->tag != AT_LIST_SPAN || n < 2 || n > PTAC_MAX_INPUTS)
        return PTAC_ARGUMENT;
    p->width = 0;
    for (size_t i = 0; i < n; i++) {
        ptac_reason why;

        ptac_view_of((at_tensor)&list->span.data[i], &call->inputs[i]);
        if (i == 0) {
            if (first->n_dims < 1 || first->n_dims > PTAC_MAX_DIMS ||
                dim < -first->n_dims || dim >= first->n_dims)
                return PTAC_ARGUMENT;
            dim += dim < 0 ? first->n_dims : 0;
        }
        why = read_tensor(list, call, p, (int)dim, (int)i);
        if (why)
            return why;
        if (p->widths[i] >= LONG_RUN)
            return PTAC_NOT_FASTER;
    }
    p->rows = first->n_elements / p->widths[0];
    memcpy(sizes, first->sizes, (size_t)first->n_dims * sizeof *sizes);
    for (size_t i = 1; i < n; i++)
        sizes[dim] += call->inputs[i].sizes[dim];
    call->n_inputs = (int)n;
    return PTAC_TAKE;
}

typedef struct cat_args {
    const at_list_ref *list;
    int64_t dim;
} cat_args;

static void stock_cat(const void *context, at_tensor *out)
{
    const cat_args *args = context;

    out[0] = at_adopt(T.cpu_cat(args->list, args->dim).words[0]);
}

static bool serve(const cat_args *args, at_tensor *made)
{
    int64_t sizes[PTAC_MAX_DIMS];
    ptac_cat p;
    ptac_call call = {.op = PTAC_OP_CAT, .on = PTAC_ON_CPU, .params = &p};
    const ptac_kernel *row = NULL;
    ptac_reason why = read(args->list, args->dim, &call, &p, sizes);

    if (!why)
        row = ptac_probe(&call, &why);
    if (!why &&
        ptac_new(PTAC_F32, call.inputs[0].n_dims, sizes, NULL, made, &call.outputs[0]))
        why = PTAC_MEMORY;
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    call.n_outputs = 1;
    return ptac_run_checked(row, &call, 1, made, stock_cat, args);
}

static void *typed_cat(void **result, void *functor, uint64_t keys,
                       const at_list_ref *list, int64_t dim)
{
    PTAC_IN_FLIGHT;
    const cat_args args = {list, dim};
    AT_OWNED at_tensor made = NULL;

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_CAT) && serve(&args, &made))
        *result = at_release(&made);
    else
        *result = T.cpu_cat(list, dim).words[0];
    return result;
}

static ptac_direct direct_cat = {
    .name = "cat",
    .overload = "",
    .op = PTAC_OP_CAT,
    .symbol = &T.cpu_cat,
    .typed = (const void *)(uintptr_t)typed_cat,
};
PTAC_DIRECT(direct_cat)
#endif
