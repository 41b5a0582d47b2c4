/*
 * geometry.c - answers questions about layouts and windows, for a test that has torch.
 *
 *   v N sizes... strides...                      contiguous, channels last, suggests
 *   w size kernel stride padding dilation ceil   valid, outputs
 *
 * One line in, one line of integers out.
 */
#include "core/view.h"
#include "ops/pool/window2d.h"

#include <inttypes.h>
#include <stdio.h>

static bool read_integers(int64_t *values, int n)
{
    for (int i = 0; i < n; i++)
        if (scanf("%" SCNd64, &values[i]) != 1)
            return false;
    return true;
}

static bool answer_view(void)
{
    int64_t n_dims, sizes[8], strides[8];
    ptac_view view = {.sizes = sizes, .strides = strides, .n_elements = 1};

    if (!read_integers(&n_dims, 1) || n_dims > 8 ||
        !read_integers(sizes, (int)n_dims) || !read_integers(strides, (int)n_dims))
        return false;
    view.n_dims = (int32_t)n_dims;
    for (int64_t i = 0; i < n_dims; i++)
        view.n_elements *= sizes[i];
    printf("%d %d %d\n", ptac_view_is_contiguous(&view),
           ptac_view_is_channels_last(&view), ptac_view_suggests_channels_last(&view));
    return true;
}

static bool answer_window(void)
{
    int64_t size, ceil_mode;
    int64_t fields[4];

    if (!read_integers(&size, 1) || !read_integers(fields, 4) ||
        !read_integers(&ceil_mode, 1))
        return false;

    const ptac_window axis = {fields[0], fields[1], fields[2], fields[3]};
    const bool valid = ptac_window_is_valid(&axis);

    printf("%d %" PRId64 "\n", valid,
           valid ? ptac_window_outputs(&axis, size, ceil_mode != 0) : 0);
    return true;
}

int main(void)
{
    char kind;

    while (scanf(" %c", &kind) == 1)
        if (!(kind == 'v' ? answer_view() : answer_window()))
            return 1;
    return 0;
}
