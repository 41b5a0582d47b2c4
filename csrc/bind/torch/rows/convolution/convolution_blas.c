/*
 * convolution_blas.c - 1x1 convolutions of batches as BLAS's products, image by image.
 *
 * An image [channels, pixels] is a factor as it lies. Stock, by oneDNN, brings images
 * into a layout of its own and back. Threads share images and call BLAS each for
 * itself, so that results do not depend on how many they are; gradients of weights are
 * added up in parts, of which each thread has one.
 */
#include "bind/torch/rows/gemm.h"
#include "core/host.h"
#include "core/scratch.h"
#include "ops/conv/conv2d.h"
#include "ops/conv/epilogue.h"

enum {
    MANY = 4, /* images a thread: those that others wait for are few then */
};

static int64_t places_of(const ptac_conv2d *p)
{
    return (int64_t)p->d * p->h * p->w;
}

static bool is_1x1(const ptac_conv2d *p)
{
    return p->kernel_d == 1 && p->kernel_h == 1 && p->kernel_w == 1 &&
           p->stride_d == 1 && p->stride_h == 1 && p->stride_w == 1 && p->pad_d == 0 &&
           p->pad_h == 0 && p->pad_w == 0;
}

/* NHWC alone. A gradient that has gaps is made NCHW where a row takes the call. */
static bool is_last(const ptac_view *view)
{
    return ptac_view_is_channels_last(view) && !ptac_view_is_contiguous(view);
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->channels_last || is_last(&call->inputs[0]) || is_last(&call->inputs[1]))
        return PTAC_LAYOUT;
    if (!is_1x1(p) || p->groups != 1 || p->with_pool || p->is_transposed ||
        (p->n % call->n_threads != 0 && p->n < MANY * call->n_threads))
        return PTAC_SHAPE;
    /* Stock's own choice then, of which convolutions lose what products may. */
    return ptac_products_are_lowered() ? PTAC_MODE : PTAC_TAKE;
}

/* Larger images of results BLAS writes at half its speed: the second cache is full. */
static bool pays(const ptac_call *call)
{
    enum { MOST_RESULTS = 1 << 19 };
    const ptac_conv2d *p = call->params;
    const int64_t n_results =
        p->result == PTAC_CONV_DATA ? p->in_channels : p->out_channels;

    return p->result == PTAC_CONV_WEIGHT || n_results * places_of(p) <= MOST_RESULTS;
}

/* Row by row. */
typedef struct matrix {
    const float *data;
    int64_t n_rows, n_columns;
} matrix;

static at_error borrow(const matrix *m, bool is_transposed, at_tensor *made)
{
    const int64_t n = m->n_columns;
    const int64_t sizes[2][2] = {{m->n_rows, n}, {n, m->n_rows}};
    const int64_t strides[2][2] = {{n, 1}, {1, n}};

    return T.aoti_torch_create_tensor_from_blob(
        (void *)m->data, 2, sizes[is_transposed], strides[is_transposed], 0,
        AT_DTYPE_F32, AT_DEVICE_CPU, 0, made);
}

/* y = a b, or y += a b, of which either may be transposed. */
typedef struct product {
    matrix a, b, y;
    bool of_a_transposed, of_b_transposed, adds;
} product;

static at_error multiply(const product *p)
{
    AT_OWNED at_tensor a = NULL, b = NULL, y = NULL;

    if (borrow(&p->a, p->of_a_transposed, &a) ||
        borrow(&p->b, p->of_b_transposed, &b) || borrow(&p->y, false, &y))
        return 1;
    return p->adds ? T.aoti_torch_cpu_addmm_out(y, y, a, b, 1, 1)
                   : T.aoti_torch_cpu_mm_out(y, a, b);
}

/* What threads do parts of. */
typedef struct job {
    const ptac_call *call;
    int64_t n_parts;
    float *partial; /* of the gradient of the weight: that of each part but the first */
    at_error failed;
} job;

static void fail(job *j)
{
    __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
}

static matrix image_of(const ptac_view *view, int64_t i, int64_t n_channels,
                       int64_t n_places)
{
    return (matrix){(const float *)view->data + i * n_channels * n_places, n_channels,
                    n_places};
}

