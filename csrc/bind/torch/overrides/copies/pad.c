/*
 * pad.c - aten::constant_pad_nd, and of signals and images aten::reflection_pad,
 * aten::replication_pad and their gradients.
 */
#include "bind/torch/overrides/override.h"

#include "ops/pad/pad.h"

#include <float.h>
#include <math.h>

static bool is_padded(const ptac_pad_axis *axis)
{
    return axis->front != 0 || axis->padded != axis->size;
}

/* Some of x is left, in an axis of a size that counts. */
static bool is_usual(const ptac_pad_axis *axis, int64_t back)
{
    const int64_t most = INT32_MAX, front = axis->front;

    return axis->size <= most && front >= -most && front <= most && back >= -most &&
           back <= most && axis->padded > 0 && front + axis->size > 0 &&
           back + axis->size > 0;
}

/* Padding comes in pairs, those of the last dimension first. */
static bool read_axis(const ptac_view *x, const ptac_argument *pad, int d,
                      ptac_pad_axis *axis)
{
    const int pair = 2 * (x->n_dims - 1 - d);
    const bool has = pair < pad->ints.n;
    const int64_t front = has ? pad->all[pair] : 0, back = has ? pad->all[pair + 1] : 0;

    axis->size = x->sizes[d];
    axis->front = front;
    return !__builtin_add_overflow(front, back, &axis->padded) &&
           !__builtin_add_overflow(axis->padded, axis->size, &axis->padded) &&
           is_usual(axis, back);
}

/* A slower axis, and a faster one that is not padded, as one. */
static bool join(const ptac_pad_axis *slower, ptac_pad_axis *faster)
{
    const int64_t n = faster->size;

    return !__builtin_mul_overflow(slower->size, n, &faster->size) &&
           !__builtin_mul_overflow(slower->padded, n, &faster->padded) &&
           !__builtin_mul_overflow(slower->front, n, &faster->front);
}

/* The dimension at a place from the fastest. */
static int dimension(const ptac_view *x, bool channels_last, int place)
{
    int order[5];

    if (!channels_last || !ptac_channels_last_order(x->n_dims, order))
        return x->n_dims - 1 - place;
    return order[place];
}

/* All dimensions, as they lie in memory, as three axes and planes. */
static ptac_reason gather_axes(const ptac_view *x, const ptac_argument *pad,
                               ptac_outputs *outputs, ptac_pad *p)
{
    ptac_pad_axis group = {1, 1, 0};
    int at = PTAC_PAD_AXES;

    for (int i = 0; i < x->n_dims; i++) {
        const int d = dimension(x, outputs->channels_last, i);
        ptac_pad_axis axis;

        if (!read_axis(x, pad, d, &axis))
            return PTAC_ARGUMENT;
        outputs->own_sizes[d] = axis.padded;
        if (!is_padded(&group)) {
            if (!join(&axis, &group))
                return PTAC_ARGUMENT;
            continue;
        }
        if (at == 0)
            return PTAC_SHAPE;
        p->axes[--at] = group;
        group = axis;
    }
    p->planes = group.size;
    if (is_padded(&group)) {
        if (at == 0)
            return PTAC_SHAPE;
        p->axes[--at] = group;
        p->planes = 1;
    }
    if (at == PTAC_PAD_AXES) /* a copy */
        return PTAC_ARGUMENT;
    while (at > 0)
        p->axes[--at] = (ptac_pad_axis){1, 1, 0};
    return PTAC_TAKE;
}

static bool only_crops(const ptac_argument *pad)
{
    for (int i = 0; i < pad->ints.n; i++)
        if (pad->all[i] > 0)
            return false;
    return true;
}

/*
 * What is left lies in one run, as of a batch its first images, or x has a dimension of
 * one element with a stride of its own: stock's copy of it goes by the strides of x.
 */
static bool copies_strides(const ptac_view *x, const ptac_outputs *outputs)
{
    ptac_view part = *x;
    int64_t expected = 1;

    part.sizes = outputs->own_sizes;
    part.n_elements = 1;
    for (int i = 0; i < x->n_dims; i++) {
        const int d = dimension(x, outputs->channels_last, i);

        part.n_elements *= part.sizes[d];
        if (x->strides[d] != expected)
            return true;
        expected *= x->sizes[d];
    }
    return ptac_view_is_dense(&part);
}

static bool is_countable(int n_dims, const int64_t *sizes)
{
    int64_t n = sizeof(float);

    for (int i = 0; i < n_dims; i++)
        if (__builtin_mul_overflow(n, sizes[i], &n))
            return false;
    return true;
}

