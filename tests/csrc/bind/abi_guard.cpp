/*
 * abi_guard.cpp - our prototypes of libtorch beside torch's own headers.
 *
 * test_abi.py compiles this file against the installed torch and runs nothing: a type,
 * an enum code or a layout that differs is a failed static_assert. The tables at its
 * end hold every symbol for the test to look up.
 */
#define USE_CUDA /* declares what only builds for CUDA have */
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#undef USE_CUDA

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_cpu.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/c/shim.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cuda_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_cpu_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool3d_cpu_dispatch.h>
#include <ATen/ops/_embedding_bag_cpu_dispatch.h>
#include <ATen/ops/_embedding_bag_dense_backward_cpu_dispatch.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_cpu_dispatch.h>
#include <ATen/ops/_foreach_clamp_max_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_foreach_clamp_min_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_foreach_lerp_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_embedding_bag_forward_only_cpu_dispatch.h>
#include <ATen/ops/_fused_rms_norm_backward_cuda_dispatch.h>
#include <ATen/ops/_fused_rms_norm_cuda_dispatch.h>
#include <ATen/ops/_adaptive_avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/_index_put_impl_cpu_dispatch.h>
#include <ATen/ops/_local_scalar_dense_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/_native_multi_head_attention_cpu_dispatch.h>
#include <ATen/ops/_prelu_kernel_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cuda_dispatch.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cuda_dispatch.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/avg_pool3d_backward_cpu_dispatch.h>
#include <ATen/ops/avg_pool3d_cpu_dispatch.h>
#include <ATen/ops/binary_cross_entropy_backward_cpu_dispatch.h>
#include <ATen/ops/binary_cross_entropy_cpu_dispatch.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/constant_pad_nd_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/elu_backward_cpu_dispatch.h>
#include <ATen/ops/elu_cpu_dispatch.h>
#include <ATen/ops/embedding_dense_backward_cpu_dispatch.h>
#include <ATen/ops/gather_cpu_dispatch.h>
#include <ATen/ops/index_add_cpu_dispatch.h>
#include <ATen/ops/index_cpu_dispatch.h>
#include <ATen/ops/index_select_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/is_neg_native.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/hardsigmoid_backward_cpu_dispatch.h>
#include <ATen/ops/hardsigmoid_cpu_dispatch.h>
#include <ATen/ops/hardswish_backward_cpu_dispatch.h>
#include <ATen/ops/hardswish_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cuda_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cuda_dispatch.h>
#include <ATen/ops/max_pool3d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool3d_with_indices_cpu_dispatch.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/mish_backward_cpu_dispatch.h>
#include <ATen/ops/mish_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/mse_loss_backward_cpu_dispatch.h>
#include <ATen/ops/mse_loss_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cuda_dispatch.h>
#include <ATen/ops/native_layer_norm_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_cuda_dispatch.h>
#include <ATen/ops/pixel_shuffle_cpu_dispatch.h>
#include <ATen/ops/pixel_unshuffle_cpu_dispatch.h>
#include <ATen/ops/reflection_pad1d_backward_cpu_dispatch.h>
#include <ATen/ops/reflection_pad1d_cpu_dispatch.h>
#include <ATen/ops/reflection_pad2d_backward_cpu_dispatch.h>
#include <ATen/ops/reflection_pad2d_cpu_dispatch.h>
#include <ATen/ops/replication_pad1d_backward_cpu_dispatch.h>
#include <ATen/ops/replication_pad1d_cpu_dispatch.h>
#include <ATen/ops/replication_pad2d_backward_cpu_dispatch.h>
#include <ATen/ops/replication_pad2d_cpu_dispatch.h>
#include <ATen/ops/scatter_add_cpu_dispatch.h>
#include <ATen/ops/scatter_cpu_dispatch.h>
#include <ATen/ops/scatter_reduce_cpu_dispatch.h>
#include <ATen/ops/sort_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/silu_backward_cpu_dispatch.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <ATen/ops/smooth_l1_loss_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/smooth_l1_loss_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_backward_cpu_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest2d_backward_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest2d_cpu_dispatch.h>

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>

/* Of ATen/ops, in a header whose name is too long for a line. */
namespace at::compositeexplicitautograd
{
at::Tensor binary_cross_entropy_with_logits(const at::Tensor &, const at::Tensor &,
                                            const std::optional<at::Tensor> &,
                                            const std::optional<at::Tensor> &, int64_t);
}

