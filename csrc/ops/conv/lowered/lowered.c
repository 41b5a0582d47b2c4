/*
 * lowered.c - convolutions of few places as products of the weights, read as they lie,
 * and of a matrix of columns.
 *
 * A column is what a place meets of its image, [channel, tap]; K. Chellapilla, S. Puri
 * and P. Simard, High Performance Convolutional Neural Networks for Document
 * Processing, 2006. Of a kernel of 1x1 the image is that matrix. Where places are few
 * and weights many this reads each weight once, which libraries first put into an order
 * of theirs. The products are those of ops/product, whose order of terms does not
 * depend on threads or on other images.
 */
#include "core/host.h"
#include "core/scratch.h"
#include "ops/conv/conv2d.h"
#include "ops/product/product.h"

#include <string.h>

enum {
    LOWERED_PLACES = 1024,    /* of all images, at most */
    LOWERED_FLOATS = 1 << 22, /* of a matrix of columns, at most */
    LOWERED_COPIES = 1 << 15, /* floats that are worth a thread */
    N_AXES = 3,
};

/* What a place of one axis meets: element place * stride - pad + tap * dilation. */
typedef struct axis {
    int n, n_places, n_taps, stride, pad, dilation;
} axis;

typedef struct lowering {
    axis along[N_AXES]; /* depth, rows, columns */
    int64_t n_places, n_taps;
    const float *image; /* [channels, d, h, w] */
    float *columns;     /* [channels, taps, places] */
} lowering;

static lowering lowering_of(const ptac_conv2d *p)
{
    return (lowering){
        .along =
            {
                {p->d, p->out_d, p->kernel_d, p->stride_d, p->pad_d, p->dilation_d},
                {p->h, p->out_h, p->kernel_h, p->stride_h, p->pad_h, p->dilation_h},
                {p->w, p->out_w, p->kernel_w, p->stride_w, p->pad_w, p->dilation_w},
            },
        .n_places = (int64_t)p->out_d * p->out_h * p->out_w,
        .n_taps = (int64_t)p->kernel_d * p->kernel_h * p->kernel_w,
    };
}

/* Whether columns are the image's own memory. */
static bool is_image(const lowering *l)
{
    for (int i = 0; i < N_AXES; i++)
        if (l->along[i].n_taps != 1 || l->along[i].stride != 1 || l->along[i].pad != 0)
            return false;
    return true;
}

static ptac_reason accepts_lowered(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const lowering l = lowering_of(p);

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->channels_last || !ptac_view_is_contiguous(&call->inputs[0]) ||
        !ptac_view_is_contiguous(&call->inputs[1]))
        return PTAC_LAYOUT;
    if (p->result != PTAC_CONV_FORWARD || p->with_pool ||
        p->n * l.n_places > LOWERED_PLACES ||
        l.n_taps * l.n_places > LOWERED_FLOATS / (p->in_channels / p->groups))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* The places [first, end) whose tap lies within the image. */
static void places_within(const axis *a, int tap, int *first, int *end)
{
    const int64_t lead = (int64_t)a->pad - (int64_t)tap * a->dilation;
    const int64_t before = lead > 0 ? ptac_parts(lead, a->stride) : 0;
    const int64_t last = a->n - 1 + lead;
    const int64_t until = last < 0 ? 0 : last / a->stride + 1;

    *first = (int)ptac_least(before, a->n_places);
    *end = (int)ptac_least(until, a->n_places);
    if (*end < *first)
        *end = *first;
}

static int element_of(const axis *a, int tap, int place)
{
    return place * a->stride - a->pad + tap * a->dilation;
}

/* What the places of one row meet by a tap of the columns. */
static void lower_row(const axis *a, int tap, const float *row, float *to)
{
    int first, end;

    places_within(a, tap, &first, &end);
    for (int i = 0; i < first; i++)
        to[i] = 0;
    if (first < end) {
        const float *from = row + element_of(a, tap, first);

        for (int i = first; i < end; i++, from += a->stride)
            to[i] = *from;
    }
    for (int i = end; i < a->n_places; i++)
        to[i] = 0;
}

/*
 * The same of all rows of a plane at once, which are as long as rows of the image: what
 * places meet lies side by side, but for those that meet the padding.
 */
static void lower_shifted(const lowering *l, int row_tap, int tap, const float *plane,
                          float *to)
{
    const axis *rows = &l->along[1], *a = &l->along[2];
    int first_row, end_row, first, end;

    places_within(rows, row_tap, &first_row, &end_row);
    places_within(a, tap, &first, &end);
    memset(to, 0, sizeof *to * (size_t)(rows->n_places * a->n_places));
    if (first_row >= end_row || first >= end)
        return;

    const int64_t begin = (int64_t)first_row * a->n + first;
    const int64_t n = (int64_t)(end_row - 1) * a->n + end - begin;
    const float *from = plane + (int64_t)element_of(rows, row_tap, first_row) * a->n +
                        element_of(a, tap, first);

    memcpy(to + begin, from, sizeof *to * (size_t)n);
    for (int i = first_row; i < end_row; i++) {
        float *row = to + (int64_t)i * a->n;

        for (int j = 0; j < first; j++)
            row[j] = 0;
        for (int j = end; j < a->n; j++)
            row[j] = 0;
    }
}

