/*
 * conv2d.c - shape kinds of convolutions, and which of them special rows may serve;
 * the gradient of a bias where no row computes it.
 */
#include "ops/conv/conv2d.h"

#include "core/host.h"

/* The channels that a call sums over. */
static int summed_channels(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_transposed =
        call->op == PTAC_OP_CONV2D && p->result == PTAC_CONV_DATA;

    return is_transposed ? p->out_channels : p->in_channels;
}

/* The last of kinds that begin with first, for 16 channels and more. */
static int by_channels(const ptac_conv2d *p, int first, int last)
{
    const int64_t fewer = ptac_least(p->in_channels, p->out_channels);
    const int factor = p->kernel_h == 5 ? 4 : 2;

    for (int n = 16 * factor; n <= fewer && first < last; n *= factor)
        first++;
    return first;
}

static int kind_of(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_5x5 = p->kernel_h == 5;

    if (p->channels_last)
        return is_5x5 ? by_channels(p, PTAC_CONV_NHWC_5X5_16, PTAC_CONV_NHWC_5X5_64)
                      : by_channels(p, PTAC_CONV_NHWC_3X3_16, PTAC_CONV_NHWC_3X3_512);
    if (summed_channels(call) <= PTAC_CONV_FIRST_CHANNELS)
        return is_5x5 ? PTAC_CONV_5X5_FIRST : PTAC_CONV_3X3_FIRST;
    if (p->in_channels < 16 || p->out_channels < 16)
        return is_5x5 ? PTAC_CONV_5X5_FEW : PTAC_CONV_3X3_FEW;
    return is_5x5 ? by_channels(p, PTAC_CONV_5X5_16, PTAC_CONV_5X5_64)
                  : by_channels(p, PTAC_CONV_3X3_16, PTAC_CONV_3X3_512);
}

/* Of few channels in NHWC nobody has measured what rows for 3x3 and 5x5 make. */
static bool is_measured(const ptac_conv2d *p)
{
    return !p->channels_last || (p->in_channels >= PTAC_CONV_LEAST_NHWC &&
                                 p->out_channels >= PTAC_CONV_LEAST_NHWC);
}

/*
 * Far more channels on one side than on the other, hardly any to sum over and too many
 * to be the first layer's, or the transpose of a convolution of many: nobody has
 * measured that, or it was not faster.
 */
static bool is_unlike_cases(const ptac_call *call)
{
    enum { MOST = 8, MOST_OF_TRANSPOSED = 256, LEAST_SUMMED = 8, LEAST_RESULTS = 4 };
    const ptac_conv2d *p = call->params;

    if (p->result == PTAC_CONV_FORWARD && p->in_channels > PTAC_CONV_FIRST_CHANNELS &&
        (p->in_channels < LEAST_SUMMED || p->out_channels < LEAST_RESULTS))
        return true;
    if (call->op == PTAC_OP_CONV2D && p->result == PTAC_CONV_DATA &&
        p->out_channels > MOST_OF_TRANSPOSED)
        return true;
    return summed_channels(call) > PTAC_CONV_FIRST_CHANNELS &&
           (p->in_channels > MOST * p->out_channels ||
            p->out_channels > MOST * p->in_channels);
}

ptac_reason ptac_conv2d_reason(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (ptac_conv2d_is_of_volumes(call) || p->groups != 1 || p->dilation_h != 1 ||
        p->dilation_w != 1 || p->kernel_h != p->kernel_w ||
        (p->kernel_h != 3 && p->kernel_h != 5) || p->stride_h != 1 ||
        p->stride_w != 1 || is_unlike_cases(call))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* The kind behind first for so many channels: one more for each bound reached. */
static int beyond(int first, int channels, int n, const int *bounds)
{
    while (n-- > 0)
        first += channels >= *bounds++;
    return first;
}

#define BEYOND(first, channels, ...)                                                   \
    beyond(first, channels, (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)),           \
           (int[]){__VA_ARGS__})

