/*
 * bridge.c - reading tensors and boxed arguments.
 */
#include "bind/torch/bridge.h"

ptac_dtype ptac_dtype_of(int32_t torch_dtype)
{
    switch (torch_dtype) {
    case AT_DTYPE_F32:
        return PTAC_F32;
    case AT_DTYPE_BF16:
        return PTAC_BF16;
    case AT_DTYPE_F64:
        return PTAC_F64;
    case AT_DTYPE_I64:
        return PTAC_I64;
    default:
        return PTAC_OTHER_DTYPE;
    }
}

void ptac_view_of(at_tensor tensor, ptac_view *view)
{
    int64_t n_dims = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = -1;

    *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    T.aoti_torch_get_dim(tensor, &n_dims);
    T.aoti_torch_get_sizes(tensor, &sizes);
    T.aoti_torch_get_strides(tensor, &strides);
    T.aoti_torch_get_numel(tensor, &view->n_elements);
    T.aoti_torch_get_dtype(tensor, &dtype);
    T.aoti_torch_get_data_ptr(tensor, &view->data);
    view->n_dims = (int32_t)n_dims;
    view->sizes = sizes;
    view->strides = strides;
    if (view->data || view->n_elements == 0)
        view->dtype = ptac_dtype_of(dtype);
}

ptac_reason ptac_floats_reason(const ptac_view *view, int n_dims)
{
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims != n_dims)
        return PTAC_SHAPE;
    return view->n_elements == 0 ? PTAC_EMPTY : PTAC_TAKE;
}

ptac_reason ptac_vector_reason(const ptac_view *view, int64_t n)
{
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_dims != 1 || view->sizes[0] != n)
        return PTAC_ARGUMENT;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

void ptac_cuda_view_of(at_tensor tensor, ptac_view *view)
{
    int32_t type = AT_DEVICE_CPU, dtype = -1;

    ptac_view_of(tensor, view);
    T.aoti_torch_get_dtype(tensor, &dtype);
    if (dtype == AT_DTYPE_F16 && (view->data || view->n_elements == 0))
        view->dtype = PTAC_F16;
    T.aoti_torch_get_device_type(tensor, &type);
    view->device = -1;
    if (type == AT_DEVICE_CUDA)
        T.aoti_torch_get_device_index(tensor, &view->device);
}

ptac_reason ptac_call_place(ptac_call *call)
{
    int device = -1;

    for (int i = 0; call->on != PTAC_ON_CPU && i < call->n_inputs; i++) {
        const ptac_view *input = &call->inputs[i];

        if (!input->data)
            continue;
        if (input->device < 0 || (device >= 0 && input->device != device))
            return PTAC_DEVICE;
        device = input->device;
    }
    call->device = device < 0 ? 0 : device;
    return PTAC_TAKE;
}

int32_t ptac_torch_dtype(ptac_dtype dtype)
{
    static const int32_t codes[PTAC_N_DTYPES] = {
        [PTAC_F32] = AT_DTYPE_F32, [PTAC_BF16] = AT_DTYPE_BF16,
        [PTAC_F64] = AT_DTYPE_F64, [PTAC_I64] = AT_DTYPE_I64,
        [PTAC_F16] = AT_DTYPE_F16,
    };

    return codes[dtype];
}

at_error at_new_on(at_device device, int32_t dtype, int n_dims, const int64_t *sizes,
                   const int64_t *strides, at_tensor *made)
{
    int64_t dense[PTAC_MAX_DIMS], elements = 1;

    for (int i = n_dims - 1; i >= 0 && !strides; i--) {
        dense[i] = elements;
        elements *= sizes[i];
    }
    return T.aoti_torch_empty_strided(n_dims, sizes, strides ? strides : dense, dtype,
                                      device.type, device.number, made);
}

at_error at_new(int32_t dtype, int n_dims, const int64_t *sizes, at_tensor *made)
{
    return at_new_on((at_device){AT_DEVICE_CPU, 0}, dtype, n_dims, sizes, NULL, made);
}

