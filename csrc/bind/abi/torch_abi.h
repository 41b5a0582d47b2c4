/*
 * torch_abi.h - the part of libtorch's C ABI that we call, in our own prototypes.
 *
 * Nothing is linked: ptac_torch_load() looks symbols up in the process's libtorch.
 * tests/csrc/bind/abi_guard.cpp fails where headers of the installed torch differ.
 *
 * Sources: torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h.
 */
#ifndef PTAC_BIND_ABI_TORCH_ABI_H
#define PTAC_BIND_ABI_TORCH_ABI_H

#include "bind/abi/torch_cuda.h"
#include "bind/abi/torch_foreign.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef PTAC_ABI_GUARD
typedef struct at_tensor_opaque *at_tensor;   /* at::Tensor*, owned or borrowed */
typedef struct at_list_opaque *at_list;       /* a list of stable_ivalue */
typedef struct at_library_opaque *at_library; /* registrations, undone on deletion */
typedef struct at_text_opaque *at_text_box;   /* std::string*, owned */
typedef uint64_t stable_ivalue;               /* one argument of a boxed call */
#endif

typedef int32_t at_error; /* 0: success */
typedef void (*at_boxed_fn)(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns);
typedef void (*at_range_fn)(int64_t begin, int64_t end, void *context);

/* The libtorch whose schema conventions our boxed calls speak: 2.11. */
#define PTAC_TORCH_ABI_VERSION ((uint64_t)2 << 56 | (uint64_t)11 << 48)

/* Codes of the c10 enums that cross the ABI. */
enum {
    AT_DTYPE_U8 = 0,
    AT_DTYPE_I8 = 1,
    AT_DTYPE_I16 = 2,
    AT_DTYPE_I32 = 3,
    AT_DTYPE_I64 = 4,
    AT_DTYPE_F16 = 5,
    AT_DTYPE_F32 = 6,
    AT_DTYPE_F64 = 7,
    AT_DTYPE_BOOL = 11,
    AT_DTYPE_BF16 = 15,
    AT_DTYPE_E4M3 = 24,
    AT_DEVICE_CPU = 0,
    AT_DEVICE_CUDA = 1,
    AT_FLOAT32_MKLDNN = 2, /* whose float32 */
    AT_FLOAT32_CONV = 1,   /* in which operators */
    AT_FLOAT32_MATMUL = 3,
    AT_FLOAT32_TF32 = 2, /* is computed how */
    AT_FLOAT32_BF16 = 3,
    AT_MEMORY_FORMAT_CONTIGUOUS = 0,
    AT_MEMORY_FORMAT_CHANNELS_LAST = 2,
    AT_MEMORY_FORMAT_CHANNELS_LAST_3D = 3,
};

/* F(return type, name, parameters): the package is inactive without these. */
#define PTAC_TORCH_REQUIRED(F)                                                         \
    F(at_error, aoti_torch_library_init_impl,                                          \
      (const char *, const char *, const char *, uint32_t, at_library *))              \
    F(at_error, torch_library_impl, (at_library, const char *, at_boxed_fn, uint64_t)) \
    F(at_error, aoti_torch_delete_library_object, (at_library))                        \
    F(at_error, torch_call_dispatcher,                                                 \
      (const char *, const char *, stable_ivalue *, uint64_t))                         \
    F(at_error, aoti_torch_new_tensor_handle, (at_tensor, at_tensor *))                \
    F(at_error, aoti_torch_new_uninitialized_tensor, (at_tensor *))                    \
    F(at_error, aoti_torch_delete_tensor_object, (at_tensor))                          \
    F(at_error, aoti_torch_empty_strided,                                              \
      (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t,           \
       at_tensor *))                                                                   \
    F(at_error, aoti_torch_create_tensor_from_blob,                                    \
      (void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t,   \
       int32_t, at_tensor *))                                                          \
    F(at_error, aoti_torch__reinterpret_tensor,                                        \
      (at_tensor, int64_t, const int64_t *, const int64_t *, int64_t, at_tensor *))    \
    F(at_error, aoti_torch_get_data_ptr, (at_tensor, void **))                         \
    F(at_error, aoti_torch_get_dim, (at_tensor, int64_t *))                            \
    F(at_error, aoti_torch_get_numel, (at_tensor, int64_t *))                          \
    F(at_error, aoti_torch_get_sizes, (at_tensor, int64_t **))                         \
    F(at_error, aoti_torch_get_strides, (at_tensor, int64_t **))                       \
    F(at_error, aoti_torch_get_dtype, (at_tensor, int32_t *))                          \
    F(at_error, aoti_torch_is_defined, (at_tensor, bool *))                            \
    F(bool, aoti_torch_grad_mode_is_enabled, (void))                                   \
    F(void, aoti_torch_check,                                                          \
      (bool, const char *, const char *, uint32_t, const char *))                      \
    F(at_error, torch_new_list_reserve_size, (size_t, at_list *))                      \
    F(at_error, torch_list_size, (at_list, size_t *))                                  \
    F(at_error, torch_list_get_item, (at_list, size_t, stable_ivalue *))               \
    F(at_error, torch_list_push_back, (at_list, stable_ivalue))                        \
    F(at_error, torch_delete_list, (at_list))                                          \
    F(at_error, torch_new_string_handle, (const char *, size_t, at_text_box *))        \
    F(at_error, torch_string_length, (at_text_box, size_t *))                          \
    F(at_error, torch_string_c_str, (at_text_box, const char **))                      \
    F(at_error, torch_delete_string, (at_text_box))                                    \
    F(at_error, torch_parallel_for, (int64_t, int64_t, int64_t, at_range_fn, void *))  \
    F(at_error, torch_get_num_threads, (uint32_t *))                                   \
    F(at_error, aoti_torch_cpu_addmm_out,                                              \
      (at_tensor, at_tensor, at_tensor, at_tensor, double, double))                    \
    F(at_error, aoti_torch_cpu_mm_out, (at_tensor, at_tensor, at_tensor))