/* Of torch/csrc/autograd/python_variable.h, which takes seconds to read. */
struct _object;
_object *THPVariable_Wrap(const at::TensorBase &var);

/* Of torch/csrc/autograd/variable.h and torch/csrc/jit/frontend/tracer.h, likewise. */
namespace torch::autograd::impl
{
void bump_version(const at::Tensor &);
}
namespace torch::jit::tracer
{
struct TracingState;
const std::shared_ptr<TracingState> &getTracingState();
} // namespace torch::jit::tracer

using at_tensor = AtenTensorHandle;
using at_list = StableListHandle;
using at_library = TorchLibraryHandle;
using at_text_box = StringHandle;
using stable_ivalue = StableIValue;

#define PTAC_ABI_GUARD
#include "bind/abi/torch_abi.h"

/* Declared by torch since 2.13; ours to look for, not torch's to declare, before. */
#if TORCH_FEATURE_VERSION < (((0ULL + 2) << 56) | ((0ULL + 13) << 48))
extern "C" {
at_error torch_new_stable_ivalue(stable_ivalue **);
at_error torch_delete_stable_ivalue(stable_ivalue *);
const char *torch_exception_get_what_without_backtrace();
}
#endif

/* The C functions: the very same types. */
#define F(type, name, parameters)                                                      \
    static_assert(std::is_same_v<decltype(&::name), type(*) parameters>,               \
                  "our prototype differs from torch's: " #name);
PTAC_TORCH_REQUIRED(F)
PTAC_TORCH_OPTIONAL(F)
#undef F

/* How a C++ type of theirs crosses a call on x86-64 and aarch64, as we declare it. */
template <typename Theirs> struct crossing {
    using type = Theirs;
    static_assert(std::is_arithmetic_v<Theirs>, "a type that has no place in C");
};
template <> struct crossing<const at::Tensor &> {
    using type = at_tensor; /* a handle is the address of an at::Tensor */
};
template <> struct crossing<const at::TensorBase &> {
    using type = at_tensor;
};
static_assert(offsetof(at_scalar, real) == alignof(c10::complex<double>));
template <> struct crossing<at::Tensor &> {
    using type = at_tensor;
};
template <> struct crossing<const c10::List<std::optional<at::Tensor>> &> {
    using type = const at_tensor_list *;
};
template <> struct crossing<const at::Scalar &> {
    using type = const at_scalar *;
};
template <> struct crossing<at::TensorList> {
    using type = at_tensor_span;
    static_assert(sizeof(at::Tensor) == sizeof(void *));
};
template <> struct crossing<const at::ITensorListRef &> {
    using type = const at_list_ref *;
};
template <> struct crossing<at::IntArrayRef> {
    using type = at_ints;
};
template <> struct crossing<at::SymIntArrayRef> {
    using type = at_ints; /* symbols are numbers far below zero */
    static_assert(sizeof(c10::SymInt) == sizeof(int64_t));
};
template <> struct crossing<std::optional<int64_t>> {
    using type = at_optional_int;
};
template <> struct crossing<std::optional<double>> {
    using type = at_optional_real;
};
template <> struct crossing<std::optional<bool>> {
    using type = at_optional_bool;
};
template <> struct crossing<std::optional<at::ScalarType>> {
    using type = at_optional_dtype;
};
template <> struct crossing<c10::string_view> {
    using type = at_text;
};
template <> struct crossing<at::ScalarType> {
    using type = int8_t;
};
template <> struct crossing<at::DeviceType> {
    using type = int8_t;
};
template <> struct crossing<at::OptionalIntArrayRef> {
    using type = at_optional_ints;
};
template <> struct crossing<std::array<bool, 2>> {
    using type = at_mask2;
};
template <> struct crossing<std::array<bool, 3>> {
    using type = at_mask3;
};
template <> struct crossing<const std::optional<at::Tensor> &> {
    using type = const at_optional_tensor *;
};

/*
 * What has a destructor comes back in memory that the caller lends, at an address that
 * travels as that of a C struct too large for registers does.
 */
template <typename Theirs>
constexpr bool returns_in_memory =
    sizeof(Theirs) <= sizeof(at_result) && sizeof(at_result) > 2 * sizeof(void *) &&
    !std::is_trivially_copyable_v<Theirs> && std::is_trivially_copyable_v<at_result>;

template <typename Theirs> struct in_c;
template <typename Result, typename... Parameters>
struct in_c<Result (*)(Parameters...)> {
    using type = at_result (*)(typename crossing<Parameters>::type...);
    static_assert(returns_in_memory<Result>, "a result that has no place in C");
};
/* What is returned by reference is one of the parameters. */
template <typename... Parameters> struct in_c<at::Tensor &(*)(Parameters...)> {
    using type = at_tensor (*)(typename crossing<Parameters>::type...);
};
template <typename... Parameters> struct in_c<at::Scalar (*)(Parameters...)> {
    using type = at_scalar (*)(typename crossing<Parameters>::type...);
    static_assert(!std::is_trivially_copyable_v<at::Scalar> &&
                  sizeof(at_scalar) > 2 * sizeof(void *));
};
template <typename... Parameters> struct in_c<void (*)(Parameters...)> {
    using type = void (*)(typename crossing<Parameters>::type...);
};
/* A counted pointer begins with the pointer. */
template <typename T> struct in_c<const std::shared_ptr<T> &(*)()> {
    using type = void *const *(*)();
};
template <> struct in_c<const at::Generator &(*)()> {
    using type = void *const *(*)();
};
template <> struct in_c<at::TensorBase (at::TensorBase::*)() const> {
    using type = at_result (*)(at_tensor); /* "this" travels as a reference would */
    static_assert(returns_in_memory<at::TensorBase>);
};
template <> struct in_c<at::Context &(*)()> {
    using type = const void *(*)();
};
template <> struct in_c<uint64_t (*)()> {
    using type = uint64_t (*)();
};
template <> struct in_c<int64_t (*)()> {
    using type = int64_t (*)();
};
template <> struct in_c<bool (c10::TensorImpl::*)() const> {
    using type = bool (*)(const void *);
};
/* Enumerations travel as the int that they are. */
template <>
struct in_c<at::Float32Precision (at::Context::*)(at::Float32Backend, at::Float32Op)
                const> {
    using type = int (*)(const void *, int, int);
};
template <typename... Parameters> struct in_c<bool (*)(Parameters...)> {
    using type = bool (*)(typename crossing<Parameters>::type...);
};
template <> struct in_c<int (*)()> {
    using type = int (*)();
};
template <typename... Parameters> struct in_c<at::ScalarType (*)(Parameters...)> {
    using type = int8_t (*)(typename crossing<Parameters>::type...);
};
template <> struct in_c<bool (at::Context::*)() const> {
    using type = bool (*)(const void *);
};
template <typename... Parameters> struct in_c<_object *(*)(Parameters...)> {
    using type = void *(*)(typename crossing<Parameters>::type...);
};

template <typename Theirs>
using in_c_t = typename in_c<std::remove_const_t<Theirs>>::type;

/* The C++ function behind each name of PTAC_TORCH_MANGLED. */
namespace theirs
{
constexpr auto tracing_state = &torch::jit::tracer::getTracingState;
constexpr auto global_context = &at::globalContext;
constexpr auto profiler_enabled = &torch::profiler::impl::profilerEnabled;
constexpr auto function_modes = &at::impl::PythonTorchFunctionTLS::stack_len;
constexpr auto float32_precision = &at::Context::float32Precision;
constexpr auto is_autocast_enabled =
    static_cast<bool (*)(at::DeviceType)>(&at::autocast::is_autocast_enabled);
constexpr auto autocast_dtype = &at::autocast::get_autocast_dtype;
constexpr auto autocast_cast =
    static_cast<at::Tensor (*)(at::ScalarType, const at::Tensor &, at::DeviceType)>(
        &at::autocast::cached_cast);
constexpr auto autocast_enter = &at::autocast::increment_nesting;
constexpr auto autocast_leave = &at::autocast::decrement_nesting;
constexpr auto onednn_is_allowed = &at::Context::userEnabledMkldnn;
constexpr auto convolution = &at::compositeexplicitautograd::convolution;
constexpr auto convolution_backward =
    &at::compositeexplicitautograd::convolution_backward;
constexpr auto foreach_clamp_min_ =
    static_cast<void (*)(at::TensorList, const at::Scalar &)>(
        &at::compositeexplicitautograd::_foreach_clamp_min_);
constexpr auto foreach_clamp_max_ =
    static_cast<void (*)(at::TensorList, const at::Scalar &)>(
        &at::compositeexplicitautograd::_foreach_clamp_max_);
constexpr auto foreach_lerp_ =
    static_cast<void (*)(at::TensorList, at::TensorList, const at::Scalar &)>(
        &at::compositeexplicitautograd::_foreach_lerp_);
constexpr auto cpu_unscale_grads_ =
    &at::cpu::_amp_foreach_non_finite_check_and_unscale_;
constexpr auto cpu_max_pool2d_with_indices = &at::cpu::max_pool2d_with_indices;
constexpr auto cpu_max_pool2d_with_indices_backward =
    &at::cpu::max_pool2d_with_indices_backward;
constexpr auto cpu_avg_pool2d = &at::cpu::avg_pool2d;
constexpr auto cpu_avg_pool2d_backward = &at::cpu::avg_pool2d_backward;
constexpr auto cpu_adaptive_avg_pool2d = &at::cpu::_adaptive_avg_pool2d;
constexpr auto cpu_adaptive_avg_pool2d_backward =
    &at::cpu::_adaptive_avg_pool2d_backward;
constexpr auto cpu_max_pool3d_with_indices = &at::cpu::max_pool3d_with_indices;
constexpr auto cpu_max_pool3d_with_indices_backward =
    &at::cpu::max_pool3d_with_indices_backward;
constexpr auto cpu_avg_pool3d = &at::cpu::avg_pool3d;
constexpr auto cpu_avg_pool3d_backward = &at::cpu::avg_pool3d_backward;
constexpr auto cpu_adaptive_avg_pool3d = &at::cpu::_adaptive_avg_pool3d;
constexpr auto cpu_adaptive_avg_pool3d_backward =
    &at::cpu::_adaptive_avg_pool3d_backward;
constexpr auto cpu_prelu_backward = &at::cpu::_prelu_kernel_backward;
constexpr auto cpu_mish = &at::cpu::mish;
constexpr auto cpu_mish_backward = &at::cpu::mish_backward;
constexpr auto cpu_gelu = &at::cpu::gelu;
constexpr auto cpu_gelu_backward = &at::cpu::gelu_backward;
constexpr auto cpu_tanh = &at::cpu::tanh;
constexpr auto cpu_sigmoid = &at::cpu::sigmoid;
constexpr auto cpu_silu = &at::cpu::silu;
constexpr auto cpu_silu_backward = &at::cpu::silu_backward;
constexpr auto cpu_hardswish = &at::cpu::hardswish;
constexpr auto cpu_hardswish_backward = &at::cpu::hardswish_backward;
constexpr auto cpu_hardsigmoid = &at::cpu::hardsigmoid;
constexpr auto cpu_hardsigmoid_backward = &at::cpu::hardsigmoid_backward;
constexpr auto cpu_binary_cross_entropy = &at::cpu::binary_cross_entropy;
constexpr auto cpu_binary_cross_entropy_backward =
    &at::cpu::binary_cross_entropy_backward;
constexpr auto binary_cross_entropy_with_logits =
    &at::compositeexplicitautograd::binary_cross_entropy_with_logits;
constexpr auto cpu_mse_loss = &at::cpu::mse_loss;
constexpr auto cpu_mse_loss_backward = &at::cpu::mse_loss_backward;
constexpr auto cpu_smooth_l1_loss = &at::cpu::smooth_l1_loss;
constexpr auto smooth_l1_loss_backward =
    &at::compositeexplicitautograd::smooth_l1_loss_backward;
constexpr auto cpu_upsample_nearest2d = &at::cpu::upsample_nearest2d;
constexpr auto cpu_upsample_nearest2d_backward = &at::cpu::upsample_nearest2d_backward;
constexpr auto cpu_upsample_bilinear2d = &at::cpu::upsample_bilinear2d;
constexpr auto cpu_upsample_bilinear2d_backward =
    &at::cpu::upsample_bilinear2d_backward;
constexpr auto cpu_mean = &at::cpu::mean;
constexpr auto cpu_pixel_shuffle = &at::cpu::pixel_shuffle;
constexpr auto cpu_pixel_unshuffle = &at::cpu::pixel_unshuffle;
constexpr auto cpu_cat = &at::cpu::cat;
constexpr auto constant_pad_nd = &at::compositeexplicitautograd::constant_pad_nd_symint;
constexpr auto cpu_reflection_pad1d = &at::cpu::reflection_pad1d;
constexpr auto cpu_reflection_pad1d_backward = &at::cpu::reflection_pad1d_backward;
constexpr auto cpu_reflection_pad2d = &at::cpu::reflection_pad2d;
constexpr auto cpu_reflection_pad2d_backward = &at::cpu::reflection_pad2d_backward;
constexpr auto cpu_replication_pad1d = &at::cpu::replication_pad1d;
constexpr auto cpu_replication_pad1d_backward = &at::cpu::replication_pad1d_backward;
constexpr auto cpu_replication_pad2d = &at::cpu::replication_pad2d;
constexpr auto cpu_replication_pad2d_backward = &at::cpu::replication_pad2d_backward;
constexpr auto cpu_mm = &at::cpu::mm;
constexpr auto cpu_addmm = &at::cpu::addmm;
constexpr auto cpu_bmm = &at::cpu::bmm;
constexpr auto cpu_baddbmm = &at::cpu::baddbmm;
constexpr auto cpu_index_select = &at::cpu::index_select;
constexpr auto cpu_index = &at::cpu::index;
constexpr auto cpu_gather = &at::cpu::gather;
constexpr auto cpu_index_add = &at::cpu::index_add;
constexpr auto cpu_index_add_ = &at::cpu::index_add_;
constexpr auto cpu_tanh_ = &at::cpu::tanh_;
constexpr auto cpu_sigmoid_ = &at::cpu::sigmoid_;
constexpr auto cpu_silu_ = &at::cpu::silu_;
constexpr auto cpu_mish_ = &at::cpu::mish_;
constexpr auto cpu_hardswish_ = &at::cpu::hardswish_;
constexpr auto cpu_hardsigmoid_ = &at::cpu::hardsigmoid_;
constexpr auto cpu_elu_ = &at::cpu::elu_;
constexpr auto cpu_scalar = &at::cpu::_local_scalar_dense;
constexpr auto cpu_scatter_add = &at::cpu::scatter_add;
constexpr auto cpu_scatter_add_ = &at::cpu::scatter_add_;
constexpr auto cpu_scatter_reduce = &at::cpu::scatter_reduce;
constexpr auto cpu_scatter_reduce_ = &at::cpu::scatter_reduce_;
constexpr at::Tensor (*cpu_scatter)(const at::Tensor &, int64_t, const at::Tensor &,
                                    const at::Scalar &) = &at::cpu::scatter;
constexpr at::Tensor &(*cpu_scatter_)(at::Tensor &, int64_t, const at::Tensor &,
                                      const at::Scalar &) = &at::cpu::scatter_;
constexpr auto cpu_index_put_impl_ = &at::cpu::_index_put_impl_;
constexpr auto cpu_elu = &at::cpu::elu;
constexpr auto cpu_elu_backward = &at::cpu::elu_backward;
constexpr auto cpu_embedding_backward = &at::cpu::embedding_dense_backward;
constexpr auto cpu_sort = &at::cpu::sort;
constexpr auto cpu_embedding_bag = &at::cpu::_embedding_bag;
constexpr auto cpu_embedding_bag_forward_only = &at::cpu::_embedding_bag_forward_only;
constexpr auto cpu_embedding_bag_backward = &at::cpu::_embedding_bag_dense_backward;
constexpr auto native_copy_ = &at::native::copy_;
constexpr auto native_is_neg = &at::native::is_neg;
constexpr auto cpu_log_softmax = &at::cpu::_log_softmax;
constexpr auto cpu_log_softmax_backward = &at::cpu::_log_softmax_backward_data;
constexpr auto cpu_softmax = &at::cpu::_softmax;
constexpr auto cpu_softmax_backward = &at::cpu::_softmax_backward_data;
constexpr auto cpu_multi_head_attention = &at::cpu::_native_multi_head_attention;
constexpr auto cpu_encoder_layer = &at::cpu::_transformer_encoder_layer_fwd;
constexpr auto cpu_layer_norm = &at::cpu::native_layer_norm;
constexpr auto cpu_layer_norm_backward = &at::cpu::native_layer_norm_backward;
constexpr auto cpu_batch_norm = &at::cpu::native_batch_norm;
constexpr auto cpu_batch_norm_backward = &at::cpu::native_batch_norm_backward;
constexpr auto cpu_attention = &at::cpu::_scaled_dot_product_flash_attention_for_cpu;
constexpr auto cpu_attention_backward =
    &at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward;
constexpr auto cuda_max_pool2d_with_indices = &at::cuda::max_pool2d_with_indices;
constexpr auto cuda_max_pool2d_with_indices_backward =
    &at::cuda::max_pool2d_with_indices_backward;
constexpr auto cuda_avg_pool2d = &at::cuda::avg_pool2d;
constexpr auto cuda_avg_pool2d_backward = &at::cuda::avg_pool2d_backward;
constexpr auto cuda_adaptive_avg_pool2d = &at::cuda::_adaptive_avg_pool2d;
constexpr auto cuda_adaptive_avg_pool2d_backward =
    &at::cuda::_adaptive_avg_pool2d_backward;
constexpr auto cuda_log_softmax = &at::cuda::_log_softmax;
constexpr auto cuda_log_softmax_backward = &at::cuda::_log_softmax_backward_data;
constexpr auto cuda_softmax = &at::cuda::_softmax;
constexpr auto cuda_softmax_backward = &at::cuda::_softmax_backward_data;
constexpr auto cuda_layer_norm = &at::cuda::native_layer_norm;
constexpr auto cuda_layer_norm_backward = &at::cuda::native_layer_norm_backward;
constexpr auto cuda_rms_norm = &at::cuda::_fused_rms_norm;
constexpr auto cuda_rms_norm_backward = &at::cuda::_fused_rms_norm_backward;
constexpr auto default_cpu_generator = &at::detail::getDefaultCPUGenerator;
constexpr auto requires_grad = &c10::TensorImpl::requires_grad;
constexpr auto next_node_number = &at::sequence_number::peek;
constexpr auto thread_number = &at::RecordFunction::currentThreadId;
constexpr auto current_node = &torch::autograd::get_current_node;
constexpr auto bump_version =
    static_cast<void (*)(const at::Tensor &)>(&torch::autograd::impl::bump_version);
constexpr at::TensorBase (at::TensorBase::*tensor_data)() const =
    &at::TensorBase::tensor_data;
constexpr auto THPVariable_Wrap =
    static_cast<_object *(*)(const at::TensorBase &)>(&::THPVariable_Wrap);
} // namespace theirs

#define M(type, name, symbol, parameters)                                              \
    static_assert(std::is_same_v<in_c_t<decltype(theirs::name)>, type(*) parameters>,  \
                  "we would call it wrongly: " #name);
PTAC_TORCH_MANGLED(M)
PTAC_TORCH_CUDA(M)
#undef M

/* A tensor is one counted pointer. */
static_assert(sizeof(at::Tensor) == sizeof(void *));
static_assert(sizeof(std::tuple<at::Tensor, at::Tensor>) == 2 * sizeof(void *));

#include "abi_layouts.h"

/* We speak the conventions of a libtorch that this one still understands. */
static_assert(PTAC_TORCH_ABI_VERSION <= TORCH_FEATURE_VERSION);

/*
 * Symbols for the test to compare: each function by the name that the compiler gives
 * it, beside the name that we look up.
 */
#define M(type, name, symbol, parameters) extern "C" char ours_##name[] __asm__(symbol);
PTAC_TORCH_MANGLED(M)
PTAC_TORCH_CUDA(M)
#undef M

/* A member function that is not virtual has an address like any other. */
#pragma GCC diagnostic ignored "-Wpmf-conversions"
#define IN_SECTION(name)                  __attribute__((section(name), used))
#define M(type, name, symbol, parameters) {(const void *)(theirs::name), ours_##name},
IN_SECTION("guard_mangled")
const void *mangled[][2] = {PTAC_TORCH_MANGLED(M)};
IN_SECTION("guard_cuda")
const void *on_cuda[][2] = {PTAC_TORCH_CUDA(M)};
#undef M

#define F(type, name, parameters) reinterpret_cast<const void *>(&::name),
IN_SECTION("guard_required")
const void *required[] = {PTAC_TORCH_REQUIRED(F)};
#undef F
