/*
 * torch_lists.h - a part of torch_abi.h: functions of torch's that take lists.
 */
#ifndef PTAC_BIND_ABI_TORCH_LISTS_H
#define PTAC_BIND_ABI_TORCH_LISTS_H

/* An ArrayRef<Tensor>: tensors are words, whose addresses are borrowed handles. */
typedef struct at_tensor_span {
    void *const *data;
    size_t size;
} at_tensor_span;

/* An ITensorListRef: mostly a span, else a list of another kind. */
typedef struct at_list_ref {
    union {
        at_tensor_span span;
        const void *other;
    };
    int32_t tag;
} at_list_ref;

/* An optional<ScalarType>. */
typedef struct at_optional_dtype {
    int8_t value;
    bool has_value;
} at_optional_dtype;

enum {
    AT_LIST_SPAN = 0,
};

#define PTAC_TORCH_LISTS(M)                                                            \
    M(at_result, cpu_cat, "_ZN2at3cpu3catERKN3c108IListRefINS_6TensorEEEl",            \
      (const at_list_ref *, int64_t))                                                  \
    M(at_result, cpu_mean,                                                             \
      "_ZN2at3cpu4meanERKNS_6TensorEN3c1016OptionalArrayRefIlEEb"                      \
      "St8optionalINS4_10ScalarTypeEE",                                                \
      (at_tensor, at_optional_ints, bool, at_optional_dtype))                          \
    M(void, foreach_clamp_min_,                                                        \
      "_ZN2at25compositeexplicitautograd19_foreach_clamp_min_"                         \
      "EN3c108ArrayRefINS_6TensorEEERKNS1_6ScalarE",                                   \
      (at_tensor_span, const at_scalar *))                                             \
    M(void, foreach_clamp_max_,                                                        \
      "_ZN2at25compositeexplicitautograd19_foreach_clamp_max_"                         \
      "EN3c108ArrayRefINS_6TensorEEERKNS1_6ScalarE",                                   \
      (at_tensor_span, const at_scalar *))                                             \
    M(void, foreach_lerp_,                                                             \
      "_ZN2at25compositeexplicitautograd14_foreach_lerp_"                              \
      "EN3c108ArrayRefINS_6TensorEEES4_RKNS1_6ScalarE",                                \
      (at_tensor_span, at_tensor_span, const at_scalar *))                             \
    M(void, cpu_unscale_grads_,                                                        \
      "_ZN2at3cpu42_amp_foreach_non_finite_check_and_unscale_"                         \
      "EN3c108ArrayRefINS_6TensorEEERS3_RKS3_",                                        \
      (at_tensor_span, at_tensor, at_tensor))

#endif