static matrix weight_of(const ptac_conv2d *p, const float *data)
{
    return (matrix){data, p->out_channels, p->in_channels};
}

/* Image i of what comes out, forward or backward. */
static product product_of(const ptac_call *call, int64_t i)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int64_t n_in = p->in_channels, n_out = p->out_channels;
    const int64_t n_places = places_of(p);

    return (product){
        .a = weight_of(p, call->inputs[1].data),
        .b = image_of(&call->inputs[0], i, is_data ? n_out : n_in, n_places),
        .y = image_of(&call->outputs[0], i, is_data ? n_in : n_out, n_places),
        .of_a_transposed = is_data,
    };
}

static void bring_images(int64_t begin, int64_t end, void *context)
{
    job *j = context;
    const ptac_conv_epilogue epilogue = ptac_conv_epilogue_of(j->call);

    for (int64_t i = begin; i < end; i++) {
        const product one = product_of(j->call, i);

        if (multiply(&one)) {
            fail(j);
            return;
        }
        if (epilogue)
            epilogue(j->call, (float *)one.y.data);
    }
}

/* Parts [begin, end) of the gradient of the weight, each of some images. */
static void weigh(int64_t begin, int64_t end, void *context)
{
    job *j = context;
    const ptac_call *call = j->call;
    const ptac_conv2d *p = call->params;
    const int64_t n_places = places_of(p);
    const int64_t n_weights = (int64_t)p->out_channels * p->in_channels;

    for (int64_t part = begin; part < end; part++) {
        const int64_t first = p->n * part / j->n_parts;
        const int64_t last = p->n * (part + 1) / j->n_parts;
        const float *sum =
            part ? j->partial + (part - 1) * n_weights : call->outputs[0].data;

        for (int64_t i = first; i < last; i++) {
            const product one = {
                .a = image_of(&call->inputs[1], i, p->out_channels, n_places),
                .b = image_of(&call->inputs[0], i, p->in_channels, n_places),
                .y = weight_of(p, sum),
                .of_b_transposed = true,
                .adds = i > first,
            };

            if (multiply(&one)) {
                fail(j);
                return;
            }
        }
    }
}

static void add_parts(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    float *sum = j->call->outputs[0].data;
    const int64_t n_weights = j->call->outputs[0].n_elements;

    for (int64_t part = 1; part < j->n_parts; part++) {
        const float *more = j->partial + (part - 1) * n_weights;

        for (int64_t i = begin; i < end; i++)
            sum[i] += more[i];
    }
}

static ptac_status run(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    job j = {.call = call};

    ptac_parallel_for(0, p->n, 1, bring_images, &j);
    return j.failed ? PTAC_FAILED : PTAC_OK;
}

static ptac_status run_weight(const ptac_call *call)
{
    enum { ELEMENTS = 1 << 14 };
    const ptac_conv2d *p = call->params;
    const int64_t n_weights = call->outputs[0].n_elements;
    job j = {.call = call, .n_parts = ptac_least(p->n, call->n_threads)};

    if (j.n_parts > 1) {
        j.partial =
            ptac_scratch_take(sizeof(float) * (size_t)((j.n_parts - 1) * n_weights));
        if (!j.partial)
            return PTAC_NO_MEMORY;
    }
    ptac_parallel_for(0, j.n_parts, 1, weigh, &j);
    if (!j.failed && j.n_parts > 1)
        ptac_parallel_for(0, n_weights, ELEMENTS, add_parts, &j);
    ptac_scratch_give(j.partial);
    if (j.failed)
        return PTAC_FAILED;
    if (call->n_outputs > 1)
        ptac_conv_bias_gradient(&call->inputs[1], call->outputs[1].data);
    return PTAC_OK;
}

static ptac_status run_gradient(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->result == PTAC_CONV_WEIGHT ? run_weight(call) : run(call);
}

PTAC_ROW(CONV2D, "blas", PTAC_CLOSE, 0, accepts, run, .pays = pays)
PTAC_ROW(CONV2D_BACKWARD, "blas", PTAC_CLOSE, 0, accepts, run_gradient, .pays = pays)
