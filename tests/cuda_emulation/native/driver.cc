/*
 * driver.cc - the CUDA driver's entry points: contexts, streams, launches.
 *
 * They refuse what the real ones refuse. Those that calls of operators have no business
 * with are in other_calls.cc, and fail.
 */
#include "device.h"
#include "driver_parts.h"

extern "C" {
#include "device/cuda/driver.h"
#include "emulated_kernels.h"
}

#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

struct cu_context_opaque {
    int device;
};

struct cu_stream_opaque {
    int device, number;
    bool is_captured;
};

namespace
{

/* The driver's numbers. */
constexpr cu_result OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3,
                    INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400,
                    CAPTURE_IMPLICIT = 906, FAILURE = 999;

bool is_started, skips_launch;
cu_context_opaque contexts[EMULATED_DEVICES] = {{0}, {1}};
cu_stream_opaque streams[EMULATED_DEVICES][EMULATED_STREAMS];
thread_local std::vector<cu_context> stack; /* its last is current */

std::mutex &lock = *new std::mutex;
std::vector<std::string> &launched = *new std::vector<std::string>;
std::string &called = *new std::string;
std::string &to_fail = *new std::string;
char names[EMULATED_DEVICES][64] = {"emulated GPU", "emulated GPU"};

cu_context current()
{
    return stack.empty() ? nullptr : stack.back();
}

/* Of this thread's context, or another's that is alive; NULL: none of ours. */
const cu_stream_opaque *stream_of(cu_stream stream)
{
    if (!stream)
        return current() ? &streams[current()->device][0] : nullptr;
    for (auto &of_device : streams)
        for (auto &s : of_device)
            if (&s == stream && s.number > 0)
                return &s;
    return nullptr;
}

void note_launch(const std::string &name, const cu_stream_opaque *s)
{
    std::lock_guard<std::mutex> guard(lock);

    launched.push_back(name + " " + std::to_string(s->device) + " " +
                       std::to_string(s->number));
}

} // namespace

int note_call(const char *name)
{
    std::lock_guard<std::mutex> guard(lock);

    called += std::string(name) + "\n";
    if (to_fail == name) {
        to_fail.clear();
        return FAILURE;
    }
    return is_started || std::string(name) == "cuInit" ? OK : NOT_INITIALIZED;
}

#define NOTE()                                                                         \
    if (const int error = note_call(__func__))                                         \
    return error

extern "C" {

EMULATED_API cu_result cuInit(unsigned int flags)
{
    NOTE();
    for (int d = 0; d < EMULATED_DEVICES; d++)
        for (int s = 0; s < EMULATED_STREAMS; s++)
            streams[d][s] = {d, s, streams[d][s].is_captured};
    is_started = flags == 0;
    return flags == 0 ? OK : INVALID_VALUE;
}

EMULATED_API cu_result cuDeviceGet(cu_device *device, int number)
{
    NOTE();
    *device = number;
    return number >= 0 && number < EMULATED_DEVICES ? OK : INVALID_DEVICE;
}

EMULATED_API cu_result cuDeviceGetCount(int *n)
{
    NOTE();
    *n = EMULATED_DEVICES;
    return OK;
}

EMULATED_API cu_result cuDeviceGetName(char *name, int bytes, cu_device device)
{
    NOTE();
    snprintf(name, (size_t)bytes, "%s", names[device]);
    return OK;
}

/* An H100: compute capability 9.0; other numbers are nobody's. */
EMULATED_API cu_result cuDeviceGetAttribute(int *value, cu_attribute what, cu_device)
{
    enum { MULTIPROCESSORS = 16, THREADS = 39, MAJOR = 75, MINOR = 76 };

    NOTE();
    *value = what == MAJOR             ? 9
             : what == MINOR           ? 0
             : what == MULTIPROCESSORS ? 132
             : what == THREADS         ? 2048
                                       : -1;
    return *value >= 0 ? OK : INVALID_VALUE;
}

EMULATED_API cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    NOTE();
    *context = &contexts[device];
    return OK;
}

EMULATED_API cu_result cuCtxPushCurrent_v2(cu_context context)
{
    NOTE();
    if (context != &contexts[0] && context != &contexts[1])
        return INVALID_CONTEXT;
    stack.push_back(context);
    return OK;
}

