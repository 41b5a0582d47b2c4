/*
 * driver.h - the functions of the CUDA driver that we call, in our own prototypes.
 *
 * Nothing is linked and no toolkit is needed to build: ptac_cuda_load() looks each
 * symbol up in the driver that the machine has. tests/csrc/device/cuda_guard.c compiles
 * this list beside cuda.h and fails where a type differs.
 *
 * Source: CUDA driver API, 12.0 to 13.0.
 */
#ifndef PTAC_DEVICE_CUDA_DRIVER_H
#define PTAC_DEVICE_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ptac_cu_location {
    int type; /* 1: a device */
    int id;
} ptac_cu_location;

typedef struct ptac_cu_prop {
    int type; /* 1: pinned, the only one */
    int requested_handle_types;
    ptac_cu_location location;
    void *win32_handle_metadata;
    struct {
        unsigned char compression_type;
        unsigned char is_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} ptac_cu_prop;

typedef struct ptac_cu_access {
    ptac_cu_location location;
    int flags; /* 3: read and write */
} ptac_cu_access;

#ifndef PTAC_CUDA_GUARD
typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef int cu_attribute;
typedef int cu_granularity;
typedef int cu_capture_status;
typedef int cu_capture_mode;
typedef struct cu_context_opaque *cu_context;
typedef struct cu_stream_opaque *cu_stream;
typedef struct cu_event_opaque *cu_event;
typedef struct cu_library_opaque *cu_library;
typedef struct cu_kernel_opaque *cu_kernel;
typedef struct cu_kernel_opaque *cu_function; /* kernels of libraries will do */
typedef int cu_jit_option;
typedef int cu_library_option;
typedef unsigned long long cu_address;
typedef unsigned long long cu_handle; /* memory, which lives until it is unmapped too */
typedef ptac_cu_prop cu_prop;
typedef ptac_cu_access cu_access;
#endif

/* F(member, symbol, parameters): all return a cu_result. */
#define PTAC_CUDA_FUNCTIONS(F)                                                         \
    F(init, cuInit, (unsigned int))                                                    \
    F(error_text, cuGetErrorString, (cu_result, const char **))                        \
    F(device_count, cuDeviceGetCount, (int *))                                         \
    F(device_get, cuDeviceGet, (cu_device *, int))                                     \
    F(device_name, cuDeviceGetName, (char *, int, cu_device))                          \
    F(device_attribute, cuDeviceGetAttribute, (int *, cu_attribute, cu_device))        \
    F(device_total, cuDeviceTotalMem_v2, (size_t *, cu_device))                        \
    F(context_retain, cuDevicePrimaryCtxRetain, (cu_context *, cu_device))             \
    F(context_push, cuCtxPushCurrent_v2, (cu_context))                                 \
    F(context_pop, cuCtxPopCurrent_v2, (cu_context *))                                 \
    F(context_current, cuCtxGetCurrent, (cu_context *))                                \
    F(context_synchronize, cuCtxSynchronize, (void))                                   \
    F(memory_info, cuMemGetInfo_v2, (size_t *, size_t *))                              \
    F(granularity, cuMemGetAllocationGranularity,                                      \
      (size_t *, const cu_prop *, cu_granularity))                                     \
    F(address_reserve, cuMemAddressReserve,                                            \
      (cu_address *, size_t, size_t, cu_address, unsigned long long))                  \
    F(address_free, cuMemAddressFree, (cu_address, size_t))                            \
    F(memory_create, cuMemCreate,                                                      \
      (cu_handle *, size_t, const cu_prop *, unsigned long long))                      \
    F(memory_release, cuMemRelease, (cu_handle))                                       \
    F(memory_map, cuMemMap,                                                            \
      (cu_address, size_t, size_t, cu_handle, unsigned long long))                     \
    F(memory_unmap, cuMemUnmap, (cu_address, size_t))                                  \
    F(memory_access, cuMemSetAccess, (cu_address, size_t, const cu_access *, size_t))  \
    F(event_create, cuEventCreate, (cu_event *, unsigned int))                         \
    F(event_record, cuEventRecord, (cu_event, cu_stream))                              \
    F(event_query, cuEventQuery, (cu_event))                                           \
    F(event_destroy, cuEventDestroy_v2, (cu_event))                                    \
    F(stream_wait, cuStreamWaitEvent, (cu_stream, cu_event, unsigned int))             \
    F(stream_is_capturing, cuStreamIsCapturing, (cu_stream, cu_capture_status *))      \
    F(capture_mode, cuThreadExchangeStreamCaptureMode, (cu_capture_mode *))            \
    F(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned int))             \
    F(host_unregister, cuMemHostUnregister, (void *))