static void lower_plane(const lowering *l, int row_tap, int tap, const float *plane,
                        float *to)
{
    const axis *rows = &l->along[1], *a = &l->along[2];

    if (rows->stride == 1 && a->stride == 1 && a->n_places == a->n) {
        lower_shifted(l, row_tap, tap, plane, to);
        return;
    }
    for (int i = 0; i < rows->n_places; i++, to += a->n_places) {
        const int row = element_of(rows, row_tap, i);

        if (row >= 0 && row < rows->n)
            lower_row(a, tap, plane + (int64_t)row * a->n, to);
        else
            memset(to, 0, sizeof *to * (size_t)a->n_places);
    }
}

/* A channel by a tap, [places]. */
static void lower_tap(const lowering *l, int64_t tap, const float *channel, float *to)
{
    const axis *planes = &l->along[0], *rows = &l->along[1], *a = &l->along[2];
    const int64_t n_places = (int64_t)rows->n_places * a->n_places;
    const int at = (int)(tap % a->n_taps),
              row_at = (int)(tap / a->n_taps % rows->n_taps);
    const int plane_at = (int)(tap / a->n_taps / rows->n_taps);

    for (int i = 0; i < planes->n_places; i++, to += n_places) {
        const int plane = element_of(planes, plane_at, i);

        if (plane >= 0 && plane < planes->n)
            lower_plane(l, row_at, at, channel + (int64_t)plane * rows->n * a->n, to);
        else
            memset(to, 0, sizeof *to * (size_t)n_places);
    }
}

static void lower_channels(int64_t begin, int64_t end, void *context)
{
    const lowering *l = context;
    const int64_t channel = (int64_t)l->along[0].n * l->along[1].n * l->along[2].n;

    for (int64_t i = begin; i < end; i++)
        for (int64_t tap = 0; tap < l->n_taps; tap++)
            lower_tap(l, tap, l->image + i * channel,
                      l->columns + (i * l->n_taps + tap) * l->n_places);
}

/* A row of results: scaled, shifted, bounded. */
static void finish(const ptac_call *call, int64_t row, float *y, int64_t n)
{
    const ptac_conv2d *p = call->params;
    const float *shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    const float by = scale ? scale[row] : 1, add = shift ? shift[row] : 0;
    const float least = ptac_act_least(p->act), most = ptac_act_most(p->act);

    for (int64_t i = 0; i < n; i++) {
        const float sum = y[i] * by + add;
        const float bounded = sum < least ? least : sum; /* NaN stays */

        y[i] = bounded > most ? most : bounded;
    }
}

/* A group of an image, whose columns there are. */
static ptac_status multiply(const ptac_call *call, const ptac_product_way *way,
                            const lowering *l, int group, float *y)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_terms = p->in_channels / p->groups * l->n_taps;
    const int64_t n_rows = p->out_channels / p->groups;
    const ptac_product product = {
        .m = n_rows,
        .n = l->n_places,
        .k = n_terms,
        .a = (const float *)call->inputs[1].data + group * n_rows * n_terms,
        .b = l->columns,
        .a_row = n_terms,
        .a_term = 1,
        .b_term = l->n_places,
        .b_column = 1,
        .alpha = 1,
        .beta = 1,
        .y = y,
        .y_row = l->n_places,
    };
    const ptac_status status = way->run(&product);

    if (!status && (call->n_inputs > 2 || p->act != PTAC_ACT_NONE))
        for (int64_t i = 0; i < n_rows; i++)
            finish(call, group * n_rows + i, y + i * l->n_places, l->n_places);
    return status;
}

static ptac_status run_lowered(const ptac_call *call, const ptac_product_way *way)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_channels = p->in_channels / p->groups;
    const int64_t source = (int64_t)p->d * p->h * p->w * n_channels;
    lowering l = lowering_of(p);
    const int64_t result = l.n_places * (p->out_channels / p->groups);
    const int64_t copy = l.n_taps * l.n_places;
    const bool is_whole = is_image(&l);
    float *scratch = NULL;
    ptac_status status = PTAC_OK;

    if (!is_whole) {
        scratch = ptac_scratch_take(sizeof *scratch * (size_t)(n_channels * copy));
        if (!scratch)
            return PTAC_NO_MEMORY;
    }
    for (int64_t i = 0; i < p->n * p->groups && !status; i++) {
        l.image = (const float *)call->inputs[0].data + i * source;
        l.columns = is_whole ? (float *)l.image : scratch;
        if (!is_whole)
            ptac_parallel_for(0, n_channels, LOWERED_COPIES / copy + 1, lower_channels,
                              &l);
        status = multiply(call, way, &l, (int)(i % p->groups),
                          (float *)call->outputs[0].data + i * result);
    }
    ptac_scratch_give(scratch);
    return status ? PTAC_NO_MEMORY : PTAC_OK; /* products ask for some, too */
}

#if defined(__x86_64__)
static ptac_status run_avx2(const ptac_call *call)
{
    return run_lowered(call, &ptac_products_avx2[PTAC_PRODUCT_PACKED]);
}

static ptac_status run_avx512(const ptac_call *call)
{
    return run_lowered(call, &ptac_products_avx512[PTAC_PRODUCT_PACKED]);
}

PTAC_ROW(CONV2D, "lowered_avx2", PTAC_CLOSE, PTAC_CPU_AVX2, accepts_lowered, run_avx2,
         .spreads = true)
PTAC_ROW(CONV2D, "lowered_avx512", PTAC_CLOSE, PTAC_CPU_AVX512, accepts_lowered,
         run_avx512, .spreads = true)
#endif