EMULATED_API cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    NOTE();
    if (stack.empty())
        return INVALID_CONTEXT;
    *context = stack.back();
    stack.pop_back();
    return OK;
}

EMULATED_API cu_result cuCtxGetCurrent(cu_context *context)
{
    NOTE();
    *context = current();
    return OK;
}

EMULATED_API cu_result cuStreamIsCapturing(cu_stream stream, cu_capture_status *status)
{
    const cu_stream_opaque *s = stream_of(stream);

    NOTE();
    if (!s)
        return INVALID_HANDLE;
    if (!stream && emulated_is_capturing())
        return CAPTURE_IMPLICIT;
    *status = s->is_captured;
    return OK;
}

EMULATED_API cu_result cuGetErrorString(cu_result, const char **text)
{
    *text = "an error of the emulated driver";
    return OK;
}

EMULATED_API cu_result cuLibraryLoadData(cu_library *library, const void *code,
                                         cu_jit_option *options, void **values,
                                         unsigned int n, cu_library_option *others,
                                         void **other_values, unsigned int n_others)
{
    (void)options, (void)values, (void)others, (void)other_values;
    NOTE();
    return n || n_others ? INVALID_VALUE : emulated_library(library, code);
}

EMULATED_API cu_result cuLibraryGetKernel(cu_kernel *kernel, cu_library library,
                                          const char *name)
{
    NOTE();
    return emulated_kernel(kernel, library, name);
}

EMULATED_API cu_result cuLaunchKernel(cu_function kernel, unsigned int blocks_x,
                                      unsigned int blocks_y, unsigned int blocks_z,
                                      unsigned int threads_x, unsigned int threads_y,
                                      unsigned int threads_z, unsigned int shared_bytes,
                                      cu_stream stream, void **parameters, void **extra)
{
    const emulated_grid grid = {{blocks_x, blocks_y, blocks_z},
                                {threads_x, threads_y, threads_z}};
    const cu_stream_opaque *s = stream_of(stream);
    cu_result result;

    NOTE();
    if (!current())
        return INVALID_CONTEXT;
    if (!s || s->device != current()->device)
        return INVALID_HANDLE;
    if (shared_bytes || extra)
        return INVALID_VALUE;
    emulated_open();
    result =
        skips_launch || emulator_launch(kernel, &grid, parameters) ? OK : INVALID_VALUE;
    skips_launch = false;
    emulated_close();
    note_launch(emulator_name(kernel), s);
    return result;
}

} // extern "C"

bool emulated_begin(const char *name, void *stream)
{
    const cu_stream_opaque *s = stream_of(static_cast<cu_stream>(stream));

    if (!current() || !s || s->device != current()->device)
        return false;
    note_launch(name, s);
    emulated_open();
    return true;
}

void *emulated_stream(int device, int number)
{
    return number ? &streams[device][number] : nullptr;
}

int emulated_device(void)
{
    return current() ? current()->device : 0;
}

void emulated_set_device(int device)
{
    if (stack.empty())
        stack.push_back(nullptr);
    stack.back() = &contexts[device];
}

bool emulated_has_context(void)
{
    return current();
}

void emulated_capture(int device, int number, bool is_captured)
{
    streams[device][number].is_captured = is_captured;
}

bool emulated_is_capturing(void)
{
    for (auto &of_device : streams)
        for (auto &s : of_device)
            if (s.is_captured)
                return true;
    return false;
}

int64_t emulated_launches(void)
{
    std::lock_guard<std::mutex> guard(lock);

    return (int64_t)launched.size();
}

const char *emulated_launch(int64_t i)
{
    static thread_local std::string text;
    std::lock_guard<std::mutex> guard(lock);

    text = launched.at((size_t)i);
    return text.c_str();
}

const char *emulated_calls(void)
{
    static thread_local std::string text;
    std::lock_guard<std::mutex> guard(lock);

    text.swap(called);
    called.clear();
    return text.c_str();
}

void emulated_skip_launch(void)
{
    skips_launch = true;
}

void emulated_name(int device, const char *name)
{
    snprintf(names[device], sizeof names[device], "%s", name);
}

void emulated_fail(const char *name)
{
    std::lock_guard<std::mutex> guard(lock);

    to_fail = name ? name : "";
}
