/*
 * torch_operators.cc - torch's operators on the emulated devices, by those of the CPU.
 *
 * What has no kernel of its own here falls back to one that calls the CPU's on tensors
 * in the same memory. Those that make tensors, or views, have kernels.
 */
#include "torch_parts.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <vector>

namespace
{

std::mutex &lock = *new std::mutex;
std::string &notes = *new std::string;

} // namespace

namespace emulated
{

void note(const std::string &name)
{
    std::lock_guard<std::mutex> guard(lock);

    notes += name + "\n";
}

at::Tensor on_cpu(const at::Tensor &tensor)
{
    const c10::Storage &from = tensor.storage();
    c10::Storage storage(c10::Storage::use_byte_size_t(), from.nbytes(),
                         at::DataPtr(from.mutable_data(), at::Device(at::kCPU)),
                         c10::GetAllocator(at::kCPU), true);
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());

    made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                      tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
}

at::Tensor on_device(const at::Tensor &tensor, at::Device device)
{
    at::Tensor made =
        empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), device);

    if (tensor.numel())
        memcpy(made.mutable_data_ptr(), tensor.const_data_ptr(),
               made.storage().nbytes());
    return made;
}

} // namespace emulated

extern "C" EMULATED_API const char *emulated_stock_calls(void)
{
    static thread_local std::string text;
    std::lock_guard<std::mutex> guard(lock);

    text.swap(notes);
    notes.clear();
    return text.c_str();
}

namespace
{

using c10::IValue;

/* Tensors of a call on a device, and what stands for them on the CPU. */
struct stand_ins {
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    std::optional<at::Device> device;

    at::Tensor of(const at::Tensor &tensor)
    {
        if (!tensor.defined() || !tensor.is_cuda())
            return tensor;
        if (!device)
            device = tensor.device();
        pairs.emplace_back(tensor, emulated::on_cpu(tensor));
        return pairs.back().second;
    }

    IValue of(const IValue &value)
    {
        if (value.isTensor())
            return of(value.toTensor());
        if (value.isDevice() && value.toDevice().is_cuda()) {
            if (!device)
                device = value.toDevice();
            return at::Device(at::kCPU);
        }
        if (value.isTensorList()) {
            c10::List<at::Tensor> list;

            for (const at::Tensor &tensor : value.toTensorVector())
                list.push_back(of(tensor));
            return list;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> list;

            for (const std::optional<at::Tensor> &tensor :
                 value.toOptionalTensorVector())
                list.push_back(tensor ? std::optional(of(*tensor)) : std::nullopt);
            return list;
        }
        return value;
    }

    /* Outputs that the CPU's kernel has given other sizes, or other memory. */
    void take_back_sizes()
    {
        for (auto &[original, stand_in] : pairs) {
            if (stand_in.sizes() == original.sizes() &&
                stand_in.storage().data() == original.storage().data())
                continue;
            emulated::grow(original, stand_in.storage().nbytes());
            if (stand_in.storage().data() != original.storage().data() &&
                stand_in.storage().nbytes())
                memcpy(original.storage().mutable_data(), stand_in.storage().data(),
                       stand_in.storage().nbytes());
            original.unsafeGetTensorImpl()->set_sizes_and_strides(
                stand_in.sizes(), stand_in.strides(), stand_in.storage_offset());
        }
    }

    at::Tensor back(const at::Tensor &result)
    {
        if (!result.defined())
            return result;
        for (auto &[original, stand_in] : pairs)
            if (stand_in.unsafeGetTensorImpl() == result.unsafeGetTensorImpl())
                return original;
        return emulated::on_device(
            result, device.value_or(at::Device(at::kCUDA, emulated_device())));
    }

    IValue back(const IValue &value)
    {
        if (value.isTensor())
            return back(value.toTensor());
        if (!value.isTensorList())
            return value;

        c10::List<at::Tensor> list;

        for (const at::Tensor &tensor : value.toTensorVector())
            list.push_back(back(tensor));
        return list;
    }
};

/* A kernel of CUDA's names its device first, and so has a context from then on. */
void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    const size_t n_arguments = op.schema().arguments().size();
    const size_t n_returns = op.schema().returns().size();
    at::AutoDispatchBelowADInplaceOrView below;
    emulated::opened memory;
    stand_ins s;

    emulated::note(op.schema().operator_name().name);
    if (op.schema().operator_name().name == "aten::_local_scalar_dense")
        emulated::refuse_in_capture("copy to the host");
    for (size_t i = stack->size() - n_arguments; i < stack->size(); i++)
        (*stack)[i] = s.of((*stack)[i]);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    s.take_back_sizes();
    for (size_t i = stack->size() - n_returns; i < stack->size(); i++)
        (*stack)[i] = s.back((*stack)[i]);
}

at::Device device_of(std::optional<at::Device> device)
{
    const int index =
        device && device->has_index() ? device->index() : emulated_device();

    return {at::kCUDA, (c10::DeviceIndex)index};
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format)
{
    at::Tensor made = emulated::empty_strided(
        sizes, c10::contiguous_strides(sizes),
        dtype.value_or(at::get_default_dtype_as_scalartype()), device_of(device));

    if (format && *format != at::MemoryFormat::Contiguous)
        made.unsafeGetTensorImpl()->empty_tensor_restride(*format);
    return made;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>)
{
    return emulated::empty_strided(
        sizes, strides, dtype.value_or(at::get_default_dtype_as_scalartype()),
        device_of(device));
}

at::Tensor &copy_(at::Tensor &self, const at::Tensor &from, bool)
{
    at::AutoDispatchBelowADInplaceOrView below;
    emulated::opened memory;

    if (self.is_cuda() != from.is_cuda())
        emulated::refuse_in_capture("copy from or to the host");
    else if (self.scalar_type() != from.scalar_type())
        emulated::note("aten::copy_");
    (self.is_cuda() ? emulated::on_cpu(self) : self)
        .copy_(from.is_cuda() ? emulated::on_cpu(from) : from);
    return self;
}

const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format)
{
    emulated::opened memory;
    c10::TensorImpl *impl = self.unsafeGetTensorImpl();

    impl->set_sizes_contiguous(sizes);
    if (format)
        impl->empty_tensor_restride(*format);
    emulated::grow(self, (size_t)(self.numel() + self.storage_offset()) *
                             self.element_size());
    return self;
}

at::Tensor &set_(at::Tensor &self, c10::Storage source, int64_t offset,
                 at::IntArrayRef sizes, at::IntArrayRef strides)
{
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
    self.unsafeGetTensorImpl()->set_sizes_and_strides(
        sizes,
        strides.empty() ? at::IntArrayRef(c10::contiguous_strides(sizes)) : strides,
        offset);
    return self;
}

at::Tensor unfold(const at::Tensor &self, int64_t dim, int64_t size, int64_t step)
{
    return at::native::unfold(self, dim, size, step);
}

at::Tensor view(const at::Tensor &self, at::IntArrayRef sizes)
{
    return at::native::view(self, sizes);
}

at::Tensor reshape_alias(const at::Tensor &self, at::IntArrayRef sizes,
                         at::IntArrayRef strides)
{
    return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor as_strided(const at::Tensor &self, at::IntArrayRef sizes,
                      at::IntArrayRef strides, std::optional<int64_t> offset)
{
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

} // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m)
{
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("copy_", copy_);
    m.impl("resize_", resize_);
    m.impl("set_.source_Storage_storage_offset", set_);
    m.impl("as_strided", as_strided);
    m.impl("view", view);
    m.impl("_reshape_alias", reshape_alias);
    m.impl("unfold", unfold);
}
