/*
 * bf16.c - when rows may round to bfloat16, and copies that are rounded.
 */
#include "bind/torch/rows/bf16.h"

#include "ops/bf16/cast.h"

#include <string.h>

enum {
    TILE_TERMS = 32, /* of a tile of AMX */
};

static uint64_t n_calls;

/*
 * torch.autocast counts its blocks, those with enabled=False too: in them somebody has
 * decided how precise to be.
 */
static bool user_decides(void)
{
    if (T.is_autocast_enabled && T.is_autocast_enabled(AT_DEVICE_CPU))
        return true;
    if (!T.autocast_enter || !T.autocast_leave)
        return false;
    T.autocast_enter();
    return T.autocast_leave() > 0;
}

ptac_reason ptac_bf16_reason(void)
{
    if (user_decides())
        return PTAC_AUTOCAST;
    if (ptac_onednn_is_off())
        return PTAC_MODE;
    return PTAC_TAKE;
}

void ptac_bf16_count(void)
{
    __atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED);
}

uint64_t ptac_bf16_calls(void)
{
    return __atomic_load_n(&n_calls, __ATOMIC_RELAXED);
}

at_error ptac_bf16_alike(const ptac_view *view, at_tensor *made)
{
    ptac_view copy;
    const at_error error =
        ptac_new(PTAC_BF16, view->n_dims, view->sizes, view->strides, made, &copy);

    if (!error)
        ptac_bf16_narrow_rows(view->data, 1, view->n_elements, 1, copy.data);
    return error;
}

static int inner_dim(const int64_t sizes[2], const int64_t strides[2])
{
    return strides[1] == 1 || sizes[1] == 1;
}

int64_t ptac_bf16_terms(const int64_t sizes[2], const int64_t strides[2])
{
    if (!(ptac_cpu_features() & PTAC_CPU_AMX_BF16) || inner_dim(sizes, strides) == 0)
        return sizes[1];
    return (sizes[1] + TILE_TERMS - 1) / TILE_TERMS * TILE_TERMS;
}

at_error ptac_bf16_copy(const ptac_bf16_matrix *matrix, int64_t n_terms,
                        at_tensor *made, int64_t made_strides[2])
{
    const int inner = inner_dim(matrix->sizes, matrix->strides);
    const int64_t n_rows = matrix->sizes[!inner], n_cols = matrix->sizes[inner];
    const int64_t stride = matrix->strides[!inner];
    int64_t sizes[2] = {matrix->sizes[0], matrix->sizes[1]};
    uint16_t *out;
    ptac_view copy;

    sizes[matrix->terms] = n_terms;
    made_strides[inner] = 1;
    made_strides[!inner] = sizes[inner];
    if (ptac_new(PTAC_BF16, 2, sizes, made_strides, made, &copy))
        return 1;
    out = copy.data;
    if (sizes[inner] == n_cols) {
        ptac_bf16_narrow_rows(matrix->data, stride, n_rows, n_cols, out);
        memset(out + n_rows * n_cols, 0,
               (size_t)((sizes[!inner] - n_rows) * n_cols) * sizeof *out);
        return 0;
    }
    for (int64_t i = 0; i < n_rows; i++, out += sizes[inner]) {
        ptac_bf16_narrow_rows(matrix->data + i * stride, n_cols, 1, n_cols, out);
        memset(out + n_cols, 0, (size_t)(sizes[inner] - n_cols) * sizeof *out);
    }
    return 0;
}

/* Dimensions from the widest apart to the closest. */
static void sort_dims(const ptac_view *view, int order[4])
{
    for (int i = 0; i < view->n_dims; i++) {
        int at = i;

        while (at > 0 && i < view->n_dims - 1 &&
               view->strides[order[at - 1]] < view->strides[i]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

void ptac_strides_in_order(const ptac_view *view, int64_t strides[4])
{
    int order[4] = {0, 1, 2, 3};
    int64_t stride = 1;

    if (ptac_view_is_dense(view)) { /* then torch takes even those of single elements */
        memcpy(strides, view->strides, (size_t)view->n_dims * sizeof *strides);
        return;
    }
    sort_dims(view, order);
    for (int i = view->n_dims - 1; i >= 0; i--) {
        const int64_t size = view->sizes[order[i]];

        strides[order[i]] = stride;
        stride *= size > 1 ? size : 1;
    }
}

at_error ptac_bf16_in_order(const ptac_view *view, at_tensor *made)
{
    int64_t sizes[4], from[4], strides[4];
    int order[4] = {0, 1, 2, 3};
    ptac_view sorted = *view, copy;
    at_error error;

    sort_dims(view, order);
    ptac_strides_in_order(view, strides);
    for (int i = 0; i < view->n_dims; i++) {
        sizes[i] = view->sizes[order[i]];
        from[i] = view->strides[order[i]];
    }
    sorted.sizes = sizes;
    sorted.strides = from;
    error = ptac_new(PTAC_BF16, view->n_dims, view->sizes, strides, made, &copy);
    if (!error)
        ptac_bf16_narrow_view(&sorted, copy.data);
    return error;
}

ptac_status ptac_bf16_widened(at_tensor narrow, at_tensor *made)
{
    ptac_view in, out;

    ptac_view_of(narrow, &in);
    if (in.dtype != PTAC_BF16 || !ptac_view_is_dense(&in)) {
        ptac_error_set("a result in bfloat16 is not as it should be");
        return PTAC_FAILED;
    }
    if (ptac_new(PTAC_F32, in.n_dims, in.sizes, in.strides, made, &out))
        return PTAC_NO_MEMORY;
    ptac_bf16_widen(in.data, out.data, in.n_elements);
    return PTAC_OK;
}
