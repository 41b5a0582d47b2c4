/*
 * RegisterCUDA.cc - torch's own kernels of the operators that we override on CUDA.
 *
 * They have torch's names and types, as libtorch_cuda exports them, so that overrides
 * find and call them as there. The file's name is what the dispatcher tells of torch's
 * own registrations.
 */
#include "torch_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cuda_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/_fused_rms_norm_backward_cuda_dispatch.h>
#include <ATen/ops/_fused_rms_norm_cuda_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cuda_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cuda_dispatch.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cuda_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cuda_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cuda_dispatch.h>
#include <ATen/ops/native_layer_norm_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_cuda_dispatch.h>
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

/* In float32, which CUDA's kernels keep between loads and stores of 16 bits. */
at::Tensor as_float(const at::Tensor &tensor)
{
    const bool is_double = tensor.scalar_type() == at::kDouble;

    return as_input(tensor).toType(is_double ? at::kDouble : at::kFloat);
}

std::optional<at::Tensor> as_float(const std::optional<at::Tensor> &tensor)
{
    return tensor && tensor->defined() ? std::optional(as_float(*tensor))
                                       : std::nullopt;
}

/* A result, or the undefined tensor that one is. */
at::Tensor as_output(const at::Tensor &tensor, const at::Tensor &like)
{
    return tensor.defined()
               ? emulated::on_device(tensor.toType(like.scalar_type()), like.device())
               : tensor;
}

/* The dimensions that a norm is taken over. */
std::vector<int64_t> last_dims(size_t n)
{
    std::vector<int64_t> dims;

    for (size_t i = 1; i <= n; i++)
        dims.push_back(-static_cast<int64_t>(i));
    return dims;
}

} // namespace

namespace at::cuda
{

EMULATED_API Tensor _log_softmax(const Tensor &self, int64_t dim, bool half_to_float)
{
    stock call("aten::_log_softmax", self);
    const Tensor y = at::cpu::_log_softmax(as_float(self), dim, false);

    return half_to_float ? emulated::on_device(y, self.device()) : as_output(y, self);
}

EMULATED_API Tensor _log_softmax_backward_data(const Tensor &grad, const Tensor &output,
                                               int64_t dim, ScalarType dtype)
{
    stock call("aten::_log_softmax_backward_data", grad);

    return emulated::on_device(
        at::cpu::_log_softmax_backward_data(as_float(grad), as_float(output), dim,
                                            as_float(grad).scalar_type())
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

EMULATED_API Tensor _softmax(const Tensor &self, int64_t dim, bool half_to_float)
{
    stock call("aten::_softmax", self);
    const Tensor y = at::cpu::_softmax(as_float(self), dim, false);

    return half_to_float ? emulated::on_device(y, self.device()) : as_output(y, self);
}

EMULATED_API Tensor _softmax_backward_data(const Tensor &grad, const Tensor &output,
                                           int64_t dim, ScalarType dtype)
{
    stock call("aten::_softmax_backward_data", grad);

    return emulated::on_device(
        at::cpu::_softmax_backward_data(as_float(grad), as_float(output), dim,
                                        as_float(grad).scalar_type())
            .toType(dtype),
        grad.device());
}

EMULATED_API std::tuple<Tensor, Tensor, Tensor> native_layer_norm(
    const Tensor &self, IntArrayRef normalized, const std::optional<Tensor> &weight,
    const std::optional<Tensor> &bias, double eps)
{
    stock call("aten::native_layer_norm", self);
    const auto [y, mean, rstd] = at::cpu::native_layer_norm(
        as_float(self), normalized, as_float(weight), as_float(bias), eps);

    return {as_output(y, self), emulated::on_device(mean, self.device()),
            emulated::on_device(rstd, self.device())};
}

EMULATED_API std::tuple<Tensor, Tensor, Tensor> native_layer_norm_backward(
    const Tensor &grad, const Tensor &self, IntArrayRef normalized, const Tensor &mean,
    const Tensor &rstd, const std::optional<Tensor> &weight,
    const std::optional<Tensor> &bias, std::array<bool, 3> mask)
{
    stock call("aten::native_layer_norm_backward", grad);
    const auto [of_x, of_weight, of_bias] = at::cpu::native_layer_norm_backward(
        as_float(grad), as_float(self), normalized, as_input(mean), as_input(rstd),
        as_float(weight), as_float(bias), mask);

    return {as_output(of_x, self), as_output(of_weight, self),
            as_output(of_bias, self)};
}

EMULATED_API std::tuple<Tensor, Tensor> _fused_rms_norm(
    const Tensor &self, IntArrayRef normalized, const std::optional<Tensor> &weight,
    std::optional<double> eps)
{
    stock call("aten::_fused_rms_norm", self);
    const Tensor x = as_float(self);
    const Tensor rstd = x.square()
                            .mean(last_dims(normalized.size()), true)
                            .add(eps.value_or(std::numeric_limits<float>::epsilon()))
                            .rsqrt();
    const auto w = as_float(weight);

    return {as_output(w ? x * rstd * *w : x * rstd, self),
            emulated::on_device(rstd, self.device())};
}

EMULATED_API std::tuple<Tensor, Tensor> _fused_rms_norm_backward(
    const Tensor &grad, const Tensor &self, IntArrayRef normalized, const Tensor &rstd,
    const std::optional<Tensor> &weight, std::array<bool, 2> mask)
{
    stock call("aten::_fused_rms_norm_backward", grad);
    const Tensor hat = as_float(self) * as_input(rstd);
    const auto w = as_float(weight);
    const Tensor g = w ? as_float(grad) * *w : as_float(grad);
    const Tensor mean = (g * hat).mean(last_dims(normalized.size()), true);
    const Tensor of_x = (g - hat * mean) * as_input(rstd);
    const Tensor of_weight = as_float(grad) * hat;

    return {mask[0] ? as_output(of_x, self) : Tensor(),
            mask[1] ? as_output(of_weight.sum_to_size(normalized), self) : Tensor()};
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
    m.impl("_softmax", at::cuda::_softmax);
    m.impl("_softmax_backward_data", at::cuda::_softmax_backward_data);
    m.impl("_fused_rms_norm", at::cuda::_fused_rms_norm);
    m.impl("_fused_rms_norm_backward", at::cuda::_fused_rms_norm_backward);
    m.impl("native_layer_norm", at::cuda::native_layer_norm);
    m.impl("native_layer_norm_backward", at::cuda::native_layer_norm_backward);
    m.impl("max_pool2d_with_indices", at::cuda::max_pool2d_with_indices);
    m.impl("max_pool2d_with_indices_backward",
           at::cuda::max_pool2d_with_indices_backward);
    m.impl("avg_pool2d", at::cuda::avg_pool2d);
    m.impl("avg_pool2d_backward", at::cuda::avg_pool2d_backward);
    m.impl("_adaptive_avg_pool2d", at::cuda::_adaptive_avg_pool2d);
    m.impl("_adaptive_avg_pool2d_backward", at::cuda::_adaptive_avg_pool2d_backward);
}