/* What calls on a CUDA device need; the last one only builds for CUDA have. */
#define PTAC_TORCH_CUDA_C(F)                                                           \
    F(at_error, aoti_torch_get_device_type, (at_tensor, int32_t *))                    \
    F(at_error, aoti_torch_get_device_index, (at_tensor, int32_t *))                   \
    F(at_error, aoti_torch_copy_, (at_tensor, at_tensor, int32_t))                     \
    F(at_error, aoti_torch_get_current_cuda_stream, (int32_t, void **))

/* What newer versions add, or builds may lack; each has a fallback. */
#define PTAC_TORCH_OPTIONAL(F)                                                         \
    PTAC_TORCH_CUDA_C(F)                                                               \
    F(at_error, torch_new_stable_ivalue, (stable_ivalue **))                           \
    F(at_error, torch_delete_stable_ivalue, (stable_ivalue *))                         \
    F(const char *, torch_exception_get_what_without_backtrace, (void))                \
    F(at_error, aoti_torch_cpu_bmm_out, (at_tensor, at_tensor, at_tensor))             \
    F(at_error, aoti_torch_cpu__linear_pointwise,                                      \
      (at_tensor, at_tensor, at_tensor *, const char *, const double **, int64_t,      \
       const char **, at_tensor *))                                                    \
    F(at_error, aoti_torch_cpu__linear_pointwise_binary,                               \
      (at_tensor, at_tensor, at_tensor, at_tensor *, const char *, at_tensor *))       \
    F(at_error, aoti_torch_cpu_convolution,                                            \
      (at_tensor, at_tensor, at_tensor *, const int64_t *, int64_t, const int64_t *,   \
       int64_t, const int64_t *, int64_t, int32_t, const int64_t *, int64_t, int64_t,  \
       at_tensor *))                                                                   \
    F(at_error, aoti_torch_cpu_convolution_backward,                                   \
      (at_tensor, at_tensor, at_tensor, const int64_t **, int64_t, const int64_t *,    \
       int64_t, const int64_t *, int64_t, const int64_t *, int64_t, int32_t,           \
       const int64_t *, int64_t, int64_t, const int32_t *, int64_t, at_tensor *,       \
       at_tensor *, at_tensor *))

/*
 * A c10::Scalar: what it is, and at 16 bytes that. Torch's headers hide where, so that
 * who reads one looks at known ones first (cpu_scalar).
 */
typedef struct at_scalar {
    int32_t tag;
    int32_t unused[3];
    union {
        double real;
        int64_t number;
        uint64_t words[2];
    };
} at_scalar;

enum {
    AT_SCALAR_REAL = 0,
    AT_SCALAR_INT = 1,
};

/*
 * What a C++ function returns that has a destructor: a tensor, a tuple of them, a
 * counted pointer. The caller lends memory for it. Its address travels as that of a C
 * struct too large for registers does: in rdi on x86-64, before all parameters, and in
 * x8 on aarch64. Only the words that the C++ type has are written.
 */
typedef struct at_result {
    void *words[4];
} at_result;

/* An ArrayRef<int64_t> and optional numbers, which C++ passes as C does. */
typedef struct at_ints {
    const int64_t *data;
    size_t size;
} at_ints;

typedef struct at_optional_int {
    int64_t value;
    bool has_value;
} at_optional_int;

typedef struct at_optional_real {
    double value;
    bool has_value;
} at_optional_real;

typedef struct at_optional_bool {
    bool value;
    bool has_value;
} at_optional_bool;

/* A std::string_view of libstdc++. */
typedef struct at_text {
    size_t length;
    const char *text;
} at_text;

/* An OptionalArrayRef<int64_t>, a std::array<bool, 3>, and an optional<Tensor> behind
 * its address. */
typedef struct at_optional_ints {
    at_ints value;
    bool has_value;
} at_optional_ints;

typedef struct at_mask2 {
    bool values[2];
} at_mask2;

typedef struct at_mask3 {
    bool values[3];
} at_mask3;

