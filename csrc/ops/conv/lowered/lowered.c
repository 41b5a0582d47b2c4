/*
 * lowered.c - which convolutions are lowered, and image by image what they are made of.
 */
#include "ops/conv/lowered/lowered.h"

#include "core/host.h"
#include "core/scratch.h"

#include <string.h>

enum {
    LOWERED_PLACES = 1024,    /* of all images, at most */
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
        .n_places = (int64_t)p->out_d * p->out_h * p->out_w,
        .n_images = 1,
        .n_taps = n_taps,
        .n_channels = n_channels,
        .next_image = (int64_t)p->in_channels * p->d * p->h * p->w,
        .pixel = p->in_channels,
        .most_odd = PTAC_LOWERED_ODD,
        .n_rows = p->out_channels / p->groups,
        .n_terms = n_channels * n_taps,
        .least = ptac_act_least(p->act),
        .most = ptac_act_most(p->act),
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
        p->n * l.n_places > LOWERED_PLACES || l.n_places > LOWERED_FLOATS / l.n_terms)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/*
 * Images of few places are computed together, if no place is computed alone in one:
 * results are those of an image by itself.
 */
static bool are_joined(const ptac_call *call, const ptac_lowered_way *way,
                       const ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_left = l->n_places % way->n_lanes;

    return p->n > 1 && l->n_places < way->n_panel &&
           (n_left == 0 || n_left > PTAC_LOWERED_ODD);
}

/* Of this group, images from this one on. */
static void find(const ptac_call *call, int group, int64_t image, ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t first = group * l->n_rows;
    const int64_t next_group =
        p->channels_last ? l->n_channels : l->next_image / p->groups;
    const float *shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;

    l->image = (const float *)call->inputs[0].data + image * l->next_image +
               group * next_group;
    l->weight = (const float *)call->inputs[1].data + first * l->n_terms;
    l->scale = scale ? scale + first : NULL;
    l->shift = shift ? shift + first : NULL;
}

/* Where this group of an image has its results. */
static float *result_of(const ptac_call *call, int group, int64_t image,
                        const ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_places = l->n_places / l->n_images;

    return (float *)call->outputs[0].data + image * p->out_channels * n_places +
           group * l->n_rows * (p->channels_last ? 1 : n_places);
}

/* [rows, images, places] of a group to where each image has them. */
static void part(const ptac_call *call, const ptac_lowered_way *way, int group,
                 int64_t first, const ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_places = l->n_places / l->n_images;

    for (int64_t image = 0; image < l->n_images; image++) {
        float *to = result_of(call, group, first + image, l);
        const float *from = l->y + image * n_places;

        if (p->channels_last)
            way->turn(l, from, to, p->out_channels);
        else
            for (int64_t i = 0; i < l->n_rows; i++, from += l->n_places, to += n_places)
                memcpy(to, from, sizeof *to * (size_t)n_places);
    }
}

/* What a convolution works in: columns, and results before they are parted. */
typedef struct copies {
    float *columns, *results; /* NULL: none are made */
} copies;

/* A group of images from this one on. */
static void run_one(const ptac_call *call, const ptac_lowered_way *way, int group,
                    int64_t image, const copies *to, ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t copy = l->n_taps * l->n_places;

    find(call, group, image, l);
    l->columns = to->columns ? to->columns : (float *)l->image;
    l->y = to->results ? to->results : result_of(call, group, image, l);
    if (to->columns)
        ptac_parallel_for(0, l->n_channels, LOWERED_COPIES / copy + 1,
                          p->channels_last ? way->lower_last : way->lower, l);
    way->multiply(l);
    if (to->results)
        part(call, way, group, image, l);
}

ptac_status ptac_lowered_run(const ptac_call *call, const ptac_lowered_way *way)
{
    const ptac_conv2d *p = call->params;
    ptac_lowered l = lowered_of(call);
    const bool is_joined = are_joined(call, way, &l);
    const bool has_columns = !is_image(&l) || is_joined || p->channels_last;
    const bool has_results = is_joined || p->channels_last;
    float *scratch = NULL;
    copies to = {NULL, NULL};

    if (is_joined) {
        l.n_images = p->n;
        l.n_places *= p->n;
        l.most_odd = 0;
    }
    if (has_columns) {
        const int64_t n = l.n_terms + (has_results ? l.n_rows : 0);

        scratch = ptac_scratch_take(sizeof *scratch * (size_t)(n * l.n_places));
        if (!scratch)
            return PTAC_NO_MEMORY;
        to.columns = scratch;
        to.results = has_results ? scratch + l.n_terms * l.n_places : NULL;
    }
    for (int64_t image = 0; image < p->n; image += l.n_images)
        for (int group = 0; group < p->groups; group++)
            run_one(call, way, group, image, &to, &l);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}
