/*
 * cuda_guard.c - our prototypes of the CUDA driver, compiled beside the toolkit's.
 *
 * Compiles or not; nothing runs. The types that driver.h only names are the toolkit's
 * here, so that a prototype that differs in any of them is an error.
 */
#define PTAC_CUDA_GUARD
#include <cuda.h>

typedef CUresult cu_result;
typedef CUdevice cu_device;
typedef CUdevice_attribute cu_attribute;
typedef CUmemAllocationGranularity_flags cu_granularity;
typedef CUstreamCaptureStatus cu_capture_status;
typedef CUstreamCaptureMode cu_capture_mode;
typedef CUcontext cu_context;
typedef CUstream cu_stream;
typedef CUevent cu_event;
typedef CUlibrary cu_library;
typedef CUkernel cu_kernel;
typedef CUfunction cu_function;
typedef CUjit_option cu_jit_option;
typedef CUlibraryOption cu_library_option;
typedef CUdeviceptr cu_address;
typedef CUmemGenericAllocationHandle cu_handle;
typedef CUmemAllocationProp cu_prop;
typedef CUmemAccessDesc cu_access;

#include "device/cuda/driver.h"

#define F(member, symbol, parameters)                                                  \
    _Static_assert(                                                                    \
        __builtin_types_compatible_p(__typeof__(symbol), cu_result parameters),        \
        #symbol);
PTAC_CUDA_FUNCTIONS(F)
PTAC_CUDA_LAUNCH_FUNCTIONS(F)

#define SAME(ours, theirs)                                                             \
    _Static_assert(sizeof(ours) == sizeof(theirs), #ours " has another size");
#define SAME_PLACE(ours, our_field, theirs, their_field)                               \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field),         \
                   #our_field " is elsewhere");
SAME(ptac_cu_prop, CUmemAllocationProp)
SAME(ptac_cu_access, CUmemAccessDesc)
SAME_PLACE(ptac_cu_prop, requested_handle_types, CUmemAllocationProp,
           requestedHandleTypes)
SAME_PLACE(ptac_cu_prop, location, CUmemAllocationProp, location)
SAME_PLACE(ptac_cu_prop, location.id, CUmemAllocationProp, location.id)
SAME_PLACE(ptac_cu_prop, flags.is_rdma_capable, CUmemAllocationProp,
           allocFlags.gpuDirectRDMACapable)
SAME_PLACE(ptac_cu_access, flags, CUmemAccessDesc, flags)
SAME(int, CUresult)
SAME(int, CUstreamCaptureStatus)
SAME(unsigned long long, CUdeviceptr)
SAME(unsigned long long, CUmemGenericAllocationHandle)

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours);
EQUAL(PTAC_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
EQUAL(PTAC_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT)
EQUAL(PTAC_CU_NOT_READY, CUDA_ERROR_NOT_READY)
EQUAL(PTAC_CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
EQUAL(PTAC_CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
EQUAL(PTAC_CU_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
EQUAL(PTAC_CU_ATTRIBUTE_VMM_RDMA,
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
EQUAL(PTAC_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
EQUAL(PTAC_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)
EQUAL(PTAC_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED)
EQUAL(PTAC_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
EQUAL(PTAC_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
EQUAL(PTAC_CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
EQUAL(PTAC_CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE)