typedef struct at_optional_tensor {
    void *impl;
    bool has_value;
} at_optional_tensor;

/*
 * A c10::List<std::optional<Tensor>> is one pointer, to a vector of values that lies
 * behind a head. A value is a word, of a tensor what a handle points to, and a tag.
 */
typedef struct at_value {
    void *payload;
    uint32_t tag;
} at_value;

typedef struct at_tensor_values {
    void *head[2];
    at_value *begin, *end;
} at_tensor_values;

typedef struct at_tensor_list {
    const at_tensor_values *values;
} at_tensor_list;

enum {
    AT_VALUE_NONE = 0,
    AT_VALUE_TENSOR = 1,
};

/* An optional<Generator>, which a C++ call passes by its address as well. */
typedef struct at_optional_generator {
    void *impl;
    bool has_value;
} at_optional_generator;

/* std::string of libstdc++ since GCC 5; a short text lies inside, where text points. */
typedef struct at_string {
    const char *text;
    size_t length;
    union {
        char inside[16];
        size_t capacity;
    };
} at_string;

#include "bind/abi/torch_lists.h"

/*
 * M(return type, name, mangled symbol, parameters): C++ functions. The mangled name
 * holds the parameter types, so a changed signature is a missing symbol; results are
 * probed when they are first used. Tensors come back as bare TensorImpl pointers, a
 * tuple's last member first.
 *
 * at::cpu::<op> and at::compositeexplicitautograd::<op> are torch's own kernels, below
 * every override. So are at::cuda::<op>, of builds for CUDA, which torch_cuda.h has.
 */
