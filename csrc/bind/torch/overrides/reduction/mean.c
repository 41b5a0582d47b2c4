/*
 * mean.c - aten::mean.dim, over dimensions that follow each other in memory.
 *
 * It is also what adaptive_avg_pool2d() calls for a single output, and what mean() of
 * all elements comes to.
 */
#include "bind/torch/overrides/override.h"

#include "ops/mean/mean.h"

/* A bit for each dimension to go; none that are named: all. False: stock complains. */
static bool read_dims(const ptac_argument *dims, int n_dims, uint32_t *gone)
{
    *gone = 0;
    for (int i = 0; dims->is_given && i < dims->ints.n; i++) {
        const int64_t given = dims->all[i], d = given < 0 ? given + n_dims : given;

        if (d < 0 || d >= n_dims || (*gone >> d & 1))
            return false;
        *gone |= 1u << d;
    }
    if (!*gone)
        *gone = (1u << n_dims) - 1;
    return true;
}

/*
 * The dimensions as they lie in memory, from the fastest: those before the ones that
 * go, these, and those behind. order as in ptac_view_lies_in().
 */
static ptac_reason gather(const ptac_view *x, const int *order, uint32_t gone,
                          ptac_mean *p)
{
    int64_t *const groups[] = {&p->inner, &p->n, &p->outer};
    int at = 0;

    *p = (ptac_mean){1, 1, 1};
    for (int i = 0; i < x->n_dims; i++) {
        const int d = order ? order[i] : x->n_dims - 1 - i;
        const bool goes = gone >> d & 1;

        if (x->sizes[d] == 1)
            continue;
        at += goes != (at == 1);
        if (at > 2)
            return PTAC_SHAPE;
        *groups[at] *= x->sizes[d];
    }
    return PTAC_TAKE;
}

/* Sizes without the dimensions that have gone, or with 1 in their places. */
static int left_of(const ptac_view *x, uint32_t gone, bool keeps, int64_t *sizes)
{
    int n = 0;

    for (int d = 0; d < x->n_dims; d++)
        if (keeps || !(gone >> d & 1))
            sizes[n++] = gone >> d & 1 ? 1 : x->sizes[d];
    return n;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[0];
    const ptac_argument *dtype = &args->at[3];
    const int *order = NULL;
    ptac_reason why;
    uint32_t gone;
    int nhwc[5];

    if (x->dtype != PTAC_F32 || (dtype->is_given && dtype->number != AT_DTYPE_F32))
        return PTAC_DTYPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (x->n_dims < 1 || x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (!read_dims(&args->at[1], x->n_dims, &gone))
        return PTAC_ARGUMENT;
    if (!ptac_view_is_contiguous(x)) {
        if (!ptac_view_is_channels_last(x))
            return PTAC_LAYOUT;
        ptac_channels_last_order(x->n_dims, nhwc);
        order = nhwc;
    }
    why = gather(x, order, gone, params);
    if (why)
        return why;
    outputs->dense = 0; /* the row takes x as it lies; means are contiguous */
    ptac_outputs_are(outputs, left_of(x, gone, args->at[2].truth, outputs->own_sizes),
                     outputs->own_sizes);
    return PTAC_TAKE;
}

static ptac_override mean_dim = {
    .schema = "mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, "
              "ScalarType? dtype=None) -> Tensor",
    .op = PTAC_OP_MEAN,
    .out = "aten::mean.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(mean_dim, cpu_mean, TENSOR(0), OPTIONAL_INTS(1), BOOL(2),
              OPTIONAL_DTYPE(3))
