/*
 * relu_max_pool2d_ref.c - max pooling of ReLU(x) and its gradient by their definitions,
 * and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/pool/relu_max/relu_max_pool2d.h"

#include <string.h>

PTAC_SHAPES(RELU_MAX_POOL2D, ptac_classify_elements, "any")
PTAC_SHAPES(RELU_MAX_POOL2D_BACKWARD, ptac_classify_elements, "any")

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_relu_max_pool2d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_F64)
        return PTAC_DTYPE;
    return ptac_relu_pool_has_codes(&p->window) ? PTAC_TAKE : PTAC_SHAPE;
}

/* An output of one channel: its plane's first element, and where its window begins. */
typedef struct output {
    int64_t plane, row, column;
} output;

static output output_of(const ptac_relu_max_pool2d *p, int64_t i)
{
    const ptac_image *image = &p->image;
    const int64_t channels = image->channels_last ? image->channels : 1;
    const int64_t pixel = i / channels, row = pixel / image->out_w;

    return (output){row / image->out_h * image->h * image->w * channels + i % channels,
                    row % image->out_h * p->window.h.stride - p->window.h.padding,
                    pixel % image->out_w * p->window.w.stride - p->window.w.padding};
}

/* Where a tap of this output lies; -1 outside of the image. */
static int64_t place_of(const ptac_relu_max_pool2d *p, const output *o, int64_t tap)
{
    const ptac_image *image = &p->image;
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t row = o->row + tap / w->kernel * h->dilation;
    const int64_t column = o->column + tap % w->kernel * w->dilation;

    if (row < 0 || row >= image->h || column < 0 || column >= image->w)
        return -1;
    return o->plane +
           (row * image->w + column) * (image->channels_last ? image->channels : 1);
}

#define DEFINE(type, suffix)                                                           \
    static void forward_##suffix(const ptac_call *call)                                \
    {                                                                                  \
        const ptac_relu_max_pool2d *p = call->params;                                  \
        const type *x = call->inputs[0].data;                                          \
        type *y = call->outputs[PTAC_RELU_POOL_Y].data;                                \
        uint8_t *taps = call->outputs[PTAC_RELU_POOL_TAPS].data;                       \
        const int64_t n_taps = p->window.h.kernel * p->window.w.kernel;                \
                                                                                       \
        for (int64_t i = 0; i < call->outputs[PTAC_RELU_POOL_Y].n_elements; i++) {     \
            const output o = output_of(p, i);                                          \
            uint8_t chosen = PTAC_POOL_NO_TAP;                                         \
                                                                                       \
            y[i] = 0;                                                                  \
            for (int64_t tap = 0; tap < n_taps; tap++) {                               \
                const int64_t at = place_of(p, &o, tap);                               \
                                                                                       \
                if (at >= 0 && (x[at] > y[i] || x[at] != x[at])) {                     \
                    y[i] = x[at];                                                      \
                    chosen = (uint8_t)tap;                                             \
                }                                                                      \
            }                                                                          \
            if (taps)                                                                  \
                taps[i] = chosen;                                                      \
        }                                                                              \
    }                                                                                  \
                                                                                       \
    static void backward_##suffix(const ptac_call *call)                               \
    {                                                                                  \
        const ptac_relu_max_pool2d *p = call->params;                                  \
        const type *grad = call->inputs[PTAC_RELU_POOL_GRAD].data;                     \
        const uint8_t *taps = call->inputs[PTAC_RELU_POOL_TAPS].data;                  \
        type *of_x = call->outputs[0].data;                                            \
                                                                                       \
        memset(of_x, 0, (size_t)call->outputs[0].n_elements * sizeof *of_x);           \
        for (int64_t i = 0; i < call->inputs[0].n_elements; i++) {                     \
            const output o = output_of(p, i);                                          \
                                                                                       \
            if (taps[i] != PTAC_POOL_NO_TAP)                                           \
                of_x[place_of(p, &o, taps[i])] += grad[i];                             \
        }                                                                              \
    }

DEFINE(float, f32)
DEFINE(double, f64)

static ptac_status run_forward(const ptac_call *call)
{
    (call->inputs[0].dtype == PTAC_F32 ? forward_f32 : forward_f64)(call);
    return PTAC_OK;
}

static ptac_status run_backward(const ptac_call *call)
{
    (call->inputs[0].dtype == PTAC_F32 ? backward_f32 : backward_f64)(call);
    return PTAC_OK;
}

PTAC_ROW(RELU_MAX_POOL2D, "scalar", PTAC_EXACT, 0, accepts, run_forward,
         .is_definition = true)
PTAC_ROW(RELU_MAX_POOL2D_BACKWARD, "scalar", PTAC_EXACT, 0, accepts, run_backward,
         .is_definition = true)