/* What calls of kernels take besides, see launch.h. */
#define PTAC_CUDA_LAUNCH_FUNCTIONS(F)                                                  \
    F(driver_version, cuDriverGetVersion, (int *))                                     \
    F(library_load, cuLibraryLoadData,                                                 \
      (cu_library *, const void *, cu_jit_option *, void **, unsigned int,             \
       cu_library_option *, void **, unsigned int))                                    \
    F(library_kernel, cuLibraryGetKernel, (cu_kernel *, cu_library, const char *))     \
    F(launch, cuLaunchKernel,                                                          \
      (cu_function, unsigned int, unsigned int, unsigned int, unsigned int,            \
       unsigned int, unsigned int, unsigned int, cu_stream, void **, void **))

/* Values of the driver's enums. */
enum {
    PTAC_CU_OK = 0,
    PTAC_CU_OUT_OF_MEMORY = 2,
    PTAC_CU_INVALID_CONTEXT = 201,
    PTAC_CU_NOT_READY = 600,

    PTAC_CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    PTAC_CU_ATTRIBUTE_THREADS = 39, /* that a multiprocessor can hold */
    PTAC_CU_ATTRIBUTE_MAJOR = 75,   /* of the compute capability */
    PTAC_CU_ATTRIBUTE_MINOR = 76,
    PTAC_CU_ATTRIBUTE_VMM = 102,      /* has virtual memory management */
    PTAC_CU_ATTRIBUTE_VMM_RDMA = 110, /* and network cards may read such memory */
    PTAC_CU_GRANULARITY_MINIMUM = 0,
    PTAC_CU_LOCATION_DEVICE = 1,
    PTAC_CU_ALLOCATION_PINNED = 1,
    PTAC_CU_ACCESS_READ_WRITE = 3,
    PTAC_CU_EVENT_DISABLE_TIMING = 2,
    PTAC_CU_CAPTURE_MODE_RELAXED = 2,
    PTAC_CU_HOST_REGISTER_PORTABLE = 1,
};

#ifndef PTAC_CUDA_GUARD
typedef struct ptac_cuda_functions {
#define F(member, symbol, parameters) cu_result(*member) parameters;
    PTAC_CUDA_FUNCTIONS(F)
    PTAC_CUDA_LAUNCH_FUNCTIONS(F)
#undef F
} ptac_cuda_functions;

/* Filled by ptac_cuda_load(); those for launches as far as the driver has them. */
extern ptac_cuda_functions ptac_cuda;

/*
 * Looks the driver's functions up, once, and does not start it: a process that has
 * started it cannot use it in its children. NULL, or why there is none.
 */
const char *ptac_cuda_find(const char *library);

/*
 * Finds the driver and starts it, once; thread-safe. library is "libcuda.so.1", or NULL
 * for the program itself (tests). NULL, or why there is none; the text stays good.
 */
const char *ptac_cuda_load(const char *library);

/*
 * What machine code has to be for: the driver's CUDA version as 1000 * major + 10 *
 * minor, and the compute capability of each device, 90 for 9.0. The driver is loaded.
 * NULL, or why that cannot be told.
 */
enum {
    PTAC_CUDA_MOST_DEVICES = 64,
};

typedef struct ptac_cuda_target {
    int driver_version;
    int n_devices;
    int capability[PTAC_CUDA_MOST_DEVICES];
} ptac_cuda_target;

const char *ptac_cuda_target_of_machine(ptac_cuda_target *target);

/* One device, with its primary context retained for good. */
typedef struct ptac_cuda_device {
    int number;
    cu_context context;
    size_t total_bytes;
    size_t granularity; /* of memory behind reserved addresses */
    cu_prop prop;
    cu_access access;
} ptac_cuda_device;

/* The driver is loaded. NULL, or why this device cannot be used. */
const char *ptac_cuda_device_open(ptac_cuda_device *device, int number);

/*
 * Calls that name no stream, and those on the default stream, are the current
 * context's: between these two it is the device's, whatever the thread had before.
 */
bool ptac_cuda_enter(const ptac_cuda_device *device);
/* Gives its argument on. */
cu_result ptac_cuda_leave(cu_result result);

/* What a call of the driver gives between these two. */
#define PTAC_CUDA_WITHIN(device, call)                                                 \
    (ptac_cuda_enter(device) ? ptac_cuda_leave(call) : PTAC_CU_INVALID_CONTEXT)

/* The driver's words for a result. */
const char *ptac_cuda_text(cu_result result);
#endif

#endif