/*
 * Stock's choice between its own convolution and oneDNN's, for one volume: by sizes of
 * what it convolves, but for the last. (use_mkldnn() in ATen's Convolution.cpp)
 */
static bool is_alone(const ptac_conv2d *p, bool is_transposed)
{
    enum { MOST_OF_STOCK = 20480 };
    const int64_t size = is_transposed ? (int64_t)p->out_d * p->out_h * p->out_channels
                                       : (int64_t)p->d * p->h * p->in_channels;

    return p->n == 1 && p->groups == 1 && (p->kernel_h <= 3 || p->kernel_w <= 3) &&
           size <= MOST_OF_STOCK;
}

static int kind_of_volumes(const ptac_conv2d *p, bool is_transposed, int fewer)
{
    const bool is_strided = p->stride_d != 1 || p->stride_h != 1 || p->stride_w != 1;
    const bool is_1x1 = p->kernel_d == 1 && p->kernel_h == 1 && p->kernel_w == 1;

    if (p->groups > 1)
        return PTAC_CONV_VOLUME_GROUPED;
    if (is_alone(p, is_transposed)) {
        if (is_transposed && is_strided)
            return PTAC_CONV_VOLUME_ALONE_TRANSPOSED;
        if (is_1x1)
            return PTAC_CONV_VOLUME_ALONE_1X1;
        return is_strided ? PTAC_CONV_VOLUME_ALONE_STRIDED
                          : BEYOND(PTAC_CONV_VOLUME_ALONE, fewer, 64, 128);
    }
    if (is_transposed && is_strided)
        return PTAC_CONV_VOLUME_TRANSPOSED;
    if (p->in_channels <= PTAC_CONV_FIRST_CHANNELS)
        return PTAC_CONV_VOLUME_FIRST;
    if (is_1x1)
        return PTAC_CONV_VOLUME_1X1;
    if (is_strided)
        return PTAC_CONV_VOLUME_STRIDED;
    return BEYOND(PTAC_CONV_VOLUME_FEW, fewer, 16, 64);
}

/* Of one of its images. */
static bool is_small(const ptac_conv2d *p)
{
    enum { MOST = 100 };

    return (int64_t)p->out_h * p->out_w < MOST;
}

static int kind_of_1x1(const ptac_conv2d *p, int fewer)
{
    enum { POINT = 4 };

    if ((int64_t)p->out_h * p->out_w <= POINT)
        return PTAC_CONV_1X1_POINT;
    return is_small(p) ? BEYOND(PTAC_CONV_1X1_SMALL, fewer, 64, 256)
                       : BEYOND(PTAC_CONV_1X1_FEW, fewer, 16, 32, 64, 128, 256);
}

/* Forward, of several images that are not large, which go together. */
static void divide_1x1(const ptac_conv2d *p, ptac_shape *shape)
{
    enum { MOST = 256 };
    const int kind = shape->kind,
              fewer = (int)ptac_least(p->in_channels, p->out_channels);

    if (p->n < 2 || p->result != PTAC_CONV_FORWARD || kind < PTAC_CONV_1X1_FEW ||
        kind > PTAC_CONV_1X1_SMALL_256 || kind == PTAC_CONV_1X1_POINT ||
        (int64_t)p->out_h * p->out_w > MOST)
        return;
    shape->kind = BEYOND(PTAC_CONV_1X1_BATCH, fewer, 64, 256);
    shape->else_kind = kind;
}

