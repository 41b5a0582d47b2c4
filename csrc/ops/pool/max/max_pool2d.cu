/*
 * max_pool2d.cu - max pooling with indices and its gradient, on CUDA. Bits are stock's.
 *
 * A thread has one output, or one input of the gradient, at a time; neighbours in
 * memory are neighbours in a warp.
 */
#include "device/cuda/kernel.h"
#include "ops/pool/max/max_pool2d_cuda.h"

/* Where an element of an image batch lies: its plane's first, its row and column. */
struct element {
    ptac_i64 plane;
    int row, column;
};

/* Element i of a batch of planes of height x width; planes are image planes apart. */
PTAC_DEVICE element element_of(const ptac_cuda_pool &p, ptac_i64 i, int height,
                               int width, ptac_i64 image)
{
    element at;

    if (p.channels_last) {
        const ptac_i64 pixel = i / p.channels, row = pixel / width;

        at.plane = row / height * image * p.channels + i % p.channels;
        at.row = (int)(row % height);
        at.column = (int)(pixel % width);
    } else {
        const ptac_i64 row = i / width;

        at.plane = row / height * image;
        at.row = (int)(row % height);
        at.column = (int)(i % width);
    }
    return at;
}

template <class T>
PTAC_DEVICE void forward(ptac_input<T> x, ptac_output<T> y,
                         ptac_output<ptac_i64> indices, const ptac_cuda_pool &p)
{
    const ptac_i64 step = p.channels_last ? p.channels : 1;

    for (ptac_i64 i = ptac_thread(); i < p.n_outputs; i += ptac_n_threads()) {
        const element at =
            element_of(p, i, p.out_height, p.out_width, (ptac_i64)p.height * p.width);
        const int row = at.row * p.h.stride - p.h.padding;
        const int column = at.column * p.w.stride - p.w.padding;
        int best = -1;
        T most = {};

        for (int h = 0; h < p.h.kernel; h++) {
            const int from = row + h * p.h.dilation;

            if (from < 0 || from >= p.height)
                continue;
            PTAC_AS_WRITTEN
            for (int w = 0; w < p.w.kernel; w++) {
                const int place = from * p.width + column + w * p.w.dilation;

                if (column + w * p.w.dilation < 0 ||
                    column + w * p.w.dilation >= p.width)
                    continue;

                const T tap = x[at.plane + place * step];

                if (best < 0 || ptac_real(tap) > ptac_real(most) ||
                    ptac_real(tap) != ptac_real(tap)) {
                    best = place;
                    most = tap;
                }
            }
        }
        y.put(i, most);
        indices.put(i, best);
    }
}

/* Outputs [first, last) of one axis whose windows may reach over a position. */
PTAC_DEVICE int first_output(const ptac_cuda_window &axis, int position)
{
    const int at = position + axis.padding,
              reach = axis.dilation * (axis.kernel - 1) + 1;

    return at < reach ? 0 : (at - reach) / axis.stride + 1;
}

PTAC_DEVICE int last_output(const ptac_cuda_window &axis, int position, int n_outputs)
{
    const int last = (position + axis.padding) / axis.stride + 1;

    return last < n_outputs ? last : n_outputs;
}

template <class T>
PTAC_DEVICE void backward(ptac_input<T> grad_y, ptac_input<ptac_i64> indices,
                          ptac_output<T> grad_x, const ptac_cuda_pool &p)
{
    const ptac_i64 step = p.channels_last ? p.channels : 1;

    for (ptac_i64 i = ptac_thread(); i < p.n_inputs; i += ptac_n_threads()) {
        const element at =
            element_of(p, i, p.height, p.width, (ptac_i64)p.out_height * p.out_width);
        const int place = at.row * p.width + at.column;
        const int rows = last_output(p.h, at.row, p.out_height);
        const int columns = last_output(p.w, at.column, p.out_width);
        decltype(ptac_real(T())) sum = 0; /* as stock, also of 16 bits */

        for (int row = first_output(p.h, at.row); row < rows; row++) {
            PTAC_AS_WRITTEN
            for (int column = first_output(p.w, at.column); column < columns;
                 column++) {
                const ptac_i64 from =
                    at.plane + ((ptac_i64)row * p.out_width + column) * step;

                if (indices[from] == place)
                    sum += ptac_real(grad_y[from]);
            }
        }
        grad_x.put(i, ptac_from<T>(sum));
    }
}

#define KERNELS(suffix, T)                                                             \
    PTAC_KERNEL(max_pool2d_##suffix, PTAC_POOL_THREADS, ptac_input<T> x,               \
                ptac_output<T> y, ptac_output<ptac_i64> indices, ptac_cuda_pool p)     \
    {                                                                                  \
        forward(x, y, indices, p);                                                     \
    }                                                                                  \
    PTAC_KERNEL(max_pool2d_backward_##suffix, PTAC_POOL_THREADS, ptac_input<T> grad_y, \
                ptac_input<ptac_i64> indices, ptac_output<T> grad_x, ptac_cuda_pool p) \
    {                                                                                  \
        backward(grad_y, indices, grad_x, p);                                          \
    }

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
