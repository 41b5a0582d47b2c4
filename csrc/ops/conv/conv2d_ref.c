/*
 * conv2d_ref.c - convolution by its definition, summed in double.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them. They are
 * there for small calls: nobody waits for large ones.
 */
#include "ops/conv/conv2d.h"

#include "core/host.h"

enum {
    MOST_WORK = 1 << 24, /* multiply-adds */
};

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_reason why = ptac_conv2d_reason(call);

    return why || ptac_conv2d_work(call->params) <= MOST_WORK ? why : PTAC_SHAPE;
}

/*
 * Where a tap of one axis meets position i of the result: a place among n of the other
 * image, or -1. Strides are 1 in what ptac_conv2d_reason() lets through.
 */
static int place(bool is_data, int i, int tap, int pad, int n)
{
    const int at = is_data ? i + pad - tap : i - pad + tap;

    return at >= 0 && at < n ? at : -1;
}

/* One output, or gradient of an input, before the epilogue, without its bias. */
static double sum_at(const ptac_call *call, int64_t n, int channel, int i, int j)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int channels = is_data ? p->out_channels : p->in_channels;
    const int h = is_data ? p->out_h : p->h, w = is_data ? p->out_w : p->w;
    const int64_t *of_x = call->inputs[0].strides, *of_w = call->inputs[1].strides;
    const float *image = (const float *)call->inputs[0].data + n * of_x[0];
    const float *weight =
        (const float *)call->inputs[1].data + channel * of_w[is_data ? 1 : 0];
    double sum = 0;

    for (int a = 0; a < p->kernel_h; a++) {
        const int row = place(is_data, i, a, p->pad_h, h);

        for (int b = 0; b < p->kernel_w && row >= 0; b++) {
            const int column = place(is_data, j, b, p->pad_w, w);

            for (int c = 0; c < channels && column >= 0; c++)
                sum += (double)image[c * of_x[1] + row * of_x[2] + column * of_x[3]] *
                       weight[c * of_w[is_data ? 0 : 1] + a * of_w[2] + b * of_w[3]];
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

    return p->with_relu && y < 0 ? 0 : y;
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
    const int64_t *of_y = call->outputs[0].strides;
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
        y[n * of_y[0] + k * of_y[1] + i / size * of_y[2] + j / size * of_y[3]] =
            largest;
    }
}

static void weight_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const float *x = call->inputs[0].data, *grad = call->inputs[1].data;
    const int64_t *of_x = call->inputs[0].strides, *of_y = call->inputs[1].strides;
    const int64_t *of_w = call->outputs[0].strides;
    float *grad_w = call->outputs[0].data;

    for (int64_t at = begin; at < end; at++) {
        const int b = (int)(at % p->kernel_w);
        const int a = (int)(at / p->kernel_w % p->kernel_h);
        const int64_t plane = at / p->kernel_w / p->kernel_h;
        const int64_t c = plane % p->in_channels, k = plane / p->in_channels;
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++) {
            const float *image = x + n * of_x[0] + c * of_x[1];
            const float *grads = grad + n * of_y[0] + k * of_y[1];

            for (int i = 0; i < p->out_h; i++) {
                const int row = place(false, i, a, p->pad_h, p->h);

                for (int j = 0; j < p->out_w && row >= 0; j++) {
                    const int column = place(false, j, b, p->pad_w, p->w);

                    if (column >= 0)
                        sum += (double)image[row * of_x[2] + column * of_x[3]] *
                               grads[i * of_y[2] + j * of_y[3]];
                }
            }
        }
        grad_w[k * of_w[0] + c * of_w[1] + a * of_w[2] + b * of_w[3]] = (float)sum;
    }
}

static void sum_bias_gradients(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const float *grad = call->inputs[1].data;
    const int64_t *of_y = call->inputs[1].strides;

    for (int k = 0; k < p->out_channels; k++) {
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++)
            for (int64_t i = 0; i < p->out_h; i++)
                for (int64_t j = 0; j < p->out_w; j++)
                    sum += grad[n * of_y[0] + k * of_y[1] + i * of_y[2] + j * of_y[3]];
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
