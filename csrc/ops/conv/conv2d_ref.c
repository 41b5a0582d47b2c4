/*
 * conv2d_ref.c - convolution by its definition, summed in double.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them. They are
 * there for small calls: nobody waits for large ones.
 */
#include "ops/conv/conv2d.h"

#include "core/host.h"
#include "ops/linear/bias_act.h"

enum {
    MOST_WORK = 1 << 24, /* multiply-adds */
};

static ptac_reason accepts(const ptac_call *call)
{
    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    return ptac_conv2d_work(call->params) <= MOST_WORK ? PTAC_TAKE : PTAC_SHAPE;
}

/* Of volumes; of images, which have no planes; of signals, which have no rows. */
typedef struct steps {
    int64_t image, channel, plane, row, column;
} steps;

static steps steps_of(const ptac_view *view)
{
    const int64_t *strides = view->strides;
    const int last = view->n_dims - 1;

    return (steps){
        .image = strides[0],
        .channel = strides[1],
        .plane = last > 3 ? strides[last - 2] : 0,
        .row = last > 2 ? strides[last - 1] : 0,
        .column = strides[last],
    };
}

/* Where taps of one axis meet positions of the result, by the forward convolution. */
typedef struct axis {
    int stride, pad, dilation;
} axis;

static axis along_d(const ptac_conv2d *p)
{
    return (axis){p->stride_d, p->pad_d, p->dilation_d};
}

static axis along_h(const ptac_conv2d *p)
{
    return (axis){p->stride_h, p->pad_h, p->dilation_h};
}

static axis along_w(const ptac_conv2d *p)
{
    return (axis){p->stride_w, p->pad_w, p->dilation_w};
}

/* A tap and position i of the result: a place among n of the other image, or -1. */
static int place(bool is_data, axis of, int i, int tap, int n)
{
    int at = is_data ? i + of.pad - tap * of.dilation
                     : i * of.stride - of.pad + tap * of.dilation;

    if (is_data) {
        if (at % of.stride != 0)
            return -1;
        at /= of.stride;
    }
    return at >= 0 && at < n ? at : -1;
}

/* A result: image and channel, and where in it. */
typedef struct point {
    int64_t n;
    int channel, d, i, j;
} point;

/* The sum over the channels of a tap, of an image and of a kernel. */
static double sum_of_tap(const float *image, int64_t image_step, const float *weight,
                         int64_t weight_step, int n)
{
    double sum = 0;

    for (int c = 0; c < n; c++)
        sum += (double)image[c * image_step] * weight[c * weight_step];
    return sum;
}

/* One output, or gradient of an input, before the epilogue, without its bias. */
static double sum_at(const ptac_call *call, point at)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int channels = (is_data ? p->out_channels : p->in_channels) / p->groups;
    const int of_group = (is_data ? p->in_channels : p->out_channels) / p->groups;
    const int group = at.channel / of_group;
    const int d = is_data ? p->out_d : p->d;
    const int h = is_data ? p->out_h : p->h, w = is_data ? p->out_w : p->w;
    const steps of_x = steps_of(&call->inputs[0]), of_w = steps_of(&call->inputs[1]);
    const float *image = (const float *)call->inputs[0].data + at.n * of_x.image +
                         (int64_t)group * channels * of_x.channel;
    const float *weight = (const float *)call->inputs[1].data +
                          (is_data ? (int64_t)group * channels * of_w.image +
                                         at.channel % of_group * of_w.channel
                                   : at.channel * of_w.image);
    double sum = 0;

    for (int e = 0; e < p->kernel_d; e++) {
        const int plane = place(is_data, along_d(p), at.d, e, d);

        for (int a = 0; a < p->kernel_h && plane >= 0; a++) {
            const int row = place(is_data, along_h(p), at.i, a, h);

            for (int b = 0; b < p->kernel_w && row >= 0; b++) {
                const int column = place(is_data, along_w(p), at.j, b, w);

                if (column >= 0)
                    sum += sum_of_tap(image + plane * of_x.plane + row * of_x.row +
                                          column * of_x.column,
                                      of_x.channel,
                                      weight + e * of_w.plane + a * of_w.row +
                                          b * of_w.column,
                                      is_data ? of_w.image : of_w.channel, channels);
            }
        }
    }
    return sum;
}

static float output_at(const ptac_call *call, point at)
{
    const ptac_conv2d *p = call->params;
    const float *bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    const double sum = sum_at(call, at);
    const float y = (float)((scale ? sum * scale[at.channel] : sum) +
                            (bias ? bias[at.channel] : 0));

    return (float)ptac_act_value(y, p->act);
}

