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

/* Of images, and of signals, which have no rows. */
typedef struct steps {
    int64_t image, channel, row, column;
} steps;

static steps steps_of(const ptac_view *view)
{
    const int64_t *strides = view->strides;

    return view->n_dims == 3 ? (steps){strides[0], strides[1], 0, strides[2]}
                             : (steps){strides[0], strides[1], strides[2], strides[3]};
}

/* Where taps of one axis meet positions of the result, by the forward convolution. */
typedef struct axis {
    int stride, pad, dilation;
} axis;

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

/* One output, or gradient of an input, before the epilogue, without its bias. */
static double sum_at(const ptac_call *call, int64_t n, int channel, int i, int j)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int channels = (is_data ? p->out_channels : p->in_channels) / p->groups;
    const int of_group = (is_data ? p->in_channels : p->out_channels) / p->groups;
    const int group = channel / of_group;
    const int h = is_data ? p->out_h : p->h, w = is_data ? p->out_w : p->w;
    const steps of_x = steps_of(&call->inputs[0]), of_w = steps_of(&call->inputs[1]);
    const float *image = (const float *)call->inputs[0].data + n * of_x.image +
                         (int64_t)group * channels * of_x.channel;
    const float *weight = (const float *)call->inputs[1].data +
                          (is_data ? (int64_t)group * channels * of_w.image +
                                         channel % of_group * of_w.channel
                                   : channel * of_w.image);
    double sum = 0;

    for (int a = 0; a < p->kernel_h; a++) {
        const int row = place(is_data, along_h(p), i, a, h);

        for (int b = 0; b < p->kernel_w && row >= 0; b++) {
            const int column = place(is_data, along_w(p), j, b, w);

            for (int c = 0; c < channels && column >= 0; c++)
                sum += (double)image[c * of_x.channel + row * of_x.row +
                                     column * of_x.column] *
                       weight[c * (is_data ? of_w.image : of_w.channel) + a * of_w.row +
                              b * of_w.column];
        }
    }
    return sum;
}

static float output_at(const ptac_call *call, int64_t n, int k, int i, int j)
{
    const ptac_conv2d *p = call->params;
    const float *bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    const double sum = sum_at(call, n, k, i, j);
    const float y = (float)((scale ? sum * scale[k] : sum) + (bias ? bias[k] : 0));

    return (float)ptac_act_value(y, p->act);
}

/* Outputs, or gradients of inputs, [begin, end), counted along N, K, H, W. */
static void image_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int size = p->with_pool ? 2 : 1;
    const int channels = is_data ? p->in_channels : p->out_channels;
    const int h = (is_data ? p->h : p->out_h) / size;
    const int w = (is_data ? p->w : p->out_w) / size;
    const steps of_y = steps_of(&call->outputs[0]);
    float *y = call->outputs[0].data;

    for (int64_t at = begin; at < end; at++) {
        const int j = (int)(at % w) * size, i = (int)(at / w % h) * size;
        const int k = (int)(at / w / h % channels);
        const int64_t n = at / w / h / channels;
        float largest = output_at(call, n, k, i, j);

        for (int other = 1; other < size * size; other++) {
            const float next = output_at(call, n, k, i + other / 2, j + other % 2);

            if (!(next <= largest) && largest == largest)
                largest = next;
        }
        y[n * of_y.image + k * of_y.channel + i / size * of_y.row +
          j / size * of_y.column] = largest;
    }
}

static void weight_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const float *x = call->inputs[0].data, *grad = call->inputs[1].data;
    const steps of_x = steps_of(&call->inputs[0]), of_y = steps_of(&call->inputs[1]);
    const steps of_w = steps_of(&call->outputs[0]);
    float *grad_w = call->outputs[0].data;

    for (int64_t at = begin; at < end; at++) {
        const int b = (int)(at % p->kernel_w);
        const int a = (int)(at / p->kernel_w % p->kernel_h);
        const int64_t plane = at / p->kernel_w / p->kernel_h;
        const int of_group = p->in_channels / p->groups;
        const int64_t c = plane % of_group, k = plane / of_group;
        const int64_t first = k / (p->out_channels / p->groups) * of_group;
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++) {
            const float *image = x + n * of_x.image + (first + c) * of_x.channel;
            const float *grads = grad + n * of_y.image + k * of_y.channel;

            for (int i = 0; i < p->out_h; i++) {
                const int row = place(false, along_h(p), i, a, p->h);

                for (int j = 0; j < p->out_w && row >= 0; j++) {
                    const int column = place(false, along_w(p), j, b, p->w);

                    if (column >= 0)
                        sum += (double)image[row * of_x.row + column * of_x.column] *
                               grads[i * of_y.row + j * of_y.column];
                }
            }
        }
        grad_w[k * of_w.image + c * of_w.channel + a * of_w.row + b * of_w.column] =
            (float)sum;
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
            for (int64_t i = 0; i < p->out_h; i++)
                for (int64_t j = 0; j < p->out_w; j++)
                    sum += grad[n * of_y.image + k * of_y.channel + i * of_y.row +
                                j * of_y.column];
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
