/*
 * torch_device.cc - devices, streams, events and memory of the emulated libtorch_cuda.
 *
 * Streams are numbers: whatever is queued is done at once. Threads have no context
 * until they name a device, as with the runtime of CUDA.
 */
#include "torch_parts.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

namespace
{

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        const int device = emulated_device();
        void *memory = emulated_alloc(device, bytes);

        TORCH_CHECK_WITH(OutOfMemoryError, memory || !bytes, "CUDA out of memory");
        return {memory, memory, emulated_free,
                Device(DeviceType::CUDA, (DeviceIndex)device)};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return emulated_free;
    }
    void copy_data(void *to, const void *from, size_t n) const override
    {
        emulated::opened memory;

        default_copy_data(to, from, n);
    }
};

allocator &the_allocator = *new allocator;
thread_local std::array<int, EMULATED_DEVICES> current_streams;
std::atomic<int> next_stream{0};

Stream stream(int device, int number)
{
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, (DeviceIndex)device),
                  number);
}

struct guard final : c10::impl::DeviceGuardImplInterface {
    DeviceType type() const override
    {
        return DeviceType::CUDA;
    }
    Device exchangeDevice(Device device) const override
    {
        const Device before = getDevice();

        setDevice(device);
        return before;
    }
    Device getDevice() const override
    {
        return {DeviceType::CUDA, (DeviceIndex)emulated_device()};
    }
    void setDevice(Device device) const override
    {
        TORCH_CHECK(device.index() < EMULATED_DEVICES, "invalid device ordinal");
        if (device.index() >= 0 && device.index() != emulated_device())
            emulated_set_device(device.index());
    }
    void uncheckedSetDevice(Device device) const noexcept override
    {
        if (device.index() >= 0 && device.index() != emulated_device())
            emulated_set_device(device.index());
    }
    Stream getStream(Device device) const override
    {
        const int d = device.has_index() ? device.index() : emulated_device();

        return stream(d, current_streams[(size_t)d]);
    }
    Stream getDefaultStream(Device device) const override
    {
        return Stream(Stream::DEFAULT, device);
    }
    Stream getNewStream(Device device, int) const override
    {
        const int d = device.has_index() ? device.index() : emulated_device();
        const int n = next_stream++ % (EMULATED_STREAMS - 1) + 1;

        return stream(d, n);
    }
    Stream getStreamFromGlobalPool(Device device, bool) const override
    {
        return getNewStream(device, 0);
    }
    Stream exchangeStream(Stream stream) const override
    {
        const Stream before = getStream(stream.device());

        current_streams[(size_t)stream.device_index()] = (int)stream.id();
        return before;
    }
    void *getStreamNativeHandle(const Stream stream) const override
    {
        return emulated_stream(stream.device_index(), (int)stream.id());
    }
    void record(void **event, const Stream &, const DeviceIndex,
                const c10::EventFlag) const override
    {
        static int an_event;

        *event = &an_event;
    }
    void block(void *, const Stream &) const override
    {
    }
    bool queryEvent(void *) const override
    {
        return true;
    }
    void destroyEvent(void *, const DeviceIndex) const noexcept override
    {
    }
    DeviceIndex deviceCount() const noexcept override
    {
        return EMULATED_DEVICES;
    }
    bool queryStream(const Stream &) const override
    {
        return true;
    }
    void synchronizeStream(const Stream &) const override
    {
        emulated::refuse_in_capture("synchronize");
    }
    void synchronizeDevice(const DeviceIndex) const override
    {
        emulated::refuse_in_capture("synchronize");
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const Stream &) const override
    {
    }
};

C10_REGISTER_GUARD_IMPL(CUDA, guard)

struct set_allocator {
    set_allocator()
    {
        c10::SetAllocator(DeviceType::CUDA, &the_allocator);
    }
} at_start;

} // namespace

/* Found by torch under this name. */
struct CUDAHooks final : at::CUDAHooksInterface {
    explicit CUDAHooks(at::CUDAHooksArgs)
    {
    }
    void init() const override
    {
    }
    bool hasCUDA() const override
    {
        return true;
    }
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
    bool hasPrimaryContext(DeviceIndex) const override
    {
        return true;
    }
    DeviceIndex current_device() const override
    {
        return (DeviceIndex)emulated_device();
    }
    DeviceIndex deviceCount() const override
    {
        return EMULATED_DEVICES;
    }
    int getNumGPUs() const override
    {
        return EMULATED_DEVICES;
    }
    c10::Allocator *getCUDADeviceAllocator() const override
    {
        return &the_allocator;
    }
    bool isPinnedPtr(const void *) const override
    {
        return false;
    }
};

namespace at
{
REGISTER_CUDA_HOOKS(CUDAHooks)
}

namespace emulated
{

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         at::ScalarType dtype, at::Device device)
{
    c10::DeviceGuard on(device);

    return at::detail::empty_strided_generic(
        sizes, strides, &the_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
        dtype);
}

void grow(const at::Tensor &tensor, size_t bytes)
{
    c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
    c10::DeviceGuard on(tensor.device());

    if (storage->nbytes() >= bytes)
        return;

    c10::DataPtr fresh = the_allocator.allocate(bytes);

    if (storage->nbytes())
        memcpy(fresh.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
}

void refuse_in_capture(const char *what)
{
    TORCH_CHECK(!emulated_is_capturing(),
                "CUDA error: operation not permitted when "
                "stream is capturing: ",
                what);
}

} // namespace emulated

extern "C" EMULATED_API int32_t aoti_torch_get_current_cuda_stream(int32_t device,
                                                                   void **stream)
{
    *stream = emulated_stream(device, current_streams[(size_t)device]);
    return 0;
}