/* Rounded once; numbers that a float does not hold are stock's to complain about. */
static bool read_value(const ptac_argument *argument, float *value)
{
    const double real = argument->value;

    *value = argument->scalar && argument->scalar->tag == AT_SCALAR_INT
                 ? (float)argument->scalar->number
                 : (float)real;
    return !isfinite(real) || fabs(real) <= FLT_MAX;
}

static ptac_reason read_constant(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[0];
    const ptac_argument *pad = &args->at[1];
    ptac_pad *p = params;
    ptac_reason why;

    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (!args->at[2].is_given || pad->ints.n % 2 || pad->ints.n > 2 * x->n_dims)
        return PTAC_ARGUMENT;
    outputs->channels_last = ptac_view_suggests_channels_last(x);
    if (!(outputs->channels_last ? ptac_view_is_channels_last(x)
                                 : ptac_view_is_contiguous(x)))
        return PTAC_LAYOUT;
    why = gather_axes(x, pad, outputs, p);
    if (why)
        return why;
    if ((only_crops(pad) && copies_strides(x, outputs)) ||
        !is_countable(x->n_dims, outputs->own_sizes) ||
        !read_value(&args->at[2], &p->value))
        return PTAC_ARGUMENT;
    ptac_outputs_are(outputs, x->n_dims, outputs->own_sizes);
    return PTAC_TAKE;
}

/* Planes of x, or of a shape like its; n axes of these are padded. */
static ptac_reason read_planes(const ptac_view *x, const ptac_argument *pad, int n,
                               bool reflects, ptac_pad *p)
{
    const int first = x->n_dims - n;

    if (pad->ints.n != 2 * n || first < 1 || first > 2)
        return PTAC_ARGUMENT;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    p->planes = 1;
    for (int i = 0; i < first; i++)
        p->planes *= x->sizes[i];
    for (int i = 0; i < PTAC_PAD_AXES; i++)
        p->axes[i] = (ptac_pad_axis){1, 1, 0};
    for (int i = 0; i < n; i++) {
        ptac_pad_axis *axis = &p->axes[PTAC_PAD_AXES - n + i];
        int64_t back;

        if (!read_axis(x, pad, first + i, axis))
            return PTAC_ARGUMENT;
        back = axis->padded - axis->size - axis->front;
        if (axis->front < 0 || back < 0 ||
            (reflects && (axis->front >= axis->size || back >= axis->size)))
            return PTAC_ARGUMENT;
    }
    return PTAC_TAKE;
}

/* The sizes of y. */
static void padded_sizes(const ptac_view *x, const ptac_pad *p, int n, int64_t *sizes)
{
    memcpy(sizes, x->sizes, (size_t)x->n_dims * sizeof *sizes);
    for (int i = 0; i < n; i++)
        sizes[x->n_dims - n + i] = p->axes[PTAC_PAD_AXES - n + i].padded;
}