static int kind_of_others(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_strided = p->stride_h != 1 || p->stride_w != 1;
    const bool is_transposed = p->is_transposed;
    const bool is_first = p->in_channels <= PTAC_CONV_FIRST_CHANNELS;
    const int fewer = (int)ptac_least(p->in_channels, p->out_channels) / p->groups;

    if (ptac_conv2d_is_of_volumes(call))
        return kind_of_volumes(p, is_transposed, fewer);
    if (p->channels_last)
        return is_small(p) ? BEYOND(PTAC_CONV_NHWC_SMALL, fewer, 256) : PTAC_CONV_NHWC;
    if (p->groups > 1)
        return is_strided ? PTAC_CONV_GROUPED_STRIDED
                          : BEYOND(PTAC_CONV_GROUPED_FEW, fewer, 8, 32);
    if (is_transposed && is_strided)
        return BEYOND(PTAC_CONV_TRANSPOSED_FEW, fewer, 16, 64);
    if (p->kernel_h == 1 && p->kernel_w == 1)
        return is_strided ? BEYOND(PTAC_CONV_1X1_STRIDED, fewer, 512, 1024)
                          : kind_of_1x1(p, fewer);
    if (p->h == 1 && p->kernel_h == 1)
        return is_first ? PTAC_CONV_ROW_FIRST
                        : BEYOND(PTAC_CONV_ROW_FEW, fewer, 16, 64);
    if (is_strided)
        return is_first ? PTAC_CONV_STRIDED_FIRST
                        : BEYOND(PTAC_CONV_STRIDED_FEW, fewer, 16, 64, 256, 512);
    return BEYOND(PTAC_CONV_OTHER_FEW, fewer, 16);
}

static int64_t uses_of(const ptac_conv2d *p)
{
    const int64_t channels = (int64_t)p->in_channels / p->groups * p->out_channels;
    const int64_t n_elements = p->n * p->in_channels * p->d * p->h * p->w +
                               p->out_channels * ptac_conv2d_pixels(p) +
                               channels * p->kernel_d * p->kernel_h * p->kernel_w;

    return n_elements > 0 ? ptac_conv2d_work(p) / n_elements : 0;
}

double ptac_conv2d_spared_ns(const ptac_call *call)
{
    static const double PRICE = 0.1; /* of a result; Zen 4, from the second cache on */
    const ptac_conv2d *p = call->params;

    return ptac_conv2d_is_merged(call)
               ? PRICE * (double)(ptac_conv2d_pixels(p) * p->out_channels)
               : 0;
}

/*
 * Of weights that are laid out, or for Winograd's tiles transformed, where they are
 * kept. Prices are of a weight on Zen 4, at 64 to 512 channels.
 */
static double kept_ns(const ptac_call *call, bool is_ours)
{
    static const double LAID_OUT = 0.13, TRANSFORMED = 0.6;
    const ptac_conv2d *p = call->params;
    const int n_taps = p->kernel_d * p->kernel_h * p->kernel_w;
    const double n = (double)p->in_channels * p->out_channels * n_taps;

    if (!call->kept || !(is_ours || n_taps == 1))
        return 0;
    return (is_ours ? TRANSFORMED : LAID_OUT) * n;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_conv2d *p = call->params;
    const bool is_ours = ptac_conv2d_reason(call) == PTAC_TAKE && is_measured(p);

    if (p->n == 0 || p->in_channels == 0 || p->out_channels == 0)
        return PTAC_EMPTY;
    shape->kind = is_ours ? kind_of(call) : kind_of_others(call);
    divide_1x1(p, shape);
    shape->work = is_ours ? ptac_conv2d_pixels(p) : ptac_conv2d_work(p);
    shape->uses = uses_of(p);
    shape->spared_ns = ptac_conv2d_spared_ns(call);
    shape->kept_ns = kept_ns(call, is_ours);
    if (!p->is_transposed && !p->channels_last && !ptac_conv2d_is_of_volumes(call)) {
        shape->or_kind = PTAC_CONV_ANY;
        shape->or_work = ptac_conv2d_work(p);
    }
    if (p->result == PTAC_CONV_WEIGHT) {
        shape->kind += PTAC_CONV_N_KINDS;
        shape->or_kind += shape->or_kind ? PTAC_CONV_N_KINDS : 0;
    }
    return PTAC_TAKE;
}

