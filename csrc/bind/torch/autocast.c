/*
 * autocast.c - torch's casts for products on CUDA.
 */
#include "bind/torch/autocast.h"

ptac_dtype ptac_autocast_dtype(void)
{
    if (!T.autocast_cast || !T.autocast_dtype)
        return PTAC_OTHER_DTYPE;
    switch (T.autocast_dtype(AT_DEVICE_CUDA)) {
    case AT_DTYPE_F16:
        return PTAC_F16;
    case AT_DTYPE_BF16:
        return PTAC_BF16;
    default:
        return PTAC_OTHER_DTYPE;
    }
}

void ptac_autocast_see(ptac_call *call)
{
    const ptac_dtype dtype = ptac_autocast_dtype();

    for (int i = 0; dtype != PTAC_OTHER_DTYPE && i < call->n_inputs; i++) {
        ptac_dtype *of = &call->inputs[i].dtype;

        if (*of == PTAC_F32 || *of == PTAC_F16 || *of == PTAC_BF16)
            *of = dtype;
    }
}

typedef struct casting {
    const at_tensor *given;
    at_tensor *cast;
    int8_t dtype;
} casting;

static void cast_range(int64_t begin, int64_t end, void *context)
{
    const casting *c = context;

    for (int64_t i = begin; i < end; i++)
        if (c->given[i])
            c->cast[i] = at_adopt(
                T.autocast_cast(c->dtype, c->given[i], AT_DEVICE_CUDA).words[0]);
}

/*
 * The function throws, and no exception may pass through our callers. Torch's loop
 * makes an error of it; one that is not worth dividing runs in this thread.
 */
at_error ptac_autocast_cast(const at_tensor *given, int n, at_tensor *cast)
{
    casting c = {given, cast, T.autocast_dtype(AT_DEVICE_CUDA)};

    return T.torch_parallel_for(0, n, n, cast_range, &c);
}
