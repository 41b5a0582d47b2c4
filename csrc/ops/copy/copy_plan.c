/*
 * copy_plan.c - few and long loops for two arrangements of the same elements.
 */
#include "ops/copy/copy.h"

typedef struct loop {
    int64_t size, to, from; /* strides of elements at first, then of bytes */
} loop;

/* The loops that turn more than once, slowest in the output first. */
static ptac_reason collect(const ptac_view *to, const ptac_view *from, loop *loops,
                           int *n_loops)
{
    const int missing = to->n_dims - from->n_dims;
    int n = 0;

    if (missing < 0)
        return PTAC_ARGUMENT;
    for (int d = 0; d < to->n_dims; d++) {
        const int64_t of_from = d < missing ? 1 : from->sizes[d - missing];
        loop l = {to->sizes[d], to->strides[d], 0};
        int at = n;

        if (of_from != l.size && of_from != 1)
            return PTAC_ARGUMENT;
        if (l.size == 1)
            continue;
        if (n == PTAC_COPY_DIMS)
            return PTAC_SHAPE;
        if (of_from != 1)
            l.from = from->strides[d - missing];
        for (; at > 0 && (loops[at - 1].to < l.to ||
                          (loops[at - 1].to == l.to && loops[at - 1].from < l.from));
             at--)
            loops[at] = loops[at - 1];
        loops[at] = l;
        n++;
    }
    *n_loops = n;
    return PTAC_TAKE;
}

/* Whether each loop's stride goes beyond all that the loops behind it reach. */
static bool writes_once(const loop *loops, int n)
{
    int64_t reach = 0;

    for (int i = n - 1; i >= 0; i--) {
        if (loops[i].to <= reach)
            return false;
        reach += (loops[i].size - 1) * loops[i].to;
    }
    return true;
}

static int merge(loop *loops, int n)
{
    int kept = 0;

    for (int i = 1; i < n; i++) {
        const loop next = loops[i];
        loop *last = &loops[kept];

        if (last->to == next.to * next.size && last->from == next.from * next.size)
            *last = (loop){last->size * next.size, next.to, next.from};
        else
            loops[++kept] = next;
    }
    return kept + 1;
}

/* Neighbours that stay neighbours become one wider element, up to 16 bytes. */
static int widen(loop *loops, int n, int *bytes)
{
    loop *last = &loops[n - 1];
    int times = 1;

    if (last->to != 1 || last->from != 1 || last->size > 16 / *bytes)
        return n;
    while (times < last->size)
        times *= 2;
    for (int i = 0; i < n - 1; i++)
        if (loops[i].to % times || loops[i].from % times)
            return n;
    if (times != last->size || n == 1)
        return n;
    *bytes *= times;
    for (int i = 0; i < n - 1; i++) {
        loops[i].to /= times;
        loops[i].from /= times;
    }
    return n - 1;
}

/* The loop over neighbours in the input goes behind the others but the last. */
static ptac_copy_way arrange(loop *loops, int n)
{
    const loop last = loops[n - 1];
    int t = n - 2;

    if (last.to != 1)
        return PTAC_COPY_OTHER;
    if (last.from == 1)
        return n == 1 ? PTAC_COPY_DENSE : PTAC_COPY_RUNS;
    while (t >= 0 && loops[t].from != 1)
        t--;
    if (t < 0)
        return PTAC_COPY_OTHER;

    const loop turned = loops[t];

    for (; t < n - 2; t++)
        loops[t] = loops[t + 1];
    loops[t] = turned;
    return PTAC_COPY_TURNED;
}

ptac_reason ptac_copy_plan(const ptac_view *to, const ptac_view *from, int bytes,
                           ptac_copy *plan)
{
    loop loops[PTAC_COPY_DIMS];
    int n = 0;
    const ptac_reason why = collect(to, from, loops, &n);

    if (why)
        return why;
    if (n == 0)
        return PTAC_SHAPE;
    if (!writes_once(loops, n))
        return PTAC_OVERLAP;
    n = merge(loops, n);
    n = widen(loops, n, &bytes);
    plan->n_dims = n;
    plan->bytes = bytes;
    plan->way = arrange(loops, n);
    plan->n_elements = to->n_elements;
    for (int i = 0; i < n; i++) {
        plan->sizes[i] = loops[i].size;
        plan->to[i] = loops[i].to * bytes;
        plan->from[i] = loops[i].from * bytes;
    }
    return PTAC_TAKE;
}

/* A narrow side stays whole; else columns are shared unless there are few. */
static bool cuts_columns(const ptac_copy *plan)
{
    const int rows = plan->n_dims - 1, columns = rows - 1;

    if (ptac_copy_is_narrow(plan, rows) || ptac_copy_is_narrow(plan, columns))
        return ptac_copy_is_narrow(plan, rows);
    return plan->sizes[columns] >= ptac_least(64, plan->sizes[rows]);
}

/* Whole cache lines of a side; as many stripes as it has, each at least one. */
ptac_copy_stripes ptac_copy_cut(const ptac_copy *plan)
{
    const int rows = plan->n_dims - 1, columns = rows - 1;
    ptac_copy_stripes s = {.width = plan->bytes == 2 ? 64 : 32,
                           .of_columns = cuts_columns(plan)};
    const int64_t cut = plan->sizes[s.of_columns ? columns : rows];
    const int64_t whole = plan->sizes[s.of_columns ? rows : columns];

    while (s.width * whole < 4096)
        s.width *= 2;
    s.n = cut / s.width + (cut < s.width);
    return s;
}
