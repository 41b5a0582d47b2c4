/*
 * depthwise_ref.c - depthwise convolution by its definition, summed in double.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them. They are
 * there for small calls: nobody waits for large ones.
 */
#include "core/host.h"
#include "ops/conv/depthwise/depthwise.h"
#include "ops/linear/bias_act.h"

enum {
    MOST_WORK = 1 << 24, /* multiply-adds */
};

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_depthwise *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    return ptac_depthwise_work(p) <= MOST_WORK ? PTAC_TAKE : PTAC_SHAPE;
}

/* Where a pixel of channel c lies in a batch of images of h x w. */
static int64_t at(const ptac_depthwise *p, int64_t n, int c, int i, int j, int h, int w)
{
    return p->channels_last ? ((n * h + i) * w + j) * p->channels + c
                            : ((n * p->channels + c) * h + i) * (int64_t)w + j;
}

/*
 * Where a tap of one axis meets position i of the result: a place among n of the other
 * image, or -1.
 */
static int place(bool is_data, int i, int tap, int stride, int pad, int n)
{
    const int start = is_data ? i + pad - tap : i * stride - pad + tap;
    const int found = is_data ? start / stride : start;

    return start >= 0 && found < n && (!is_data || start % stride == 0) ? found : -1;
}

static double sum_at(const ptac_call *call, int64_t n, int c, int i, int j)
{
    const ptac_depthwise *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int h = is_data ? p->out_h : p->h, w = is_data ? p->out_w : p->w;
    const float *image = call->inputs[0].data;
    const float *weight =
        (const float *)call->inputs[1].data + (int64_t)c * p->kernel_h * p->kernel_w;
    double sum = 0;

    for (int a = 0; a < p->kernel_h; a++) {
        const int row = place(is_data, i, a * p->dilation_h, p->stride_h, p->pad_h, h);

        for (int b = 0; b < p->kernel_w && row >= 0; b++) {
            const int column =
                place(is_data, j, b * p->dilation_w, p->stride_w, p->pad_w, w);

            if (column >= 0)
                sum += (double)image[at(p, n, c, row, column, h, w)] *
                       weight[a * p->kernel_w + b];
        }
    }
    return sum;
}

/* Outputs, or gradients of inputs, [begin, end), counted along N, C, H, W. */
static void image_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_depthwise *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int h = is_data ? p->h : p->out_h, w = is_data ? p->w : p->out_w;
    const float *bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    float *y = call->outputs[0].data;

    for (int64_t point = begin; point < end; point++) {
        const int j = (int)(point % w), i = (int)(point / w % h);
        const int c = (int)(point / w / h % p->channels);
        const int64_t n = point / w / h / p->channels;
        const double sum = sum_at(call, n, c, i, j);
        const double result = (scale ? sum * scale[c] : sum) + (bias ? bias[c] : 0);

        y[at(p, n, c, i, j, h, w)] = (float)ptac_act_value(result, p->act);
    }
}

static void weight_points(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_depthwise *p = call->params;
    const float *x = call->inputs[0].data, *grad = call->inputs[1].data;

    for (int64_t point = begin; point < end; point++) {
        const int b = (int)(point % p->kernel_w);
        const int a = (int)(point / p->kernel_w % p->kernel_h);
        const int c = (int)(point / p->kernel_w / p->kernel_h);
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++) {
            for (int i = 0; i < p->out_h; i++) {
                const int row =
                    place(false, i, a * p->dilation_h, p->stride_h, p->pad_h, p->h);

                for (int j = 0; j < p->out_w && row >= 0; j++) {
                    const int column =
                        place(false, j, b * p->dilation_w, p->stride_w, p->pad_w, p->w);

                    if (column >= 0)
                        sum += (double)x[at(p, n, c, row, column, p->h, p->w)] *
                               grad[at(p, n, c, i, j, p->out_h, p->out_w)];
                }
            }
        }
        ((float *)call->outputs[0].data)[point] = (float)sum;
    }
}

static void sum_bias_gradients(const ptac_call *call)
{
    const ptac_depthwise *p = call->params;
    const float *grad = call->inputs[1].data;

    for (int c = 0; c < p->channels; c++) {
        double sum = 0;

        for (int64_t n = 0; n < p->n; n++)
            for (int i = 0; i < p->out_h; i++)
                for (int j = 0; j < p->out_w; j++)
                    sum += grad[at(p, n, c, i, j, p->out_h, p->out_w)];
        ((float *)call->outputs[1].data)[c] = (float)sum;
    }
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn points[] = {image_points, image_points, weight_points};
    const ptac_depthwise *p = call->params;

    ptac_parallel_for(0, call->outputs[0].n_elements, 64, points[p->result],
                      (void *)call);
    if (p->result == PTAC_CONV_WEIGHT && call->n_outputs > 1)
        sum_bias_gradients(call);
    return PTAC_OK;
}

PTAC_ROW(DEPTHWISE_CONV2D, "scalar", PTAC_CLOSE, 0, accepts, run)
PTAC_ROW(DEPTHWISE_CONV2D_BACKWARD, "scalar", PTAC_CLOSE, 0, accepts, run)