at_error ptac_new_on(at_device device, ptac_dtype dtype, int n_dims,
                     const int64_t *sizes, const int64_t *strides, at_tensor *made,
                     ptac_view *view)
{
    const at_error error =
        at_new_on(device, ptac_torch_dtype(dtype), n_dims, sizes, strides, made);

    if (!error && view)
        ptac_view_on((ptac_device)device.type, *made, view);
    return error;
}

at_error ptac_new(ptac_dtype dtype, int n_dims, const int64_t *sizes,
                  const int64_t *strides, at_tensor *made, ptac_view *view)
{
    return ptac_new_on((at_device){AT_DEVICE_CPU, 0}, dtype, n_dims, sizes, strides,
                       made, view);
}

at_error ptac_new_images(ptac_dtype dtype, const int64_t sizes[4], bool channels_last,
                         at_tensor *made, ptac_view *view)
{
    int64_t strides[4];

    ptac_image_strides(4, sizes, channels_last, strides);
    return ptac_new(dtype, 4, sizes, strides, made, view);
}

at_error ptac_new_matrix(int64_t m, int64_t n, at_tensor *made, ptac_view *view)
{
    return ptac_new(PTAC_F32, 2, (int64_t[]){m, n}, NULL, made, view);
}

void *at_data(at_tensor tensor)
{
    void *data = NULL;

    if (tensor)
        T.aoti_torch_get_data_ptr(tensor, &data);
    return data;
}

at_tensor at_share(at_tensor tensor)
{
    at_tensor shared = NULL;

    at_must(T.aoti_torch_new_tensor_handle(tensor, &shared), "no memory for a handle");
    return shared;
}

static at_error in_format(at_tensor given, stable_ivalue format, at_tensor *made)
{
    stable_ivalue stack[2] = {(stable_ivalue)(uintptr_t)given, format};
    const at_error error =
        T.torch_call_dispatcher("aten::contiguous", "", stack, PTAC_TORCH_ABI_VERSION);

    if (!error)
        *made = (at_tensor)(uintptr_t)stack[0];
    return error;
}

at_error at_contiguous(at_tensor given, bool channels_last, at_tensor *made)
{
    return in_format(given,
                     channels_last ? AT_MEMORY_FORMAT_CHANNELS_LAST
                                   : AT_MEMORY_FORMAT_CONTIGUOUS,
                     made);
}

at_tensor at_dense(at_tensor tensor, const ptac_view *view, bool channels_last)
{
    at_tensor dense = NULL;

    if (channels_last ? ptac_view_is_channels_last(view)
                      : ptac_view_is_contiguous(view))
        return at_share(tensor);

    at_must(in_format(at_share(tensor),
                      !channels_last      ? AT_MEMORY_FORMAT_CONTIGUOUS
                      : view->n_dims == 5 ? AT_MEMORY_FORMAT_CHANNELS_LAST_3D
                                          : AT_MEMORY_FORMAT_CHANNELS_LAST,
                      &dense),
            "could not make a tensor contiguous");
    return dense;
}

void ptac_image_strides(int n_dims, const int64_t *sizes, bool channels_last,
                        int64_t *strides)
{
    const int channel = n_dims == 3 ? 0 : 1;
    const int64_t channels = sizes[channel];
    int64_t stride = channels_last ? channels : 1;

    for (int i = n_dims - 1; i > channel; i--) {
        strides[i] = stride;
        stride *= sizes[i];
    }
    strides[channel] = channels_last ? 1 : stride;
    if (channel)
        strides[0] = channels_last ? stride : stride * channels;
}

int64_t ptac_only_offset(void *const *objects, const uint64_t *words, int n,
                         int64_t first, int64_t last)
{
    int64_t found = 0;

    for (int64_t offset = first; offset <= last; offset += 8) {
        int i = 0;

        while (i < n &&
               *(const uint64_t *)((const char *)objects[i] + offset) == words[i])
            i++;
        if (i < n)
            continue;
        if (found)
            return 0;
        found = offset;
    }
    return found;
}