/* What stock makes of channels_last is its to say. */
static ptac_reason read_forward(const ptac_arguments *args, int n,
                                const ptac_call *call, ptac_pad *p,
                                ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[0];
    ptac_reason why;

    if (ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    why = read_planes(x, &args->at[1], n, args->of->op == PTAC_OP_REFLECTION_PAD, p);
    if (why)
        return why;
    padded_sizes(x, p, n, outputs->own_sizes);
    if (!is_countable(x->n_dims, outputs->own_sizes))
        return PTAC_ARGUMENT;
    ptac_outputs_are(outputs, x->n_dims, outputs->own_sizes);
    return PTAC_TAKE;
}

static ptac_reason read_backward(const ptac_arguments *args, int n,
                                 const ptac_call *call, ptac_pad *p,
                                 ptac_outputs *outputs)
{
    const ptac_view *grad = &call->inputs[0], *x = &args->at[1].view;
    int64_t sizes[PTAC_MAX_DIMS];
    ptac_reason why;

    if (ptac_view_suggests_channels_last(grad) || ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    if (grad->dtype != x->dtype)
        return PTAC_DTYPE;
    why = read_planes(x, &args->at[2], n,
                      args->of->op == PTAC_OP_REFLECTION_PAD_BACKWARD, p);
    if (why)
        return why;
    padded_sizes(x, p, n, sizes);
    if (grad->n_dims != x->n_dims ||
        memcmp(sizes, grad->sizes, (size_t)grad->n_dims * sizeof *sizes) != 0)
        return PTAC_ARGUMENT;
    ptac_outputs_are(outputs, x->n_dims, x->sizes);
    return PTAC_TAKE;
}

#define DEFINE_READ(name, read, n)                                                     \
    static ptac_reason name(const ptac_arguments *args, const ptac_call *call,         \
                            void *params, ptac_outputs *outputs)                       \
    {                                                                                  \
        return read(args, n, call, params, outputs);                                   \
    }
DEFINE_READ(read_signals, read_forward, 1)
DEFINE_READ(read_images, read_forward, 2)
DEFINE_READ(read_signals_backward, read_backward, 1)
DEFINE_READ(read_images_backward, read_backward, 2)

static ptac_override constant_pad_nd = {
    .schema = "constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor",
    .op = PTAC_OP_CONSTANT_PAD_ND,
    .n_inputs = 1,
    .read = read_constant,
};
PTAC_OVERRIDE(constant_pad_nd, constant_pad_nd, TENSOR(0), INTS(1), SCALAR(2))

static ptac_override reflection_pad1d = {
    .schema = "reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor",
    .op = PTAC_OP_REFLECTION_PAD,
    .out = "aten::reflection_pad1d.out",
    .n_inputs = 1,
    .read = read_signals,
};
PTAC_OVERRIDE(reflection_pad1d, cpu_reflection_pad1d, TENSOR(0), INTS(1))

static ptac_override reflection_pad2d = {
    .schema = "reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor",
    .op = PTAC_OP_REFLECTION_PAD,
    .out = "aten::reflection_pad2d.out",
    .n_inputs = 1,
    .read = read_images,
};
PTAC_OVERRIDE(reflection_pad2d, cpu_reflection_pad2d, TENSOR(0), INTS(1))

static ptac_override replication_pad1d = {
    .schema = "replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor",
    .op = PTAC_OP_REPLICATION_PAD,
    .out = "aten::replication_pad1d.out",
    .n_inputs = 1,
    .read = read_signals,
};
PTAC_OVERRIDE(replication_pad1d, cpu_replication_pad1d, TENSOR(0), INTS(1))

static ptac_override replication_pad2d = {
    .schema = "replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor",
    .op = PTAC_OP_REPLICATION_PAD,
    .out = "aten::replication_pad2d.out",
    .n_inputs = 1,
    .read = read_images,
};
PTAC_OVERRIDE(replication_pad2d, cpu_replication_pad2d, TENSOR(0), INTS(1))

static ptac_override reflection_pad1d_backward = {
    .schema = "reflection_pad1d_backward(Tensor grad_output, Tensor self, "
              "SymInt[2] padding) -> Tensor",
    .op = PTAC_OP_REFLECTION_PAD_BACKWARD,
    .out = "aten::reflection_pad1d_backward.grad_input",
    .self = 1,
    .n_inputs = 1,
    .read = read_signals_backward,
};
PTAC_OVERRIDE(reflection_pad1d_backward, cpu_reflection_pad1d_backward, TENSOR(0),
              TENSOR(1), INTS(2))

static ptac_override reflection_pad2d_backward = {
    .schema = "reflection_pad2d_backward(Tensor grad_output, Tensor self, "
              "SymInt[4] padding) -> Tensor",
    .op = PTAC_OP_REFLECTION_PAD_BACKWARD,
    .out = "aten::reflection_pad2d_backward.grad_input",
    .self = 1,
    .n_inputs = 1,
    .read = read_images_backward,
};
PTAC_OVERRIDE(reflection_pad2d_backward, cpu_reflection_pad2d_backward, TENSOR(0),
              TENSOR(1), INTS(2))

static ptac_override replication_pad1d_backward = {
    .schema = "replication_pad1d_backward(Tensor grad_output, Tensor self, "
              "SymInt[2] padding) -> Tensor",
    .op = PTAC_OP_REPLICATION_PAD_BACKWARD,
    .out = "aten::replication_pad1d_backward.grad_input",
    .self = 1,
    .n_inputs = 1,
    .read = read_signals_backward,
};
PTAC_OVERRIDE(replication_pad1d_backward, cpu_replication_pad1d_backward, TENSOR(0),
              TENSOR(1), INTS(2))

static ptac_override replication_pad2d_backward = {
    .schema = "replication_pad2d_backward(Tensor grad_output, Tensor self, "
              "SymInt[4] padding) -> Tensor",
    .op = PTAC_OP_REPLICATION_PAD_BACKWARD,
    .out = "aten::replication_pad2d_backward.grad_input",
    .self = 1,
    .n_inputs = 1,
    .read = read_images_backward,
};
PTAC_OVERRIDE(replication_pad2d_backward, cpu_replication_pad2d_backward, TENSOR(0),
              TENSOR(1), INTS(2))