#define PTAC_TORCH_MANGLED(M)                                                          \
    M(at_result, convolution,                                                          \
      "_ZN2at25compositeexplicitautograd11convolutionERKNS_6TensorES3_"                \
      "RKSt8optionalIS1_EN3c108ArrayRefIlEESA_SA_bSA_l",                               \
      (at_tensor, at_tensor, const at_optional_tensor *, at_ints, at_ints, at_ints,    \
       bool, at_ints, int64_t))                                                        \
    M(at_result, convolution_backward,                                                 \
      "_ZN2at25compositeexplicitautograd20convolution_backwardERKNS_6TensorES3_S3_"    \
      "N3c1016OptionalArrayRefIlEENS4_8ArrayRefIlEES8_S8_bS8_lSt5arrayIbLm3EE",        \
      (at_tensor, at_tensor, at_tensor, at_optional_ints, at_ints, at_ints, at_ints,   \
       bool, at_ints, int64_t, at_mask3))                                              \
    M(void *const *, tracing_state, "_ZN5torch3jit6tracer15getTracingStateEv", (void)) \
    M(const void *, global_context, "_ZN2at13globalContextEv", (void))                 \
    M(bool, profiler_enabled, "_ZN5torch8profiler4impl15profilerEnabledEv", (void))    \
    M(int64_t, function_modes, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",      \
      (void))                                                                          \
    M(int, float32_precision,                                                          \
      "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE",          \
      (const void *, int, int))                                                        \
    M(at_result, cpu_max_pool2d_with_indices,                                          \
      "_ZN2at3cpu23max_pool2d_with_indicesERKNS_6TensorEN3c108ArrayRefIlEES6_S6_S6_b", \
      (at_tensor, at_ints, at_ints, at_ints, at_ints, bool))                           \
    M(at_result, cpu_max_pool2d_with_indices_backward,                                 \
      "_ZN2at3cpu32max_pool2d_with_indices_backwardERKNS_6TensorES3_"                  \
      "N3c108ArrayRefIlEES6_S6_S6_bS3_",                                               \
      (at_tensor, at_tensor, at_ints, at_ints, at_ints, at_ints, bool, at_tensor))     \
    M(at_result, cpu_avg_pool2d,                                                       \
      "_ZN2at3cpu10avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEES6_S6_bbSt8optionalIlE",  \
      (at_tensor, at_ints, at_ints, at_ints, bool, bool, at_optional_int))             \
    M(at_result, cpu_avg_pool2d_backward,                                              \
      "_ZN2at3cpu19avg_pool2d_backwardERKNS_6TensorES3_"                               \
      "N3c108ArrayRefIlEES6_S6_bbSt8optionalIlE",                                      \
      (at_tensor, at_tensor, at_ints, at_ints, at_ints, bool, bool, at_optional_int))  \
    M(at_result, cpu_adaptive_avg_pool2d,                                              \
      "_ZN2at3cpu20_adaptive_avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEE",              \
      (at_tensor, at_ints))                                                            \
    M(at_result, cpu_adaptive_avg_pool2d_backward,                                     \
      "_ZN2at3cpu29_adaptive_avg_pool2d_backwardERKNS_6TensorES3_",                    \
      (at_tensor, at_tensor))                                                          \
    M(at_result, cpu_max_pool3d_with_indices,                                          \
      "_ZN2at3cpu23max_pool3d_with_indicesERKNS_6TensorEN3c108ArrayRefIlEES6_S6_S6_b", \
      (at_tensor, at_ints, at_ints, at_ints, at_ints, bool))                           \
    M(at_result, cpu_max_pool3d_with_indices_backward,                                 \
      "_ZN2at3cpu32max_pool3d_with_indices_backwardERKNS_6TensorES3_"                  \
      "N3c108ArrayRefIlEES6_S6_S6_bS3_",                                               \
      (at_tensor, at_tensor, at_ints, at_ints, at_ints, at_ints, bool, at_tensor))     \
    M(at_result, cpu_avg_pool3d,                                                       \
      "_ZN2at3cpu10avg_pool3dERKNS_6TensorEN3c108ArrayRefIlEES6_S6_bbSt8optionalIlE",  \
      (at_tensor, at_ints, at_ints, at_ints, bool, bool, at_optional_int))             \
    M(at_result, cpu_avg_pool3d_backward,                                              \
      "_ZN2at3cpu19avg_pool3d_backwardERKNS_6TensorES3_"                               \
      "N3c108ArrayRefIlEES6_S6_bbSt8optionalIlE",                                      \
      (at_tensor, at_tensor, at_ints, at_ints, at_ints, bool, bool, at_optional_int))  \
    M(at_result, cpu_adaptive_avg_pool3d,                                              \
      "_ZN2at3cpu20_adaptive_avg_pool3dERKNS_6TensorEN3c108ArrayRefIlEE",              \
      (at_tensor, at_ints))                                                            \
    M(at_result, cpu_adaptive_avg_pool3d_backward,                                     \
      "_ZN2at3cpu29_adaptive_avg_pool3d_backwardERKNS_6TensorES3_",                    \
      (at_tensor, at_tensor))                                                          \
    M(at_result, cpu_prelu_backward,                                                   \
      "_ZN2at3cpu22_prelu_kernel_backwardERKNS_6TensorES3_S3_",                        \
      (at_tensor, at_tensor, at_tensor))                                               \
    M(at_result, cpu_mish, "_ZN2at3cpu4mishERKNS_6TensorE", (at_tensor))               \
    M(at_result, cpu_mish_backward, "_ZN2at3cpu13mish_backwardERKNS_6TensorES3_",      \
      (at_tensor, at_tensor))                                                          \
    M(at_result, cpu_gelu,                                                             \
      "_ZN2at3cpu4geluERKNS_6TensorESt17basic_string_viewIcSt11char_traitsIcEE",       \
      (at_tensor, at_text))                                                            \
    M(at_result, cpu_gelu_backward,                                                    \
      "_ZN2at3cpu13gelu_backwardERKNS_6TensorES3_"                                     \
      "St17basic_string_viewIcSt11char_traitsIcEE",                                    \
      (at_tensor, at_tensor, at_text))                                                 \
    M(at_result, cpu_tanh, "_ZN2at3cpu4tanhERKNS_6TensorE", (at_tensor))               \
    M(at_result, cpu_sigmoid, "_ZN2at3cpu7sigmoidERKNS_6TensorE", (at_tensor))         \
    M(at_result, cpu_silu, "_ZN2at3cpu4siluERKNS_6TensorE", (at_tensor))               \
    M(at_result, cpu_elu, "_ZN2at3cpu3eluERKNS_6TensorERKN3c106ScalarES7_S7_",         \
      (at_tensor, const at_scalar *, const at_scalar *, const at_scalar *))            \
    M(at_result, cpu_elu_backward,                                                     \
      "_ZN2at3cpu12elu_backwardERKNS_6TensorERKN3c106ScalarES7_S7_bS3_",               \
      (at_tensor, const at_scalar *, const at_scalar *, const at_scalar *, bool,       \
       at_tensor))                                                                     \
    M(at_result, cpu_silu_backward, "_ZN2at3cpu13silu_backwardERKNS_6TensorES3_",      \
      (at_tensor, at_tensor))                                                          \
    M(at_result, cpu_hardswish, "_ZN2at3cpu9hardswishERKNS_6TensorE", (at_tensor))     \
    M(at_result, cpu_hardswish_backward,                                               \
      "_ZN2at3cpu18hardswish_backwardERKNS_6TensorES3_", (at_tensor, at_tensor))       \
    M(at_result, cpu_hardsigmoid, "_ZN2at3cpu11hardsigmoidERKNS_6TensorE",             \
      (at_tensor))                                                                     \
    M(at_result, cpu_hardsigmoid_backward,                                             \
      "_ZN2at3cpu20hardsigmoid_backwardERKNS_6TensorES3_", (at_tensor, at_tensor))     \
    M(at_result, cpu_binary_cross_entropy,                                             \
      "_ZN2at3cpu20binary_cross_entropyERKNS_6TensorES3_RKSt8optionalIS1_El",          \
      (at_tensor, at_tensor, const at_optional_tensor *, int64_t))                     \
    M(at_result, cpu_binary_cross_entropy_backward,                                    \
      "_ZN2at3cpu29binary_cross_entropy_backwardERKNS_6TensorES3_S3_"                  \
      "RKSt8optionalIS1_El",                                                           \
      (at_tensor, at_tensor, at_tensor, const at_optional_tensor *, int64_t))          \
    M(at_result, binary_cross_entropy_with_logits,                                     \
      "_ZN2at25compositeexplicitautograd32binary_cross_entropy_with_logits"            \
      "ERKNS_6TensorES3_RKSt8optionalIS1_ES7_l",                                       \
      (at_tensor, at_tensor, const at_optional_tensor *, const at_optional_tensor *,   \
       int64_t))                                                                       \
    M(at_result, cpu_mse_loss, "_ZN2at3cpu8mse_lossERKNS_6TensorES3_l",                \
      (at_tensor, at_tensor, int64_t))                                                 \
    M(at_result, cpu_mse_loss_backward,                                                \
      "_ZN2at3cpu17mse_loss_backwardERKNS_6TensorES3_S3_l",                            \
      (at_tensor, at_tensor, at_tensor, int64_t))                                      \
    M(at_result, cpu_smooth_l1_loss, "_ZN2at3cpu14smooth_l1_lossERKNS_6TensorES3_ld",  \
      (at_tensor, at_tensor, int64_t, double))                                         \
    M(at_result, smooth_l1_loss_backward,                                              \
      "_ZN2at25compositeexplicitautograd23smooth_l1_loss_backward"                     \
      "ERKNS_6TensorES3_S3_ld",                                                        \
      (at_tensor, at_tensor, at_tensor, int64_t, double))                              \
    M(at_result, cpu_upsample_nearest2d,                                               \
      "_ZN2at3cpu18upsample_nearest2dERKNS_6TensorEN3c108ArrayRefIlEE"                 \
      "St8optionalIdES8_",                                                             \
      (at_tensor, at_ints, at_optional_real, at_optional_real))                        \
    M(at_result, cpu_upsample_nearest2d_backward,                                      \
      "_ZN2at3cpu27upsample_nearest2d_backwardERKNS_6TensorEN3c108ArrayRefIlEE"        \
      "S6_St8optionalIdES8_",                                                          \
      (at_tensor, at_ints, at_ints, at_optional_real, at_optional_real))               \
    M(at_result, cpu_upsample_bilinear2d,                                              \
      "_ZN2at3cpu19upsample_bilinear2dERKNS_6TensorEN3c108ArrayRefIlEEb"               \
      "St8optionalIdES8_",                                                             \
      (at_tensor, at_ints, bool, at_optional_real, at_optional_real))                  \
    M(at_result, cpu_upsample_bilinear2d_backward,                                     \
      "_ZN2at3cpu28upsample_bilinear2d_backwardERKNS_6TensorEN3c108ArrayRefIlEE"       \
      "S6_bSt8optionalIdES8_",                                                         \
      (at_tensor, at_ints, at_ints, bool, at_optional_real, at_optional_real))         \
    M(at_result, cpu_pixel_shuffle, "_ZN2at3cpu13pixel_shuffleERKNS_6TensorEl",        \
      (at_tensor, int64_t))                                                            \
    M(at_result, cpu_pixel_unshuffle, "_ZN2at3cpu15pixel_unshuffleERKNS_6TensorEl",    \
      (at_tensor, int64_t))                                                            \
    M(at_result, constant_pad_nd,                                                      \
      "_ZN2at25compositeexplicitautograd22constant_pad_nd_symintERKNS_6TensorE"        \
      "N3c108ArrayRefINS4_6SymIntEEERKNS4_6ScalarE",                                   \
      (at_tensor, at_ints, const at_scalar *))                                         \
    M(at_result, cpu_reflection_pad1d,                                                 \
      "_ZN2at3cpu16reflection_pad1dERKNS_6TensorEN3c108ArrayRefIlEE",                  \
      (at_tensor, at_ints))                                                            \
    M(at_result, cpu_reflection_pad1d_backward,                                        \
      "_ZN2at3cpu25reflection_pad1d_backwardERKNS_6TensorES3_N3c108ArrayRefIlEE",      \
      (at_tensor, at_tensor, at_ints))                                                 \
    M(at_result, cpu_reflection_pad2d,                                                 \
      "_ZN2at3cpu16reflection_pad2dERKNS_6TensorEN3c108ArrayRefIlEE",                  \
      (at_tensor, at_ints))                                                            \
    M(at_result, cpu_reflection_pad2d_backward,                                        \
      "_ZN2at3cpu25reflection_pad2d_backwardERKNS_6TensorES3_N3c108ArrayRefIlEE",      \
      (at_tensor, at_tensor, at_ints))                                                 \
    M(at_result, cpu_replication_pad1d,                                                \
      "_ZN2at3cpu17replication_pad1dERKNS_6TensorEN3c108ArrayRefIlEE",                 \
      (at_tensor, at_ints))                                                            \
    M(at_result, cpu_replication_pad1d_backward,                                       \
      "_ZN2at3cpu26replication_pad1d_backwardERKNS_6TensorES3_N3c108ArrayRefIlEE",     \
      (at_tensor, at_tensor, at_ints))                                                 \
    M(at_result, cpu_replication_pad2d,                                                \
      "_ZN2at3cpu17replication_pad2dERKNS_6TensorEN3c108ArrayRefIlEE",                 \
      (at_tensor, at_ints))                                                            \
    M(at_result, cpu_replication_pad2d_backward,                                       \
      "_ZN2at3cpu26replication_pad2d_backwardERKNS_6TensorES3_N3c108ArrayRefIlEE",     \
      (at_tensor, at_tensor, at_ints))                                                 \
    M(at_result, cpu_multi_head_attention,                                             \
      "_ZN2at3cpu28_native_multi_head_attentionERKNS_6TensorES3_S3_ll"                 \
      "S3_S3_S3_S3_RKSt8optionalIS1_EbbS4_IlE",                                        \
      (at_tensor, at_tensor, at_tensor, int64_t, int64_t, at_tensor, at_tensor,        \
       at_tensor, at_tensor, const at_optional_tensor *, bool, bool, at_optional_int)) \
    M(at_result, cpu_encoder_layer,                                                    \
      "_ZN2at3cpu30_transformer_encoder_layer_fwdERKNS_6TensorEll"                     \
      "S3_S3_S3_S3_bbdS3_S3_S3_S3_S3_S3_S3_S3_RKSt8optionalIS1_ES4_IlE",               \
      (at_tensor, int64_t, int64_t, at_tensor, at_tensor, at_tensor, at_tensor, bool,  \
       bool, double, at_tensor, at_tensor, at_tensor, at_tensor, at_tensor, at_tensor, \
       at_tensor, at_tensor, const at_optional_tensor *, at_optional_int))             \
    M(at_result, cpu_mm, "_ZN2at3cpu2mmERKNS_6TensorES3_", (at_tensor, at_tensor))     \
    M(at_result, cpu_addmm, "_ZN2at3cpu5addmmERKNS_6TensorES3_S3_RKN3c106ScalarES7_",  \
      (at_tensor, at_tensor, at_tensor, const at_scalar *, const at_scalar *))         \
    M(at_result, cpu_bmm, "_ZN2at3cpu3bmmERKNS_6TensorES3_", (at_tensor, at_tensor))   \
    M(at_result, cpu_baddbmm,                                                          \
      "_ZN2at3cpu7baddbmmERKNS_6TensorES3_S3_RKN3c106ScalarES7_",                      \
      (at_tensor, at_tensor, at_tensor, const at_scalar *, const at_scalar *))         \
    M(at_result, cpu_index_select, "_ZN2at3cpu12index_selectERKNS_6TensorElS3_",       \
      (at_tensor, int64_t, at_tensor))                                                 \
    M(at_result, cpu_index,                                                            \
      "_ZN2at3cpu5indexERKNS_6TensorERKN3c104ListISt8optionalIS1_EEE",                 \
      (at_tensor, const at_tensor_list *))                                             \
    M(at_result, cpu_gather, "_ZN2at3cpu6gatherERKNS_6TensorElS3_b",                   \
      (at_tensor, int64_t, at_tensor, bool))                                           \
    M(at_result, cpu_index_add,                                                        \
      "_ZN2at3cpu9index_addERKNS_6TensorElS3_S3_RKN3c106ScalarE",                      \
      (at_tensor, int64_t, at_tensor, at_tensor, const at_scalar *))                   \
    M(at_tensor, cpu_tanh_, "_ZN2at3cpu5tanh_ERNS_6TensorE", (at_tensor))              \
    M(at_tensor, cpu_sigmoid_, "_ZN2at3cpu8sigmoid_ERNS_6TensorE", (at_tensor))        \
    M(at_tensor, cpu_silu_, "_ZN2at3cpu5silu_ERNS_6TensorE", (at_tensor))              \
    M(at_tensor, cpu_mish_, "_ZN2at3cpu5mish_ERNS_6TensorE", (at_tensor))              \
    M(at_tensor, cpu_hardswish_, "_ZN2at3cpu10hardswish_ERNS_6TensorE", (at_tensor))   \
    M(at_tensor, cpu_hardsigmoid_, "_ZN2at3cpu12hardsigmoid_ERNS_6TensorE",            \
      (at_tensor))                                                                     \
    M(at_tensor, cpu_elu_, "_ZN2at3cpu4elu_ERNS_6TensorERKN3c106ScalarES6_S6_",        \
      (at_tensor, const at_scalar *, const at_scalar *, const at_scalar *))            \
    M(at_tensor, cpu_index_add_,                                                       \
      "_ZN2at3cpu10index_add_ERNS_6TensorElRKS1_S4_RKN3c106ScalarE",                   \
      (at_tensor, int64_t, at_tensor, at_tensor, const at_scalar *))                   \
    M(at_scalar, cpu_scalar, "_ZN2at3cpu19_local_scalar_denseERKNS_6TensorE",          \
      (at_tensor))                                                                     \
    M(at_result, cpu_scatter_add, "_ZN2at3cpu11scatter_addERKNS_6TensorElS3_S3_",      \
      (at_tensor, int64_t, at_tensor, at_tensor))                                      \
    M(at_tensor, cpu_scatter_add_, "_ZN2at3cpu12scatter_add_ERNS_6TensorElRKS1_S4_",   \
      (at_tensor, int64_t, at_tensor, at_tensor))                                      \
    M(at_result, cpu_scatter_reduce,                                                   \
      "_ZN2at3cpu14scatter_reduceERKNS_6TensorElS3_S3_"                                \
      "St17basic_string_viewIcSt11char_traitsIcEEb",                                   \
      (at_tensor, int64_t, at_tensor, at_tensor, at_text, bool))                       \
    M(at_tensor, cpu_scatter_reduce_,                                                  \
      "_ZN2at3cpu15scatter_reduce_ERNS_6TensorElRKS1_S4_"                              \
      "St17basic_string_viewIcSt11char_traitsIcEEb",                                   \
      (at_tensor, int64_t, at_tensor, at_tensor, at_text, bool))                       \
    M(at_result, cpu_scatter, "_ZN2at3cpu7scatterERKNS_6TensorElS3_RKN3c106ScalarE",   \
      (at_tensor, int64_t, at_tensor, const at_scalar *))                              \
    M(at_tensor, cpu_scatter_,                                                         \
      "_ZN2at3cpu8scatter_ERNS_6TensorElRKS1_RKN3c106ScalarE",                         \
      (at_tensor, int64_t, at_tensor, const at_scalar *))                              \
    M(at_tensor, cpu_index_put_impl_,                                                  \
      "_ZN2at3cpu16_index_put_impl_ERNS_6TensorE"                                      \
      "RKN3c104ListISt8optionalIS1_EEERKS1_bb",                                        \
      (at_tensor, const at_tensor_list *, at_tensor, bool, bool))                      \
    M(at_result, cpu_embedding_backward,                                               \
      "_ZN2at3cpu24embedding_dense_backwardERKNS_6TensorES3_llb",                      \
      (at_tensor, at_tensor, int64_t, int64_t, bool))                                  \
    M(at_result, cpu_sort, "_ZN2at3cpu4sortERKNS_6TensorESt8optionalIbElb",            \
      (at_tensor, at_optional_bool, int64_t, bool))                                    \
    M(at_result, cpu_embedding_bag,                                                    \
      "_ZN2at3cpu14_embedding_bagERKNS_6TensorES3_S3_blbRKSt8optionalIS1_Ebl",         \
      (at_tensor, at_tensor, at_tensor, bool, int64_t, bool,                           \
       const at_optional_tensor *, bool, int64_t))                                     \
    M(at_result, cpu_embedding_bag_forward_only,                                       \
      "_ZN2at3cpu27_embedding_bag_forward_onlyERKNS_6TensorES3_S3_blb"                 \
      "RKSt8optionalIS1_Ebl",                                                          \
      (at_tensor, at_tensor, at_tensor, bool, int64_t, bool,                           \
       const at_optional_tensor *, bool, int64_t))                                     \
    M(at_result, cpu_embedding_bag_backward,                                           \
      "_ZN2at3cpu29_embedding_bag_dense_backwardERKNS_6TensorES3_S3_S3_S3_lbl"         \
      "RKSt8optionalIS1_El",                                                           \
      (at_tensor, at_tensor, at_tensor, at_tensor, at_tensor, int64_t, bool, int64_t,  \
       const at_optional_tensor *, int64_t))                                           \
    PTAC_TORCH_LISTS(M)                                                                \
    M(at_tensor, native_copy_, "_ZN2at6native5copy_ERNS_6TensorERKS1_b",               \
      (at_tensor, at_tensor, bool))                                                    \
    M(bool, native_is_neg, "_ZN2at6native6is_negERKNS_6TensorE", (at_tensor))          \
    M(at_result, cpu_log_softmax, "_ZN2at3cpu12_log_softmaxERKNS_6TensorElb",          \
      (at_tensor, int64_t, bool))                                                      \
    M(at_result, cpu_log_softmax_backward,                                             \
      "_ZN2at3cpu26_log_softmax_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE",    \
      (at_tensor, at_tensor, int64_t, int8_t))                                         \
    M(at_result, cpu_softmax, "_ZN2at3cpu8_softmaxERKNS_6TensorElb",                   \
      (at_tensor, int64_t, bool))                                                      \
    M(at_result, cpu_softmax_backward,                                                 \
      "_ZN2at3cpu22_softmax_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE",        \
      (at_tensor, at_tensor, int64_t, int8_t))                                         \
    M(at_result, cpu_layer_norm,                                                       \
      "_ZN2at3cpu17native_layer_normERKNS_6TensorEN3c108ArrayRefIlEE"                  \
      "RKSt8optionalIS1_ESA_d",                                                        \
      (at_tensor, at_ints, const at_optional_tensor *, const at_optional_tensor *,     \
       double))                                                                        \
    M(at_result, cpu_layer_norm_backward,                                              \
      "_ZN2at3cpu26native_layer_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEE"      \
      "S3_S3_RKSt8optionalIS1_ESA_St5arrayIbLm3EE",                                    \
      (at_tensor, at_tensor, at_ints, at_tensor, at_tensor,                            \
       const at_optional_tensor *, const at_optional_tensor *, at_mask3))              \
    M(at_result, cpu_batch_norm,                                                       \
      "_ZN2at3cpu17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd",     \
      (at_tensor, const at_optional_tensor *, const at_optional_tensor *,              \
       const at_optional_tensor *, const at_optional_tensor *, bool, double, double))  \
    M(at_result, cpu_batch_norm_backward,                                              \
      "_ZN2at3cpu26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_E"      \
      "S7_S7_S7_S7_bdSt5arrayIbLm3EE",                                                 \
      (at_tensor, at_tensor, const at_optional_tensor *, const at_optional_tensor *,   \
       const at_optional_tensor *, const at_optional_tensor *,                         \
       const at_optional_tensor *, bool, double, at_mask3))                            \
    M(at_result, cpu_attention,                                                        \
      "_ZN2at3cpu43_scaled_dot_product_flash_attention_for_cpu"                        \
      "ERKNS_6TensorES3_S3_dbRKSt8optionalIS1_ES4_IdE",                                \
      (at_tensor, at_tensor, at_tensor, double, bool, const at_optional_tensor *,      \
       at_optional_real))                                                              \
    M(at_result, cpu_attention_backward,                                               \
      "_ZN2at3cpu52_scaled_dot_product_flash_attention_for_cpu_backward"               \
      "ERKNS_6TensorES3_S3_S3_S3_S3_dbRKSt8optionalIS1_ES4_IdE",                       \
      (at_tensor, at_tensor, at_tensor, at_tensor, at_tensor, at_tensor, double, bool, \
       const at_optional_tensor *, at_optional_real))                                  \
    M(bool, is_autocast_enabled,                                                       \
      "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", (int8_t))             \
    M(int8_t, autocast_dtype,                                                          \
      "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", (int8_t))              \
    M(at_result, autocast_cast,                                                        \
      "_ZN2at8autocast11cached_castEN3c1010ScalarTypeERKNS_6TensorENS1_10DeviceTypeE", \
      (int8_t, at_tensor, int8_t))                                                     \
    M(int, autocast_enter, "_ZN2at8autocast17increment_nestingEv", (void))             \
    M(int, autocast_leave, "_ZN2at8autocast17decrement_nestingEv", (void))             \
    M(void *const *, default_cpu_generator, "_ZN2at6detail22getDefaultCPUGeneratorEv", \
      (void))                                                                          \
    M(bool, onednn_is_allowed, "_ZNK2at7Context17userEnabledMkldnnEv", (const void *)) \
    M(bool, requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv", (const void *))    \
    M(uint64_t, next_node_number, "_ZN2at15sequence_number4peekEv", (void))            \
    M(uint64_t, thread_number, "_ZN2at14RecordFunction15currentThreadIdEv", (void))    \
    M(at_result, current_node, "_ZN5torch8autograd16get_current_nodeEv", (void))       \
    M(void, bump_version, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",      \
      (at_tensor))                                                                     \
    M(at_result, tensor_data, "_ZNK2at10TensorBase11tensor_dataEv", (at_tensor))       \
    M(void *, THPVariable_Wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE", (at_tensor))

