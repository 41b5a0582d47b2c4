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
    if (p->channels_last || !ptac_view_is_contiguous(&call->inputs[0]) ||
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
    const float *shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;

    l->image = (const float *)call->inputs[0].data + image * l->next_image +
               group * (l->next_image / p->groups);
    l->weight = (const float *)call->inputs[1].data + first * l->n_terms;
    l->scale = scale ? scale + first : NULL;
    l->shift = shift ? shift + first : NULL;
}

static float *result_of(const ptac_call *call, int group, int64_t image,
                        const ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_places = l->n_places / l->n_images;

    return (float *)call->outputs[0].data +
           (image * p->groups + group) * l->n_rows * n_places;
}

static void run_one(const ptac_lowered_way *way, const float *copies, ptac_lowered *l)
{
    const int64_t copy = l->n_taps * l->n_places;

    l->columns = copies ? (float *)copies : (float *)l->image;
    if (copies)
        ptac_parallel_for(0, l->n_channels, LOWERED_COPIES / copy + 1, way->lower, l);
    way->multiply(l);
}

/* [rows, images, places] of a group to where each image has them. */
static void part(const ptac_call *call, int group, const ptac_lowered *l)
{
    const int64_t n_places = l->n_places / l->n_images;

    for (int64_t image = 0; image < l->n_images; image++) {
        float *to = result_of(call, group, image, l);
        const float *from = l->y + image * n_places;

        for (int64_t i = 0; i < l->n_rows; i++, from += l->n_places, to += n_places)
            memcpy(to, from, sizeof *to * (size_t)n_places);
    }
}

static void run_joined(const ptac_call *call, const ptac_lowered_way *way,
                       float *scratch, ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;

    l->y = scratch;
    for (int group = 0; group < p->groups; group++) {
        find(call, group, 0, l);
        run_one(way, scratch + l->n_rows * l->n_places, l);
        part(call, group, l);
    }
}

static void run_each(const ptac_call *call, const ptac_lowered_way *way,
                     const float *scratch, ptac_lowered *l)
{
    const ptac_conv2d *p = call->params;

    for (int64_t image = 0; image < p->n; image++)
        for (int group = 0; group < p->groups; group++) {
            find(call, group, image, l);
            l->y = result_of(call, group, image, l);
            run_one(way, scratch, l);
        }
}

ptac_status ptac_lowered_run(const ptac_call *call, const ptac_lowered_way *way)
{
    const ptac_conv2d *p = call->params;
    ptac_lowered l = lowered_of(call);
    const bool is_joined = are_joined(call, way, &l);
    const bool is_whole = is_image(&l) && !is_joined;
    float *scratch = NULL;

    if (is_joined) {
        l.n_images = p->n;
        l.n_places *= p->n;
        l.most_odd = 0;
    }
    if (!is_whole) {
        const int64_t n = l.n_terms + (is_joined ? l.n_rows : 0);

        scratch = ptac_scratch_take(sizeof *scratch * (size_t)(n * l.n_places));
        if (!scratch)
            return PTAC_NO_MEMORY;
    }
    if (is_joined)
        run_joined(call, way, scratch, &l);
    else
        run_each(call, way, scratch, &l);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}
