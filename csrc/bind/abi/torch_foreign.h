/*
 * torch_foreign.h - functions with whose prototypes nothing can be compared.
 *
 * Not in torch's headers: MKL's square roots, which torch.sqrt calls where it is built
 * with MKL, and the C++ heap that boxed optionals of torch < 2.13 live on. Members of
 * c10: its CPU allocator as an object, its table of operators, and what is registered
 * there for a key; who uses them tries the layout of the live things first.
 * has_names is there where tensors may have named dimensions, which is before 2.13.
 *
 * shared_move is the move assignment of std::shared_ptr. libstdc++ exports it for one
 * type, and it works for all: the count knows how to destroy what it counts.
 * node_is_shared is never called: it exists where torch counts autograd's nodes by
 * std::shared_ptr, which is before 2.13.
 */
#ifndef PTAC_BIND_ABI_TORCH_FOREIGN_H
#define PTAC_BIND_ABI_TORCH_FOREIGN_H

#define PTAC_TORCH_FOREIGN(M)                                                          \
    M(void, mkl_sqrt_f32, "vmsSqrt", (int, const float *, float *, int64_t))           \
    M(void, mkl_sqrt_f64, "vmdSqrt", (int, const double *, double *, int64_t))         \
    M(void *, cxx_new, "_Znwm", (size_t))                                              \
    M(void, cxx_delete, "_ZdlPv", (void *))                                            \
    M(void *, shared_move,                                                             \
      "_ZNSt12__shared_ptrINSt10filesystem7__cxx114_DirE"                              \
      "LN9__gnu_cxx12_Lock_policyE2EEaSEOS5_",                                         \
      (void *, void *))                                                                \
    M(void, node_is_shared,                                                            \
      "_ZN5torch8autograd18functionToPyObjectERKSt10shared_ptrINS0_4NodeEE", (void))   \
    M(bool, has_names, "_ZN2at4impl9has_namesEPKN3c1010TensorImplE", (const void *))   \
    M(void *, c10_dispatcher, "_ZN3c1010Dispatcher13realSingletonEv", (void))          \
    M(at_result, c10_find_operator,                                                    \
      "_ZN3c1010Dispatcher10findSchemaERKNS_12OperatorNameE", (void *, const void *))  \
    M(void *, c10_registered_kernel,                                                   \
      "_ZNK3c104impl13OperatorEntry23getKernelForDispatchKeyENS_11DispatchKeyE",       \
      (const void *, uint16_t))                                                        \
    M(uint16_t, c10_dispatch_key,                                                      \
      "_ZN3c1016parseDispatchKeyERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcE" \
      "EE",                                                                            \
      (const void *))                                                                  \
    M(void, c10_set_allocator,                                                         \
      "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh",                        \
      (int8_t, void *, uint8_t))                                                       \
    M(void *, c10_get_allocator, "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE",           \
      (const int8_t *))                                                                \
    M(void *, c10_memory_reporter, "_ZN3c1025profiledCPUMemoryReporterEv", (void))     \
    M(void, c10_report_new, "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm",              \
      (void *, void *, size_t))                                                        \
    M(void, c10_report_delete, "_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv",         \
      (void *, void *))

#endif