#define PTAC_TORCH_ALL(F, M)                                                           \
    PTAC_TORCH_REQUIRED(F)                                                             \
    PTAC_TORCH_OPTIONAL(F)                                                             \
    PTAC_TORCH_MANGLED(M)                                                              \
    PTAC_TORCH_CUDA(M)                                                                 \
    PTAC_TORCH_FOREIGN(M)

#ifndef PTAC_ABI_GUARD
typedef struct ptac_torch_symbols {
#define F(type, name, parameters)         type(*name) parameters;
#define M(type, name, symbol, parameters) F(type, name, parameters)
    PTAC_TORCH_ALL(F, M)
#undef F
#undef M
} ptac_torch_symbols;

/* Filled by ptac_torch_load(); a NULL member is a symbol that this torch lacks. */
extern ptac_torch_symbols T;

/*
 * Resolve everything in the loaded libtorch of directory (torch/lib). hidden is a
 * comma-separated list of names to treat as missing, or NULL; tests use it.
 * Returns NULL, or the name of the first missing required symbol (or a dlopen text).
 * May be called again; the last call counts.
 */
const char *ptac_torch_load(const char *directory, const char *hidden);

/* The loaded libc10, a handle of dlopen's; NULL when it is not a library of its own. */
void *ptac_torch_c10(void);

/* A symbol of one of the loaded libraries of torch, or of libstdc++; NULL: none has. */
void *ptac_torch_symbol(const char *symbol);
#endif

#endif
