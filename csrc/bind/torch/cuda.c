/*
 * cuda.c - torch's streams and CUDA's contexts, for calls of ours on CUDA.
 */
#include "bind/torch/cuda.h"

#include <string.h>

static const char driver[] = "libcuda.so.1";

const char *ptac_cuda_reason(void)
{
    if (!T.aoti_torch_get_current_cuda_stream)
        return "this torch is built without CUDA";
    if (!T.aoti_torch_get_device_type || !T.aoti_torch_get_device_index ||
        !T.aoti_torch_copy_)
        return "this torch does not tell devices";
    return ptac_cuda_find(driver);
}

bool ptac_cuda_begin(ptac_call *call, ptac_cuda_scope *scope)
{
    return call->on != PTAC_ON_CUDA ||
           (!ptac_cuda_load(driver) && ptac_cuda_scope_enter(call->device, scope) &&
            !T.aoti_torch_get_current_cuda_stream(call->device, &call->stream));
}

bool ptac_cuda_is_capturing(const ptac_call *call)
{
    cu_capture_status status = 0;

    /* Where it cannot tell, something is being captured that forbids to ask. */
    return ptac_cuda.stream_is_capturing(call->stream, &status) || status;
}

int32_t ptac_cuda_device_of(ptac_device on, at_tensor tensor)
{
    int32_t number = 0;

    if (on == PTAC_ON_CUDA)
        T.aoti_torch_get_device_index(tensor, &number);
    return number;
}

void ptac_cuda_name(int device, char name[PTAC_DEVICE_NAME_BYTES])
{
    cu_device handle;

    if (ptac_cuda_load(driver) || ptac_cuda.device_get(&handle, device) != PTAC_CU_OK ||
        ptac_cuda.device_name(name, PTAC_DEVICE_NAME_BYTES, handle) != PTAC_CU_OK)
        name[0] = '\0';
}

bool ptac_cuda_is_called(int device, const char *name)
{
    char its[PTAC_DEVICE_NAME_BYTES];

    ptac_cuda_name(device, its);
    return its[0] && strcmp(its, name) == 0;
}

at_tensor ptac_cuda_copy(at_tensor tensor)
{
    at_tensor copy = NULL;
    bool is_defined = false;
    ptac_view view;

    T.aoti_torch_is_defined(tensor, &is_defined);
    if (!is_defined)
        return NULL;
    ptac_cuda_view_of(tensor, &view);
    if (view.dtype >= PTAC_N_DTYPES || view.n_dims > PTAC_MAX_DIMS ||
        ptac_new(view.dtype, view.n_dims, view.sizes, view.strides, &copy, NULL))
        return NULL;
    if (T.aoti_torch_copy_(copy, tensor, false))
        at_drop_tensor(&copy);
    return copy;
}