#define KINDS(after)                                                                   \
    "3x3_first" after, "3x3_few" after, "3x3_16" after, "3x3_32" after,                \
        "3x3_64" after, "3x3_128" after, "3x3_256" after, "3x3_512" after,             \
        "5x5_first" after, "5x5_few" after, "5x5_16" after, "5x5_64" after,            \
        "nhwc_3x3_16" after, "nhwc_3x3_32" after, "nhwc_3x3_64" after,                 \
        "nhwc_3x3_128" after, "nhwc_3x3_256" after, "nhwc_3x3_512" after,              \
        "nhwc_5x5_16" after, "nhwc_5x5_64" after, "1x1_few" after, "1x1_16" after,     \
        "1x1_32" after, "1x1_64" after, "1x1_128" after, "1x1_256" after,              \
        "1x1_point" after, "1x1_small" after, "1x1_small_64" after,                    \
        "1x1_small_256" after, "1x1_batch" after, "1x1_batch_64" after,                \
        "1x1_batch_256" after, "1x1_strided" after, "1x1_strided_512" after,           \
        "1x1_strided_1024" after, "strided_first" after, "strided_few" after,          \
        "strided_16" after, "strided_64" after, "strided_256" after,                   \
        "strided_512" after, "transposed_few" after, "transposed_16" after,            \
        "transposed_64" after, "grouped_few" after, "grouped_8" after,                 \
        "grouped_32" after, "grouped_strided" after, "row_first" after,                \
        "row_few" after, "row_16" after, "row_64" after, "other_few" after,            \
        "other" after, "nhwc" after, "nhwc_small" after, "nhwc_small_256" after,       \
        "volume_alone" after, "volume_alone_64" after, "volume_alone_128" after,       \
        "volume_alone_1x1" after, "volume_alone_strided" after,                        \
        "volume_alone_transposed" after, "volume_first" after, "volume_few" after,     \
        "volume_16" after, "volume_64" after, "volume_1x1" after,                      \
        "volume_strided" after, "volume_transposed" after, "volume_grouped" after,     \
        "any" after

PTAC_SHAPES(CONV2D, classify, KINDS(""))
PTAC_SHAPES(CONV2D_BACKWARD, classify, KINDS("_data"), KINDS("_weight"))

typedef struct bias_job {
    const float *grad;
    float *to;
    int64_t n, n_channels, n_places;
} bias_job;

static double sum_of(const float *x, int64_t n)
{
    enum { LANES = 16, BLOCK = 64 * LANES };
    double sum = 0;

    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t end = ptac_least(at + BLOCK, n);
        float lanes[LANES] = {0};
        double rest = 0;
        int64_t i = at;

        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++)
                lanes[j] += x[i + j];
        for (; i < end; i++)
            rest += x[i];
        for (int j = 0; j < LANES; j++)
            rest += lanes[j];
        sum += rest;
    }
    return sum;
}

static void sum_channels(int64_t begin, int64_t end, void *context)
{
    const bias_job *job = context;

    for (int64_t c = begin; c < end; c++) {
        double sum = 0;

        for (int64_t n = 0; n < job->n; n++)
            sum += sum_of(job->grad + (n * job->n_channels + c) * job->n_places,
                          job->n_places);
        job->to[c] = (float)sum;
    }
}

void ptac_conv_bias_gradient(const ptac_view *grad, float *to)
{
    enum { GRAIN = 1 << 15 }; /* elements */
    const int64_t n = grad->sizes[0], n_channels = grad->sizes[1];
    const int64_t of_channel = n_channels ? grad->n_elements / n_channels : 0;
    bias_job job = {grad->data, to, n, n_channels, n ? of_channel / n : 0};

    ptac_parallel_for(0, n_channels, 1 + GRAIN / (of_channel + 1), sum_channels, &job);
}
