/*
 * test_geometry.c - layout predicates and window arithmetic against plain definitions.
 *
 * The expectations of the layout table were read off torch 2.13. test_rows.py asks the
 * installed torch again, about many more, through geometry.c.
 */
#include "core/view.h"
#include "ops/pool/window2d.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

typedef struct layout {
    int32_t n_dims;
    int64_t sizes[4], strides[4];
    bool contiguous, channels_last, suggests_channels_last;
} layout;

static const layout layouts[] = {
    /* dense NCHW, dense NHWC */
    {4, {2, 3, 4, 5}, {60, 20, 5, 1}, true, false, false},
    {4, {2, 3, 4, 5}, {60, 1, 15, 3}, false, true, true},
    /* one channel and 1x1 images: both layouts at once, taken for NCHW */
    {4, {2, 1, 4, 5}, {20, 20, 5, 1}, true, true, false},
    {4, {2, 1, 4, 5}, {20, 1, 5, 1}, true, true, true},
    {4, {2, 3, 1, 1}, {3, 1, 1, 1}, true, true, false},
    {4, {2, 3, 1, 1}, {3, 1, 3, 3}, true, true, true},
    {4, {1, 1, 1, 1}, {1, 1, 1, 1}, true, true, false},
    {4, {7, 1, 1, 1}, {1, 1, 1, 1}, true, true, false},
    {4, {7, 1, 1, 5}, {5, 5, 5, 1}, true, true, false},
    /* slices: gaps, yet the order of NHWC */
    {4, {2, 3, 4, 5}, {120, 1, 30, 6}, false, false, true},
    {4, {2, 3, 4, 5}, {80, 20, 5, 1}, false, false, false},
    /* transposed, expanded, sliced on W until one column is left */
    {4, {2, 3, 5, 4}, {60, 20, 1, 5}, false, false, false},
    {4, {2, 3, 4, 5}, {0, 0, 0, 0}, false, false, false},
    {4, {2, 3, 4, 5}, {0, 1, 15, 3}, false, false, false},
    {4, {2, 3, 4, 5}, {60, 0, 15, 3}, false, false, false},
    {4, {7, 1, 1, 1}, {5, 5, 5, 5}, false, false, false},
    /* strides of dimensions of size 1 say nothing */
    {4, {1, 3, 4, 5}, {999, 20, 5, 1}, true, false, false},
    {4, {1, 3, 4, 5}, {999, 1, 15, 3}, false, true, true},
    /* other numbers of dimensions */
    {3, {3, 4, 5}, {20, 5, 1}, true, false, false},
    {3, {3, 4, 5}, {1, 15, 3}, false, false, false},
    {2, {4, 5}, {5, 1}, true, false, false},
    {2, {4, 5}, {1, 4}, false, false, false},
    {1, {5}, {1}, true, false, false},
    {1, {5}, {2}, false, false, false},
    {1, {1}, {9}, true, false, false},
    {0, {0}, {0}, true, false, false},
    /* nothing in them: always contiguous */
    {1, {0}, {1}, true, false, false},
    {2, {0, 5}, {1, 7}, true, false, false},
    {4, {2, 0, 4, 5}, {20, 20, 5, 1}, true, false, false},
};

UNIT(layout_predicates)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        ptac_view view = {.sizes = l->sizes,
                          .strides = l->strides,
                          .n_dims = l->n_dims,
                          .n_elements = 1};

        for (int d = 0; d < l->n_dims; d++)
            view.n_elements *= l->sizes[d];
        EXPECT(ptac_view_is_contiguous(&view) == l->contiguous);
        EXPECT(ptac_view_is_channels_last(&view) == l->channels_last);
        EXPECT(ptac_view_suggests_channels_last(&view) == l->suggests_channels_last);
    }
}

/* All axes that are small enough to try. */
#define FOR_EACH_AXIS(axis)                                                            \
    for (ptac_window axis = {1, 1, 0, 1}; axis.kernel <= 4; axis.kernel++)             \
        for (axis.stride = 1; axis.stride <= 5; axis.stride++)                         \
            for (axis.dilation = 1; axis.dilation <= 3; axis.dilation++)               \
                for (axis.padding = 0; axis.padding <= axis.kernel / 2; axis.padding++)

UNIT(windows_are_clipped_to_the_image)
{
    FOR_EACH_AXIS (axis) {
        for (int64_t size = 1; size <= 8; size++) {
            for (int64_t start = -axis.padding; start <= size + 3; start++) {
                int64_t first, last, n = 0, n_clipped;

                ptac_window_clip(&axis, start, size, &first, &last);
                for (int64_t k = 0; k < axis.kernel; k++) {
                    const int64_t at = start + k * axis.dilation;
                    const bool inside = at >= 0 && at < size;

                    n += inside;
                    if (inside)
                        EXPECT(k >= first && k < last);
                }
                n_clipped = last > first ? last - first : 0;
                EXPECT(n_clipped == n);
            }
        }
    }
}

/*
 * Outputs by trying: windows are set down one stride apart, beginning at -padding. All
 * must lie inside the padded image; with ceil_mode one more may hang over its end, as
 * long as it starts inside the image or its left padding.
 */
