/*
 * torch_cuda.h - C++ functions that only builds of torch for CUDA have, as torch_abi.h
 * lists others.
 */
#ifndef PTAC_BIND_ABI_TORCH_CUDA_H
#define PTAC_BIND_ABI_TORCH_CUDA_H

#define PTAC_TORCH_CUDA(M)                                                             \
    M(at_result, cuda_max_pool2d_with_indices,                                         \
      "_ZN2at4cuda23max_pool2d_with_indices"                                           \
      "ERKNS_6TensorEN3c108ArrayRefIlEES6_S6_S6_b",                                    \
      (at_tensor, at_ints, at_ints, at_ints, at_ints, bool))                           \
    M(at_result, cuda_max_pool2d_with_indices_backward,                                \
      "_ZN2at4cuda32max_pool2d_with_indices_backwardERKNS_6TensorES3_"                 \
      "N3c108ArrayRefIlEES6_S6_S6_bS3_",                                               \
      (at_tensor, at_tensor, at_ints, at_ints, at_ints, at_ints, bool, at_tensor))     \
    M(at_result, cuda_avg_pool2d,                                                      \
      "_ZN2at4cuda10avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEES6_S6_bbSt8optionalIlE", \
      (at_tensor, at_ints, at_ints, at_ints, bool, bool, at_optional_int))             \
    M(at_result, cuda_avg_pool2d_backward,                                             \
      "_ZN2at4cuda19avg_pool2d_backwardERKNS_6TensorES3_"                              \
      "N3c108ArrayRefIlEES6_S6_bbSt8optionalIlE",                                      \
      (at_tensor, at_tensor, at_ints, at_ints, at_ints, bool, bool, at_optional_int))  \
    M(at_result, cuda_adaptive_avg_pool2d,                                             \
      "_ZN2at4cuda20_adaptive_avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEE",             \
      (at_tensor, at_ints))                                                            \
    M(at_result, cuda_adaptive_avg_pool2d_backward,                                    \
      "_ZN2at4cuda29_adaptive_avg_pool2d_backwardERKNS_6TensorES3_",                   \
      (at_tensor, at_tensor))                                                          \
    M(at_result, cuda_log_softmax, "_ZN2at4cuda12_log_softmaxERKNS_6TensorElb",        \
      (at_tensor, int64_t, bool))                                                      \
    M(at_result, cuda_log_softmax_backward,                                            \
      "_ZN2at4cuda26_log_softmax_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE",   \
      (at_tensor, at_tensor, int64_t, int8_t))                                         \
    M(at_result, cuda_softmax, "_ZN2at4cuda8_softmaxERKNS_6TensorElb",                 \
      (at_tensor, int64_t, bool))                                                      \
    M(at_result, cuda_softmax_backward,                                                \
      "_ZN2at4cuda22_softmax_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE",       \
      (at_tensor, at_tensor, int64_t, int8_t))                                         \
    M(at_result, cuda_layer_norm,                                                      \
      "_ZN2at4cuda17native_layer_normERKNS_6TensorEN3c108ArrayRefIlEE"                 \
      "RKSt8optionalIS1_ESA_d",                                                        \
      (at_tensor, at_ints, const at_optional_tensor *, const at_optional_tensor *,     \
       double))                                                                        \
    M(at_result, cuda_layer_norm_backward,                                             \
      "_ZN2at4cuda26native_layer_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEE"     \
      "S3_S3_RKSt8optionalIS1_ESA_St5arrayIbLm3EE",                                    \
      (at_tensor, at_tensor, at_ints, at_tensor, at_tensor,                            \
       const at_optional_tensor *, const at_optional_tensor *, at_mask3))              \
    M(at_result, cuda_rms_norm,                                                        \
      "_ZN2at4cuda15_fused_rms_normERKNS_6TensorEN3c108ArrayRefIlEE"                   \
      "RKSt8optionalIS1_ES7_IdE",                                                      \
      (at_tensor, at_ints, const at_optional_tensor *, at_optional_real))              \
    M(at_result, cuda_rms_norm_backward,                                               \
      "_ZN2at4cuda24_fused_rms_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES3_"    \
      "RKSt8optionalIS1_ESt5arrayIbLm2EE",                                             \
      (at_tensor, at_tensor, at_ints, at_tensor, const at_optional_tensor *,           \
       at_mask2))

#endif
