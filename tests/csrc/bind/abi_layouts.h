/*
 * abi_layouts.h - our structs, and the codes of enumerations, beside torch's.
 *
 * A part of abi_guard.cpp, which includes the headers of both.
 */
#ifndef PTAC_TESTS_ABI_LAYOUTS_H
#define PTAC_TESTS_ABI_LAYOUTS_H

/* Our structs travel as theirs do: as large, as aligned, and made of plain words. */
template <typename Ours, typename Theirs>
constexpr bool travels_alike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_trivially_copyable_v<Theirs> &&std::is_trivially_destructible_v<Theirs>;
static_assert(travels_alike<at_ints, at::IntArrayRef>);
static_assert(travels_alike<at_ints, at::SymIntArrayRef>);
static_assert(sizeof(at_list_ref) == sizeof(at::ITensorListRef));
static_assert(int(c10::IListRefTag::Unboxed) == AT_LIST_SPAN);
static_assert(travels_alike<at_optional_int, std::optional<int64_t>>);
static_assert(travels_alike<at_optional_bool, std::optional<bool>>);
static_assert(travels_alike<at_optional_dtype, std::optional<at::ScalarType>>);
static_assert(travels_alike<at_optional_real, std::optional<double>>);
static_assert(travels_alike<at_optional_ints, at::OptionalIntArrayRef>);
static_assert(travels_alike<at_mask2, std::array<bool, 2>>);
static_assert(travels_alike<at_mask3, std::array<bool, 3>>);
/* Only its address crosses. */
static_assert(sizeof(at_optional_tensor) == sizeof(std::optional<at::Tensor>));
static_assert(sizeof(at_optional_generator) == sizeof(std::optional<at::Generator>));
static_assert(!std::is_trivially_copyable_v<std::optional<at::Generator>>);

/* What lies in an engine, which is looked for in generators. */
#include "ops/random/engine.h"
static_assert(sizeof(ptac_engine) == sizeof(at::mt19937_data_pod));
static_assert(sizeof(ptac_engine) == sizeof(at::mt19937));
static_assert(offsetof(ptac_engine, left) == offsetof(at::mt19937_data_pod, left_));
static_assert(offsetof(ptac_engine, is_seeded) ==
              offsetof(at::mt19937_data_pod, seeded_));
static_assert(offsetof(ptac_engine, next) == offsetof(at::mt19937_data_pod, next_));
static_assert(offsetof(ptac_engine, words) == offsetof(at::mt19937_data_pod, state_));
static_assert(sizeof(std::mutex) == sizeof(pthread_mutex_t));

/* A list is a pointer to a vector of values behind the head of what is counted. */
static_assert(sizeof(at::Scalar) == sizeof(at_scalar));
static_assert(sizeof(c10::IValue) == sizeof(at_value));
static_assert(sizeof(c10::List<std::optional<at::Tensor>>) == sizeof(at_tensor_list));
static_assert(sizeof(c10::intrusive_ptr_target) == offsetof(at_tensor_values, begin));
static_assert(
    std::is_same_v<decltype(c10::detail::ListImpl::list), std::vector<c10::IValue>>);

struct ints_inside : at::IntArrayRef {
    static constexpr bool as_ours()
    {
        return offsetof(ints_inside, Data) == offsetof(at_ints, data) &&
               offsetof(ints_inside, Length) == offsetof(at_ints, size);
    }
};
static_assert(ints_inside::as_ours());

static_assert(std::is_same_v<std::underlying_type_t<at::ScalarType>, int8_t>);
static_assert(std::is_same_v<std::underlying_type_t<at::DeviceType>, int8_t>);
static_assert(std::is_same_v<AOTITorchError, at_error>);

static_assert(AT_DTYPE_I8 == static_cast<int>(at::ScalarType::Char));
static_assert(AT_DTYPE_I16 == static_cast<int>(at::ScalarType::Short));
static_assert(AT_DTYPE_I32 == static_cast<int>(at::ScalarType::Int));
static_assert(AT_DTYPE_I64 == static_cast<int>(at::ScalarType::Long));
static_assert(AT_DTYPE_F16 == static_cast<int>(at::ScalarType::Half));
static_assert(AT_DTYPE_F32 == static_cast<int>(at::ScalarType::Float));
static_assert(AT_DTYPE_F64 == static_cast<int>(at::ScalarType::Double));
static_assert(AT_DTYPE_BOOL == static_cast<int>(at::ScalarType::Bool));
static_assert(AT_DTYPE_BF16 == static_cast<int>(at::ScalarType::BFloat16));
static_assert(AT_DTYPE_E4M3 == static_cast<int>(at::ScalarType::Float8_e4m3fn));
static_assert(std::is_same_v<std::underlying_type_t<at::Float32Backend>, int>);
static_assert(std::is_same_v<std::underlying_type_t<at::Float32Op>, int>);
static_assert(std::is_same_v<std::underlying_type_t<at::Float32Precision>, int>);
static_assert(AT_FLOAT32_MKLDNN == static_cast<int>(at::Float32Backend::MKLDNN));
static_assert(AT_FLOAT32_CONV == static_cast<int>(at::Float32Op::CONV));
static_assert(AT_FLOAT32_MATMUL == static_cast<int>(at::Float32Op::MATMUL));
static_assert(AT_FLOAT32_TF32 == static_cast<int>(at::Float32Precision::TF32));
static_assert(AT_FLOAT32_BF16 == static_cast<int>(at::Float32Precision::BF16));
static_assert(AT_DEVICE_CPU == static_cast<int>(at::DeviceType::CPU));
static_assert(AT_DEVICE_CUDA == static_cast<int>(at::DeviceType::CUDA));
static_assert(AT_MEMORY_FORMAT_CONTIGUOUS ==
              static_cast<int>(at::MemoryFormat::Contiguous));
static_assert(AT_MEMORY_FORMAT_CHANNELS_LAST ==
              static_cast<int>(at::MemoryFormat::ChannelsLast));
static_assert(AT_MEMORY_FORMAT_CHANNELS_LAST_3D ==
              static_cast<int>(at::MemoryFormat::ChannelsLast3d));

#endif