/* Outputs, or gradients of inputs, [begin, end), counted along N, K, D, H, W. */
static void image_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int size = p->with_pool ? 2 : 1;
    const int channels = is_data ? p->in_channels : p->out_channels;
    const int d = is_data ? p->d : p->out_d;
    const int h = (is_data ? p->h : p->out_h) / size;
    const int w = (is_data ? p->w : p->out_w) / size;
    const steps of_y = steps_of(&call->outputs[0]);
    float *y = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const int64_t plane = i / w / h, channel = plane / d;
        const point at = {
            .n = channel / channels,
            .channel = (int)(channel % channels),
            .d = (int)(plane % d),
            .i = (int)(i / w % h) * size,
            .j = (int)(i % w) * size,
        };
        float largest = output_at(call, at);

        for (int other = 1; other < size * size; other++) {
            point beside = at;

            beside.i += other / 2;
            beside.j += other % 2;
            const float next = output_at(call, beside);

            if (!(next <= largest) && largest == largest)
                largest = next;
        }
        y[at.n * of_y.image + at.channel * of_y.channel + at.d * of_y.plane +
          at.i / size * of_y.row + at.j / size * of_y.column] = largest;
    }
}

/* The gradient of one weight over an image: channels of x and of y, and the tap. */
static double sum_of_image(const ptac_call *call, const float *x, const float *grad,
                           int e, int a, int b)
{
    const ptac_conv2d *p = call->params;
    const steps of_x = steps_of(&call->inputs[0]), of_y = steps_of(&call->inputs[1]);
    double sum = 0;

    for (int z = 0; z < p->out_d; z++) {
        const int plane = place(false, along_d(p), z, e, p->d);

        for (int i = 0; i < p->out_h && plane >= 0; i++) {
            const int row = place(false, along_h(p), i, a, p->h);

            for (int j = 0; j < p->out_w && row >= 0; j++) {
                const int column = place(false, along_w(p), j, b, p->w);

                if (column >= 0)
                    sum += (double)x[plane * of_x.plane + row * of_x.row +
                                     column * of_x.column] *
                           grad[z * of_y.plane + i * of_y.row + j * of_y.column];
            }
        }
    }
    return sum;
}

static void weight_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const int of_group = p->in_channels / p->groups;
    const float *x = call->inputs[0].data, *grad = call->inputs[1].data;
    const steps of_x = steps_of(&call->inputs[0]), of_y = steps_of(&call->inputs[1]);
    const steps of_w = steps_of(&call->outputs[0]);
    float *grad_w = call->outputs[0].data;

    for (int64_t at = begin; at < end; at++) {
        const int b = (int)(at % p->kernel_w);
        const int a = (int)(at / p->kernel_w % p->kernel_h);
        const int e = (int)(at / p->kernel_w / p->kernel_h % p->kernel_d);
        const int64_t kernel = at / p->kernel_w / p->kernel_h / p->kernel_d;
        const int64_t c = kernel % of_group, k = kernel / of_group;
        const int64_t first = k / (p->out_channels / p->groups) * of_group;
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++)
            sum += sum_of_image(call, x + n * of_x.image + (first + c) * of_x.channel,
                                grad + n * of_y.image + k * of_y.channel, e, a, b);
        grad_w[k * of_w.image + c * of_w.channel + e * of_w.plane + a * of_w.row +
               b * of_w.column] = (float)sum;
    }
}

static void sum_bias_gradients(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const float *grad = call->inputs[1].data;
    const steps of_y = steps_of(&call->inputs[1]);

    for (int k = 0; k < p->out_channels; k++) {
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++)
            for (int64_t z = 0; z < p->out_d; z++)
                for (int64_t i = 0; i < p->out_h; i++)
                    for (int64_t j = 0; j < p->out_w; j++)
                        sum += grad[n * of_y.image + k * of_y.channel + z * of_y.plane +
                                    i * of_y.row + j * of_y.column];
        ((float *)call->outputs[1].data)[k] = (float)sum;
    }
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn points[] = {image_points, image_points, weight_points};
    const ptac_conv2d *p = call->params;

    ptac_parallel_for(0, call->outputs[0].n_elements, 64, points[p->result],
                      (void *)call);
    if (p->result == PTAC_CONV_WEIGHT && call->n_outputs > 1)
        sum_bias_gradients(call);
    return PTAC_OK;
}

PTAC_ROW(CONV2D, "scalar", PTAC_CLOSE, 0, accepts, run)
PTAC_ROW(CONV2D_BACKWARD, "scalar", PTAC_CLOSE, 0, accepts, run)
