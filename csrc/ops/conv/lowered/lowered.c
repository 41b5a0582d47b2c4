/*
 * lowered.c - which convolutions are lowered, and image by image what they are made of.
 */
#include "ops/conv/lowered/lowered.h"

#include "core/cpu.h"
#include "core/host.h"
#include "core/scratch.h"

enum {
    MOST_PLACES = 1024,       /* of an image, that tables were measured with */
    BATCH_PLACES = 256,       /* likewise, where several images pay */
    LOWERED_FLOATS = 1 << 22, /* of a matrix of columns, at most */
    LOWERED_COPIES = 1 << 15, /* floats that are worth a thread */
};

static ptac_lowered lowered_of(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_taps = (int64_t)p->kernel_d * p->kernel_h * p->kernel_w;
    const int64_t n_channels = p->in_channels / p->groups;

    return (ptac_lowered){
        .along =
            {
                {p->d, p->out_d, p->kernel_d, p->stride_d, p->pad_d, p->dilation_d},
                {p->h, p->out_h, p->kernel_h, p->stride_h, p->pad_h, p->dilation_h},
                {p->w, p->out_w, p->kernel_w, p->stride_w, p->pad_w, p->dilation_w},
            },
        .n_taps = n_taps,
        .n_channels = n_channels,
        .pixel = p->in_channels,
        .product =
            {
                .n_rows = p->out_channels / p->groups,
                .n_terms = n_channels * n_taps,
                .n_places = (int64_t)p->out_d * p->out_h * p->out_w,
                .weight_row = n_channels * n_taps,
                .most_odd = PTAC_MOST_ODD,
                .least = ptac_act_least(p->act),
                .most = ptac_act_most(p->act),
            },
    };
}

/* Whether columns are the image's own memory. */
static bool is_image(const ptac_lowered *l)
{
    for (int i = 0; i < PTAC_LOWERED_AXES; i++)
        if (l->along[i].n_taps != 1 || l->along[i].stride != 1 || l->along[i].pad != 0)
            return false;
    return true;
}

ptac_reason ptac_lowered_accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const ptac_lowered l = lowered_of(call);

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->channels_last ? !ptac_view_is_channels_last(&call->inputs[0]) ||
                               !ptac_view_is_channels_last(&call->inputs[1])
                         : !ptac_view_is_contiguous(&call->inputs[0]) ||
                               !ptac_view_is_contiguous(&call->inputs[1]))
        return PTAC_LAYOUT;
    if (p->result != PTAC_CONV_FORWARD || p->with_pool ||
        l.product.n_places > LOWERED_FLOATS / l.product.n_terms)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* ATen does these image by image, so that a batch takes as many times an image's. */
static bool is_by_images(const ptac_call *call, const ptac_lowered *l)
{
    enum { LEAST_OF_ONEDNN = 16 };
    const ptac_conv2d *p = call->params;

    return p->n == 1 || (call->n_threads == 1 && p->n < LEAST_OF_ONEDNN &&
                         is_image(l) && l->product.n_places <= BATCH_PLACES);
}

bool ptac_lowered_pays(const ptac_call *call)
{
    enum {
        LEAST_ROWS = 64,
        LEAST_ROWS_OF_LAST = 128,
        LEAST_LAST = 128,
        MOST_FEWER = 4
    };
    const ptac_conv2d *p = call->params;
    const ptac_lowered l = lowered_of(call);
    const ptac_panels *product = &l.product;

    if (product->n_places == 1 && is_image(&l))
        return !p->channels_last && p->n <= MOST_PLACES &&
               (p->n == 1 || product->n_terms <= MOST_FEWER * product->n_rows);
    if (!is_by_images(call, &l) || product->n_places <= PTAC_MOST_ODD ||
        (product->n_places > MOST_PLACES && !ptac_cpu_is_amd()))
        return false;
    return p->channels_last
               ? product->n_rows >= LEAST_ROWS_OF_LAST && l.n_channels >= LEAST_LAST
               : product->n_rows >= LEAST_ROWS;
}

