/*
 * cuda_runtime_fake.c - what torch asks of CUDA before it asks an allocator.
 *
 * Preloaded, so that torch's own CUDAPluggableAllocator can be called on a machine
 * without a device: one device, the default stream.
 */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

EXPORT int cudaSetDevice(int device)
{
    return device != 0;
}

EXPORT int cudaGetDeviceCount(int *n)
{
    *n = 1;
    return 0;
}
