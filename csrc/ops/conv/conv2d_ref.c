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
    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (ptac_conv2d_reason(call))
        return ptac_conv2d_reason(call);
    return ptac_conv2d_work(call->params) <= MOST_WORK ? PTAC_TAKE : PTAC_SHAPE;
}

/* Taps [*first, *last) of an output's window that lie inside the image. */
static void clip(int start, int kernel, int size, int *first, int *last)
{
    *first = start < 0 ? -start : 0;
    *last = start + kernel > size ? size - start : kernel;
}

/* One output before the epilogue, without its bias. */
static double sum_at(const ptac_call *call, int64_t n, int k, int i, int j)
{
    const ptac_conv2d *p = call->params;
    const float *x = call->inputs[0].data, *w = call->inputs[1].data;
    const int top = i * p->stride_h - p->pad_h, left = j * p->stride_w - p->pad_w;
    double sum = 0;
    int a0, a1, b0, b1;

    clip(top, p->kernel_h, p->h, &a0, &a1);
    clip(left, p->kernel_w, p->w, &b0, &b1);
    for (int c = 0; c < p->in_channels; c++) {
        const float *image = x + (n * p->in_channels + c) * (int64_t)p->h * p->w;
        const float *taps =
            w + ((int64_t)k * p->in_channels + c) * p->kernel_h * p->kernel_w;

        for (int a = a0; a < a1; a++)
            for (int b = b0; b < b1; b++)
                sum += (double)image[(int64_t)(top + a) * p->w + left + b] *
                       taps[a * p->kernel_w + b];
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

/* Outputs [begin, end), counted along N, K, H, W. */
static void forward_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const int size = p->with_pool ? 2 : 1, h = p->out_h / size, w = p->out_w / size;
    float *y = call->outputs[0].data;

    for (int64_t at = begin; at < end; at++) {
        const int j = (int)(at % w) * size, i = (int)(at / w % h) * size;
        const int k = (int)(at / w / h % p->out_channels);
        const int64_t n = at / w / h / p->out_channels;
        float largest = output_at(call, n, k, i, j);

        for (int other = 1; other < size * size; other++) {
            const float next = output_at(call, n, k, i + other / 2, j + other % 2);

            if (!(next <= largest) && largest == largest)
                largest = next;
        }
        y[at] = largest;
    }
}

/* The output whose tap a touches position i of one axis, or -1. */
static int output_of(int i, int tap, int stride, int pad, int n_outputs)
{
    const int at = i + pad - tap;

    return at >= 0 && at % stride == 0 && at / stride < n_outputs ? at / stride : -1;
}

static void data_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const float *grad = call->inputs[0].data, *w = call->inputs[1].data;
    const float *bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    float *grad_x = call->outputs[0].data;
    const int64_t out_plane = (int64_t)p->out_h * p->out_w;

    for (int64_t at = begin; at < end; at++) {
        const int j = (int)(at % p->w), i = (int)(at / p->w % p->h);
        const int64_t plane = at / p->w / p->h;
        const int c = (int)(plane % p->in_channels);
        const float *image =
            grad + plane / p->in_channels * p->out_channels * out_plane;
        double sum = bias ? bias[c] : 0;

        for (int a = 0; a < p->kernel_h; a++) {
            const int row = output_of(i, a, p->stride_h, p->pad_h, p->out_h);

            for (int b = 0; b < p->kernel_w && row >= 0; b++) {
                const int column = output_of(j, b, p->stride_w, p->pad_w, p->out_w);

                for (int k = 0; k < p->out_channels && column >= 0; k++)
                    sum += (double)
                               image[k * out_plane + (int64_t)row * p->out_w + column] *
                           w[(((int64_t)k * p->in_channels + c) * p->kernel_h + a) *
                                 p->kernel_w +
                             b];
            }
        }
        grad_x[at] = (float)sum;
    }
}

static void weight_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const float *x = call->inputs[0].data, *grad = call->inputs[1].data;
    float *grad_w = call->outputs[0].data;

    for (int64_t at = begin; at < end; at++) {
        const int b = (int)(at % p->kernel_w);
        const int a = (int)(at / p->kernel_w % p->kernel_h);
        const int64_t plane = at / p->kernel_w / p->kernel_h;
        const int64_t c = plane % p->in_channels, k = plane / p->in_channels;
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++) {
            const float *image = x + (n * p->in_channels + c) * (int64_t)p->h * p->w;
            const float *grads =
                grad + (n * p->out_channels + k) * (int64_t)p->out_h * p->out_w;

            for (int i = 0; i < p->out_h; i++) {
                const int row = i * p->stride_h - p->pad_h + a;

                for (int j = 0; j < p->out_w && row >= 0 && row < p->h; j++) {
                    const int column = j * p->stride_w - p->pad_w + b;

                    if (column >= 0 && column < p->w)
                        sum += (double)image[(int64_t)row * p->w + column] *
                               grads[(int64_t)i * p->out_w + j];
                }
            }
        }
        grad_w[at] = (float)sum;
    }
}

static void sum_bias_gradients(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const float *grad = call->inputs[1].data;
    const int64_t plane = (int64_t)p->out_h * p->out_w;

    for (int k = 0; k < p->out_channels; k++) {
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++)
            for (int64_t i = 0; i < plane; i++)
                sum += grad[(n * p->out_channels + k) * plane + i];
        ((float *)call->outputs[1].data)[k] = (float)sum;
    }
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn points[] = {forward_points, data_points, weight_points};
    const ptac_conv2d *p = call->params;

    ptac_parallel_for(0, call->outputs[0].n_elements, 64, points[p->result],
                      (void *)call);
    if (p->result == PTAC_CONV_WEIGHT && call->n_outputs > 1)
        sum_bias_gradients(call);
    return PTAC_OK;
}

PTAC_ROW(CONV2D, "scalar", PTAC_CLOSE, 0, accepts, run)
PTAC_ROW(CONV2D_BACKWARD, "scalar", PTAC_CLOSE, 0, accepts, run)
