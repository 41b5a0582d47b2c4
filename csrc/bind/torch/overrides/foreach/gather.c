/*
 * gather.c - gathering lists of tensors, of which none shares memory with another.
 */
#include "bind/torch/overrides/foreach/foreach.h"

#include <stdlib.h>

void ptac_tensors_drop(ptac_tensors *l)
{
    free(l->items);
}

static bool make_room(ptac_tensors *l)
{
    const int64_t more = l->capacity ? 2 * l->capacity : 64;
    ptac_foreach_item *items;

    if (l->params.n_items < l->capacity)
        return true;
    items = realloc(l->items, (size_t)more * sizeof *items);
    if (!items)
        return false;
    l->items = items;
    l->capacity = more;
    return true;
}

static int64_t bytes_of(const ptac_tensors *l, int64_t n)
{
    return n * (l->call.inputs[0].dtype == PTAC_F64 ? 8 : 4);
}

/* Where two views of as many bytes lie over each other, but are not the same. */
static bool are_shifted(const ptac_tensors *l, const void *a, const void *b, int64_t n)
{
    const char *x = a, *y = b;

    return x != y && x < y + bytes_of(l, n) && y < x + bytes_of(l, n);
}

ptac_reason ptac_tensors_add(ptac_tensors *l, at_tensor self, at_tensor other)
{
    ptac_view *all = &l->call.inputs[0];
    ptac_view view, beside;

    ptac_view_of(self, &view);
    if (l->params.n_items == 0)
        all->dtype = view.dtype;
    if (view.dtype != all->dtype || (view.dtype != PTAC_F32 && view.dtype != PTAC_F64))
        return PTAC_DTYPE;
    if (!ptac_view_is_dense(&view))
        return PTAC_LAYOUT;
    if (view.n_elements && !view.data)
        return PTAC_ARGUMENT;
    if (other) {
        ptac_view_of(other, &beside);
        if (beside.dtype != all->dtype)
            return PTAC_DTYPE;
        if (!ptac_view_is_alike(&view, &beside))
            return PTAC_LAYOUT;
        if (view.n_elements && !beside.data)
            return PTAC_ARGUMENT;
        if (are_shifted(l, view.data, beside.data, view.n_elements))
            return PTAC_OVERLAP;
    }
    if (!make_room(l))
        return PTAC_MEMORY;
    l->items[l->params.n_items++] = (ptac_foreach_item){
        .begin = all->n_elements,
        .n = view.n_elements,
        .self = view.data,
        .other = other ? beside.data : NULL,
    };
    all->n_elements += view.n_elements;
    return PTAC_TAKE;
}

/* What is written, or only read. */
typedef struct stretch {
    const char *begin, *end;
    bool is_written;
} stretch;

static int by_address(const void *left, const void *right)
{
    const stretch *a = left, *b = right;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

static int64_t list_stretches(const ptac_tensors *l, stretch *found)
{
    const bool writes = l->params.way == PTAC_FOREACH_MAP;
    int64_t n = 0;

    for (int64_t i = 0; i < l->params.n_items; i++) {
        const ptac_foreach_item *item = &l->items[i];
        const char *self = item->self, *other = item->other;

        if (item->n == 0)
            continue;
        found[n++] = (stretch){self, self + bytes_of(l, item->n), writes};
        if (other && other != self)
            found[n++] = (stretch){other, other + bytes_of(l, item->n), false};
    }
    return n;
}

static ptac_reason overlap(const ptac_tensors *l)
{
    stretch *found = malloc((size_t)(2 * l->params.n_items + 1) * sizeof *found);
    ptac_reason why = PTAC_TAKE;
    const stretch *last = found; /* that which reaches farthest */
    int64_t n;

    if (!found)
        return PTAC_MEMORY;
    n = list_stretches(l, found);
    qsort(found, (size_t)n, sizeof *found, by_address);
    for (int64_t i = 1; i < n; i++) {
        if (found[i].begin < last->end && (found[i].is_written || last->is_written))
            why = PTAC_OVERLAP;
        if (found[i].end > last->end)
            last = &found[i];
    }
    free(found);
    return why;
}

ptac_reason ptac_tensors_ready(ptac_tensors *l)
{
    const bool is_shared = l->call.inputs[0].n_elements > PTAC_FOREACH_GRAIN &&
                           ptac_the_host.n_threads() > 1;

    if (l->params.n_items == 0)
        return PTAC_EMPTY;
    l->params.items = l->items;
    l->call.n_inputs = 1;
    l->call.params = &l->params;
    return is_shared ? overlap(l) : PTAC_TAKE;
}
