/*
 * images.c - batches of images, cropped, flipped and turned into floats.
 */
#include "data/images.h"

#include "data/threads.h"

enum {
    LEVELS = 256,            /* values of a byte */
    THREAD_PIXELS = 1 << 17, /* so many are worth another thread's time */
};

/*
 * Where a pixel (y, x) of the result comes from: row y0 + y*dy and column x0 + x*dx of
 * the image; padding where that is outside of it.
 */
typedef struct place {
    int32_t height, width;
    int32_t y0, x0, dy, dx;
} place;

typedef struct batch {
    const ptac_images *images;
    const int64_t *index;
    const uint32_t *drawn;
    int32_t n_draws;
    float *out;
} batch;

static bool is_random(const place *p, const ptac_move *move)
{
    return p->height != move->numbers[0] || p->width != move->numbers[1];
}

/* torch.randint(0, extent): a 32-bit draw, reduced. */
static int32_t draw_below(const uint32_t **drawn, int32_t extent)
{
    return (int32_t)(*(*drawn)++ % (uint32_t)extent);
}

/* torch.rand(1): the lowest 24 bits of a draw, as a fraction. */
static float draw_fraction(const uint32_t **drawn)
{
    return (float)(*(*drawn)++ & 0xffffff) * 0x1p-24f;
}

static void crop(place *p, int32_t top, int32_t left, int32_t height, int32_t width)
{
    p->y0 += p->dy * top;
    p->x0 += p->dx * left;
    p->height = height;
    p->width = width;
}

static void flip_y(place *p)
{
    p->y0 += p->dy * (p->height - 1);
    p->dy = -p->dy;
}

static void flip_x(place *p)
{
    p->x0 += p->dx * (p->width - 1);
    p->dx = -p->dx;
}

static void apply(place *p, const ptac_move *move, const uint32_t **drawn)
{
    const int32_t *n = move->numbers;

    switch (move->kind) {
    case PTAC_MOVE_PAD:
        crop(p, -n[1], -n[0], p->height + n[1] + n[3], p->width + n[0] + n[2]);
        break;
    case PTAC_MOVE_CROP:
        crop(p, n[0], n[1], n[2], n[3]);
        break;
    case PTAC_MOVE_RANDOM_CROP:
        if (is_random(p, move)) {
            const int32_t top = draw_below(drawn, p->height - n[0] + 1);
            const int32_t left = draw_below(drawn, p->width - n[1] + 1);

            crop(p, top, left, n[0], n[1]);
        }
        break;
    case PTAC_MOVE_FLIP_X:
        if (draw_fraction(drawn) < move->probability)
            flip_x(p);
        break;
    case PTAC_MOVE_FLIP_Y:
        if (draw_fraction(drawn) < move->probability)
            flip_y(p);
        break;
    default:
        break;
    }
}

static bool fits(const place *p, const ptac_move *move)
{
    const int32_t *n = move->numbers;

    switch (move->kind) {
    case PTAC_MOVE_PAD:
        for (int i = 0; i < 4; i++)
            if (n[i] < 0 || n[i] > PTAC_MAX_IMAGE_EXTENT)
                return false;
        return true;
    case PTAC_MOVE_CROP:
        return n[0] >= 0 && n[1] >= 0 && n[2] > 0 && n[3] > 0 &&
               n[0] <= p->height - n[2] && n[1] <= p->width - n[3];
    case PTAC_MOVE_RANDOM_CROP:
        return n[0] > 0 && n[1] > 0 && n[0] <= p->height && n[1] <= p->width;
    case PTAC_MOVE_FLIP_X:
    case PTAC_MOVE_FLIP_Y:
        return true;
    default:
        return false;
    }
}

static bool is_extent(int32_t extent)
{
    return extent > 0 && extent <= PTAC_MAX_IMAGE_EXTENT;
}

static place whole(const ptac_images *images)
{
    return (place){.height = images->height, .width = images->width, .dy = 1, .dx = 1};
}

