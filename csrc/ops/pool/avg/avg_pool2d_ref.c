/*
 * avg_pool2d_ref.c - average pooling and its gradient by their definition, and their
 * shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/pool/avg/avg_pool2d.h"

#include "ops/math/elements.h"

/* Planes in NCHW, channels in NHWC, that go together: their sums do not wait. */
enum {
    GROUP = 8,
};

/* Element offsets: of the group in x and y, between planes, and between pixels. */
typedef struct planes {
    int64_t x, y, x_plane, y_plane, pixel;
    int n_planes;
} planes;

static inline int64_t n_groups_of(const ptac_image *image)
{
    return image->channels_last ? image->n * ptac_parts(image->channels, GROUP)
                                : ptac_parts(image->n * image->channels, GROUP);
}

static planes group_of(const ptac_image *image, int64_t i)
{
    const int64_t n_in = image->h * image->w, n_out = image->out_h * image->out_w;
    const int64_t n_blocks = ptac_parts(image->channels, GROUP);
    const bool is_nhwc = image->channels_last;
    const int64_t pixel = is_nhwc ? image->channels : 1;
    const int64_t before = is_nhwc ? i / n_blocks * pixel : 0; /* planes, of images */
    const int64_t first = is_nhwc ? i % n_blocks * GROUP : i * GROUP;
    const int64_t rest = (is_nhwc ? pixel : image->n * image->channels) - first;
    const int64_t x_plane = is_nhwc ? 1 : n_in, y_plane = is_nhwc ? 1 : n_out;

    return (planes){
        .x = before * n_in + first * x_plane,
        .y = before * n_out + first * y_plane,
        .x_plane = x_plane,
        .y_plane = y_plane,
        .pixel = pixel,
        .n_planes = (int)ptac_least(rest, GROUP),
    };
}

#define INLINED static inline __attribute__((always_inline))

#define OF(name) name##_f32
#include "ops/pool/avg/avg_pool2d_ref_tpl.h"
#define OF(name) name##_bf16
#include "ops/pool/avg/avg_pool2d_ref_tpl.h"
#define OF(name) name##_f64
#include "ops/pool/avg/avg_pool2d_ref_tpl.h"

void ptac_avg_pool2d_adapt(ptac_avg_pool2d *p)
{
    const ptac_image *image = &p->image;
    const int64_t h = image->h / image->out_h, w = image->w / image->out_w;

    p->window.h = (ptac_window){.kernel = h, .stride = h, .dilation = 1};
    p->window.w = (ptac_window){.kernel = w, .stride = w, .dilation = 1};
    p->window.ceil_mode = false;
    p->divisor = 0;
    p->count_include_pad = false;
    p->is_adaptive = true;
    p->is_regular = h * image->out_h == image->h && w * image->out_w == image->w;
}

int ptac_avg_pool2d_kind(const ptac_avg_pool2d *p)
{
    if (p->image.channels_last)
        return PTAC_AVG_POOL2D_CHANNELS_LAST;
    if (p->image.out_w < 4)
        return PTAC_AVG_POOL2D_NARROW;
    return p->is_regular && p->window.w.stride <= 2 ? PTAC_AVG_POOL2D_NCHW
                                                    : PTAC_AVG_POOL2D_FAR;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;

    shape->kind = ptac_avg_pool2d_kind(p);
    shape->work = image->n * image->channels * image->h * image->w;
    return PTAC_TAKE;
}

/*
 * ATen divides adaptive NHWC sums otherwise in the channels that do not fill one of its
 * vectors, whose size depends on what it was told of the CPU: 64 bytes at most.
 */
ptac_reason ptac_avg_pool2d_accepts(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int64_t vector = dtype == PTAC_F32 ? 16 : dtype == PTAC_F64 ? 8 : 32;

    if (dtype > PTAC_F64)
        return PTAC_DTYPE;
    if (p->is_adaptive && p->image.channels_last && p->image.channels % vector != 0)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

static ptac_status for_groups(const ptac_call *call, const ptac_range_fn *groups)
{
    const ptac_image *image = &((const ptac_avg_pool2d *)call->params)->image;

    ptac_share_out(n_groups_of(image), GROUP * image->h * image->w,
                   groups[call->inputs[0].dtype], (void *)call);
    return PTAC_OK;
}

ptac_status ptac_avg_pool2d_by_definition(const ptac_call *call)
{
    static const ptac_range_fn groups[] = PTAC_OF_TYPES(average_groups);

    return for_groups(call, groups);
}

ptac_status ptac_avg_pool2d_backward_by_definition(const ptac_call *call)
{
    static const ptac_range_fn groups[] = PTAC_OF_TYPES(spread_groups);

    return for_groups(call, groups);
}

#define DEFINE_OPERATOR(id, definition)                                                \
    PTAC_SHAPES(id, classify, "nchw", "nchw_far", "nchw_narrow", "nhwc")               \
    PTAC_ROW(id, "scalar", PTAC_EXACT, 0, ptac_avg_pool2d_accepts, definition)

DEFINE_OPERATOR(AVG_POOL2D, ptac_avg_pool2d_by_definition)
DEFINE_OPERATOR(ADAPTIVE_AVG_POOL2D, ptac_avg_pool2d_by_definition)
DEFINE_OPERATOR(AVG_POOL2D_BACKWARD, ptac_avg_pool2d_backward_by_definition)
DEFINE_OPERATOR(ADAPTIVE_AVG_POOL2D_BACKWARD, ptac_avg_pool2d_backward_by_definition)