static int64_t n_outputs_by_trying(const ptac_window *axis, int64_t size,
                                   bool ceil_mode)
{
    const int64_t reach = axis->dilation * (axis->kernel - 1) + 1;
    const int64_t end = size + axis->padding;
    int64_t n = 0, start = -axis->padding;

    while (start + reach <= end) {
        n++;
        start += axis->stride;
    }
    /* Is anything of the padded image left behind the last window? */
    if (ceil_mode && start - axis->stride + reach < end && start < size)
        n++;
    return n;
}

UNIT(outputs_are_counted_as_torch_does)
{
    FOR_EACH_AXIS (axis) {
        for (int64_t size = 1; size <= 12; size++) {
            for (int ceil_mode = 0; ceil_mode < 2; ceil_mode++) {
                const int64_t n = ptac_window_outputs(&axis, size, ceil_mode);

                EXPECT((n > 0 ? n : 0) == n_outputs_by_trying(&axis, size, ceil_mode));
            }
        }
    }
}

UNIT(windows_that_miss_the_image_are_found)
{
    FOR_EACH_AXIS (axis) {
        for (int64_t size = 1; size <= 9; size++) {
            const int64_t n = ptac_window_outputs(&axis, size, true);
            bool all_hit = true;

            for (int64_t i = 0; i < n; i++) {
                bool hits = false;

                for (int64_t k = 0; k < axis.kernel; k++) {
                    const int64_t at =
                        i * axis.stride - axis.padding + k * axis.dilation;

                    hits |= at >= 0 && at < size;
                }
                all_hit &= hits;
            }
            EXPECT(ptac_window_always_hits(&axis, size, n) == all_hit);
        }
    }
}

UNIT(window_arguments)
{
    static const struct {
        ptac_window axis;
        bool valid;
    } rows[] = {
        /* clang-format off */
        {{2, 2, 0, 1}, true},      {{2, 2, 1, 1}, true},      {{2, 2, 2, 1}, false},
        {{3, 1, 1, 1}, true},      {{3, 1, 2, 1}, false},     {{1, 1, 0, 1}, true},
        {{1, 1, 1, 1}, false},     {{0, 1, 0, 1}, false},     {{-1, 1, 0, 1}, false},
        {{2, 0, 0, 1}, false},     {{2, -1, 0, 1}, false},    {{2, 1, -1, 1}, false},
        {{2, 1, 0, 0}, false},     {{2, 1, 0, -1}, false},    {{65535, 1, 0, 1}, true},
        {{65536, 1, 0, 1}, false}, {{2, 65535, 0, 1}, true},  {{2, 65536, 0, 1}, false},
        {{2, 1, 0, 65535}, true},  {{2, 1, 0, 65536}, false},
        {{2, 1, INT64_MAX, 1}, false}, {{INT64_MAX, 1, 0, 1}, false},
        /* torch compares with the kernel, not with how far dilation makes it reach */
        {{3, 1, 1, 4}, true},      {{3, 1, 2, 4}, false},     {{2, 1, 3, 5}, false},
        /* clang-format on */
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EXPECT(ptac_window_is_valid(&rows[i].axis) == rows[i].valid);
}

static ptac_reason image_of(int32_t n_dims, const int64_t *sizes, ptac_image *image)
{
    int64_t strides[5] = {0};
    ptac_view view = {.sizes = sizes, .strides = strides, .n_dims = n_dims};
    int64_t step = 1;

    for (int d = n_dims - 1; d >= 0; d--) {
        strides[d] = step;
        step *= sizes[d];
    }
    view.n_elements = step;
    return ptac_image_of(&view, image);
}

UNIT(images_are_read_off_sizes)
{
    ptac_image image;

    EXPECT(image_of(4, (const int64_t[]){2, 3, 4, 5}, &image) == PTAC_TAKE);
    EXPECT(image.n == 2 && image.channels == 3 && image.h == 4 && image.w == 5);
    EXPECT(!image.channels_last);
    EXPECT(image_of(3, (const int64_t[]){3, 4, 5}, &image) == PTAC_TAKE);
    EXPECT(image.n == 1 && image.channels == 3 && image.h == 4 && image.w == 5);

    EXPECT(image_of(2, (const int64_t[]){4, 5}, &image) == PTAC_SHAPE);
    EXPECT(image_of(5, (const int64_t[]){1, 2, 3, 4, 5}, &image) == PTAC_SHAPE);
    EXPECT(image_of(4, (const int64_t[]){0, 3, 4, 5}, &image) == PTAC_EMPTY);
    EXPECT(image_of(3, (const int64_t[]){3, 4, 0}, &image) == PTAC_EMPTY);

    /* Positions are counted in 32 bits; what does not fit is stock's. */
    EXPECT(image_of(3, (const int64_t[]){1, 46340, 46340}, &image) == PTAC_TAKE);
    EXPECT(image_of(3, (const int64_t[]){1, 46341, 46341}, &image) == PTAC_SHAPE);
    EXPECT(image_of(3, (const int64_t[]){1, 1, INT64_C(1) << 40}, &image) ==
           PTAC_SHAPE);
}
