/*
 * RegisterCUDA.cc - torch's own kernels of the operators that we override on CUDA.
 *
 * They have torch's names and types, as libtorch_cuda exports them, so that overrides
 * find and call them as there. The file's name is what the dispatcher tells of torch's
 * own registrations.
 */
#include "torch_parts.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cuda_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cuda_dispatch.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cuda_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cuda_dispatch.h>
#include <torch/library.h>

namespace
{

/* What a kernel of torch's does around the work. */
struct stock {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::DeviceGuard on;
    emulated::opened memory;

    stock(const char *name, const at::Tensor &self) : on(self.device())
    {
        emulated::note(name);
    }
};

at::Tensor as_input(const at::Tensor &tensor)
{
    return tensor.is_cuda() ? emulated::on_cpu(tensor) : tensor;
}

} // namespace

namespace at::cuda
{

EMULATED_API Tensor _log_softmax(const Tensor &self, int64_t dim, bool half_to_float)
{
    stock call("aten::_log_softmax", self);
    const Tensor x = as_input(self);

    /* The CPU's kernel does not widen; CUDA's does. */
    return emulated::on_device(half_to_float
                                   ? at::cpu::_log_softmax(x.toType(kFloat), dim, false)
                                   : at::cpu::_log_softmax(x, dim, false),
                               self.device());
}

EMULATED_API Tensor _log_softmax_backward_data(const Tensor &grad, const Tensor &output,
                                               int64_t dim, ScalarType dtype)
{
    stock call("aten::_log_softmax_backward_data", grad);

    return emulated::on_device(
        at::cpu::_log_softmax_backward_data(as_input(grad), as_input(output), dim,
                                            grad.scalar_type())
            .toType(dtype),
        grad.device());
}

EMULATED_API std::tuple<Tensor, Tensor> max_pool2d_with_indices(
    const Tensor &self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool ceil_mode)
{
    stock call("aten::max_pool2d_with_indices", self);
    const auto [y, indices] = at::cpu::max_pool2d_with_indices(
        as_input(self), kernel, stride, padding, dilation, ceil_mode);

    return {emulated::on_device(y, self.device()),
            emulated::on_device(indices, self.device())};
}

EMULATED_API Tensor max_pool2d_with_indices_backward(
    const Tensor &grad, const Tensor &self, IntArrayRef kernel, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool ceil_mode, const Tensor &indices)
{
    stock call("aten::max_pool2d_with_indices_backward", grad);

    return emulated::on_device(at::cpu::max_pool2d_with_indices_backward(
                                   as_input(grad), as_input(self), kernel, stride,
                                   padding, dilation, ceil_mode, as_input(indices)),
                               grad.device());
}

EMULATED_API Tensor avg_pool2d(const Tensor &self, IntArrayRef kernel,
                               IntArrayRef stride, IntArrayRef padding, bool ceil_mode,
                               bool count_include_pad, std::optional<int64_t> divisor)
{
    stock call("aten::avg_pool2d", self);

    return emulated::on_device(at::cpu::avg_pool2d(as_input(self), kernel, stride,
                                                   padding, ceil_mode,
                                                   count_include_pad, divisor),
                               self.device());
}

EMULATED_API Tensor avg_pool2d_backward(const Tensor &grad, const Tensor &self,
                                        IntArrayRef kernel, IntArrayRef stride,
                                        IntArrayRef padding, bool ceil_mode,
                                        bool count_include_pad,
                                        std::optional<int64_t> divisor)
{
    stock call("aten::avg_pool2d_backward", grad);

    return emulated::on_device(
        at::cpu::avg_pool2d_backward(as_input(grad), as_input(self), kernel, stride,
                                     padding, ceil_mode, count_include_pad, divisor),
        grad.device());
}

EMULATED_API Tensor _adaptive_avg_pool2d(const Tensor &self, IntArrayRef size)
{
    stock call("aten::_adaptive_avg_pool2d", self);

    return emulated::on_device(at::cpu::_adaptive_avg_pool2d(as_input(self), size),
                               self.device());
}

EMULATED_API Tensor _adaptive_avg_pool2d_backward(const Tensor &grad,
                                                  const Tensor &self)
{
    stock call("aten::_adaptive_avg_pool2d_backward", grad);

    return emulated::on_device(
        at::cpu::_adaptive_avg_pool2d_backward(as_input(grad), as_input(self)),
        grad.device());
}

} // namespace at::cuda

TORCH_LIBRARY_IMPL(aten, CUDA, m)
{
    m.impl("_log_softmax", at::cuda::_log_softmax);
    m.impl("_log_softmax_backward_data", at::cuda::_log_softmax_backward_data);
    m.impl("max_pool2d_with_indices", at::cuda::max_pool2d_with_indices);
    m.impl("max_pool2d_with_indices_backward",
           at::cuda::max_pool2d_with_indices_backward);
    m.impl("avg_pool2d", at::cuda::avg_pool2d);
    m.impl("avg_pool2d_backward", at::cuda::avg_pool2d_backward);
    m.impl("_adaptive_avg_pool2d", at::cuda::_adaptive_avg_pool2d);
    m.impl("_adaptive_avg_pool2d_backward", at::cuda::_adaptive_avg_pool2d_backward);
}