ptac_status ptac_images_extent(const ptac_images *images, int32_t *height,
                               int32_t *width, int32_t *n_draws)
{
    const uint32_t zeros[2 * PTAC_MAX_MOVES] = {0}, *drawn = zeros;
    place p = whole(images);
    bool is_cut = false;

    if (images->n_moves > PTAC_MAX_MOVES || !is_extent(p.height) || !is_extent(p.width))
        return PTAC_UNSUPPORTED;
    for (int i = 0; i < images->n_moves; i++) {
        const ptac_move *move = &images->moves[i];

        if (!fits(&p, move) || (is_cut && move->kind == PTAC_MOVE_PAD))
            return PTAC_UNSUPPORTED;
        is_cut |= move->kind == PTAC_MOVE_CROP || move->kind == PTAC_MOVE_RANDOM_CROP;
        apply(&p, move, &drawn);
        if (!is_extent(p.height) || !is_extent(p.width))
            return PTAC_UNSUPPORTED;
    }
    *height = p.height;
    *width = p.width;
    *n_draws = (int32_t)(drawn - zeros);
    return PTAC_OK;
}

/* From which x on start + x*step lies in [0, extent), and the first x behind. */
static void range_inside(int32_t start, int32_t step, int32_t extent, int32_t n,
                         int32_t *begin, int32_t *end)
{
    const int32_t first = step > 0 ? -start : start - (extent - 1);
    const int32_t behind = first + extent;

    *begin = first < 0 ? 0 : first > n ? n : first;
    *end = behind < *begin ? *begin : behind > n ? n : behind;
}

static void fill(float *out, float value, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = value;
}

/* One channel of one row of pixels, which are step bytes apart. */
static void look_up(float *out, const uint8_t *pixels, int32_t step,
                    const float *values, int32_t n)
{
    for (int32_t x = 0; x < n; x++)
        out[x] = values[pixels[(int64_t)x * step]];
}

static void make_image(const ptac_images *images, const place *p, const uint8_t *image,
                       float *out)
{
    const int32_t channels = images->channels, step = p->dx * channels;
    const int64_t row_bytes = (int64_t)images->width * channels;
    int32_t top, bottom, left, right;

    range_inside(p->y0, p->dy, images->height, p->height, &top, &bottom);
    range_inside(p->x0, p->dx, images->width, p->width, &left, &right);
    for (int32_t c = 0; c < channels; c++) {
        const float padding = images->fill[c];
        const float *values = images->values + (int64_t)c * LEVELS;

        for (int32_t y = 0; y < p->height; y++, out += p->width) {
            if (y < top || y >= bottom || left == right) {
                fill(out, padding, p->width);
                continue;
            }

            const uint8_t *row = image + (p->y0 + y * p->dy) * row_bytes;
            const int64_t first = (int64_t)(p->x0 + left * p->dx) * channels + c;

            fill(out, padding, left);
            look_up(out + left, row + first, step, values, right - left);
            fill(out + right, padding, p->width - right);
        }
    }
}

static void make_images(int64_t begin, int64_t end, void *context)
{
    const batch *b = context;
    const ptac_images *images = b->images;
    const ptac_table *table = &images->table;

    for (int64_t i = begin; i < end; i++) {
        const uint32_t *drawn = b->drawn + i * b->n_draws;
        place p = whole(images);

        for (int m = 0; m < images->n_moves; m++)
            apply(&p, &images->moves[m], &drawn);
        make_image(images, &p,
                   (const uint8_t *)table->data + b->index[i] * table->stride,
                   b->out + i * images->channels * p.height * p.width);
    }
}

void ptac_images_batch(const ptac_images *images, const int64_t *index, int64_t n,
                       const uint32_t *drawn, float *out)
{
    batch b = {.images = images, .index = index, .drawn = drawn, .out = out};
    int32_t height, width;

    if (ptac_images_extent(images, &height, &width, &b.n_draws) == PTAC_OK)
        ptac_data_parallel_for(
            0, n, ptac_parts(THREAD_PIXELS, (int64_t)height * width * images->channels),
            make_images, &b);
}