/* Of larger images columns leave the caches before all rows have met them. */
bool ptac_lowered_batch_pays(const ptac_call *call)
{
    enum { LEAST_ROWS = 48 };
    const ptac_conv2d *p = call->params;
    const ptac_lowered l = lowered_of(call);

    return p->n > 1 && !p->channels_last && l.product.n_rows >= LEAST_ROWS &&
           l.product.n_places <= BATCH_PLACES && l.product.n_places > PTAC_MOST_ODD;
}

/* A group of an image, and where its results lie. */
static void find(const ptac_call *call, int group, int64_t image, ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t first = group * l->product.n_rows;
    const int64_t n_pixels = (int64_t)p->d * p->h * p->w;
    const float *shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;

    l->image = (const float *)call->inputs[0].data + image * p->in_channels * n_pixels +
               group * l->n_channels * (p->channels_last ? 1 : n_pixels);
    l->product.weight =
        (const float *)call->inputs[1].data + first * l->product.n_terms;
    l->product.scale = scale ? scale + first : NULL;
    l->product.shift = shift ? shift + first : NULL;
    l->product.y = (float *)call->outputs[0].data +
                   image * p->out_channels * l->product.n_places +
                   first * (p->channels_last ? 1 : l->product.n_places);
}

/* What a convolution works in; NULL: columns are the image, results lie in y. */
typedef struct copies {
    float *columns, *results;
} copies;

static void run_one(const ptac_call *call, const ptac_lowered_way *way,
                    const copies *to, ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t copy = l->n_taps * l->product.n_places;
    float *y = l->product.y;

    l->columns = to->columns;
    l->product.columns = to->columns ? to->columns : l->image;
    if (to->results)
        l->product.y = to->results;
    if (to->columns)
        ptac_parallel_for(0, l->n_channels, LOWERED_COPIES / copy + 1,
                          p->channels_last ? way->lower_last : way->lower, l);
    way->product->multiply(&l->product);
    if (to->results)
        way->product->turn(&(ptac_turned){
            .from = to->results,
            .from_row = l->product.n_places,
            .n_rows = l->product.n_rows,
            .n_columns = l->product.n_places,
            .to = y,
            .to_row = p->out_channels,
        });
}

/* Images, each with its groups; any thread does any. */
typedef struct images {
    const ptac_call *call;
    const ptac_lowered_way *way;
    ptac_status status;
} images;

static void run_images(int64_t begin, int64_t end, void *context)
{
    images *all = context;
    const ptac_call *call = all->call;
    const ptac_conv2d *p = call->params;
    ptac_lowered l = lowered_of(call);
    const int64_t n_columns = is_image(&l) && !p->channels_last ? 0 : l.product.n_terms;
    const int64_t n_results = p->channels_last ? l.product.n_rows : 0;
    const int64_t n = (n_columns + n_results) * l.product.n_places;
    float *scratch = NULL;
    copies to = {NULL, NULL};

    if (n > 0) {
        scratch = ptac_scratch_take(sizeof *scratch * (size_t)n);
        if (!scratch) {
            __atomic_store_n(&all->status, PTAC_NO_MEMORY, __ATOMIC_RELAXED);
            return;
        }
        to.columns = scratch;
        to.results = n_results ? scratch + n_columns * l.product.n_places : NULL;
    }
    for (int64_t image = begin; image < end; image++)
        for (int group = 0; group < p->groups; group++) {
            find(call, group, image, &l);
            run_one(call, all->way, &to, &l);
        }
    ptac_scratch_give(scratch);
}

/* Threads share images where each has one, and else the work of each image. */
ptac_status ptac_lowered_run(const ptac_call *call, const ptac_lowered_way *way)
{
    const ptac_conv2d *p = call->params;
    images all = {call, way, PTAC_OK};

    ptac_parallel_for(0, p->n, p->n < call->n_threads ? p->n : 1, run_images, &all);
    return all.status;
}
