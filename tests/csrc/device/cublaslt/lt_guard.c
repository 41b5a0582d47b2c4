/*
 * lt_guard.c - our prototypes and values of cuBLASLt, compiled beside its own header.
 *
 * Compiles or not; nothing runs.
 */
#define PTAC_LT_GUARD
#include <cublasLt.h>
#include <library_types.h>

typedef cublasStatus_t lt_status;
typedef cublasComputeType_t lt_compute;
typedef cudaDataType_t lt_type;
typedef cublasLtMatmulDescAttributes_t lt_desc_attribute;
typedef cublasLtMatmulPreferenceAttributes_t lt_preference_attribute;
typedef cudaStream_t lt_stream;
typedef cublasLtHandle_t lt_handle;
typedef cublasLtMatmulDesc_t lt_desc;
typedef cublasLtMatrixLayout_t lt_layout;
typedef cublasLtMatmulPreference_t lt_preference;
typedef cublasLtMatmulAlgo_t lt_algo;
typedef cublasLtMatmulHeuristicResult_t lt_heuristic;

#include "device/cuda/cublaslt.h"

#define F(member, symbol, result, parameters)                                          \
    _Static_assert(                                                                    \
        __builtin_types_compatible_p(__typeof__(symbol), result parameters), #symbol);
PTAC_LT_FUNCTIONS(F)
#undef F

/* The structs of cublaslt.h once more: its own are left out beside the header. */
typedef struct our_algo {
    uint64_t data[8];
} our_algo;
typedef struct our_heuristic {
    our_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} our_heuristic;

#define SAME_PLACE(ours, theirs)                                                       \
    _Static_assert(offsetof(our_heuristic, ours) == offsetof(lt_heuristic, theirs),    \
                   #ours " is elsewhere");
_Static_assert(sizeof(our_algo) == sizeof(lt_algo), "an algorithm has another size");
_Static_assert(sizeof(our_heuristic) == sizeof(lt_heuristic), "another size");
SAME_PLACE(workspace_bytes, workspaceSize)
SAME_PLACE(state, state)
SAME_PLACE(waves, wavesCount)
_Static_assert(sizeof(int) == sizeof(lt_status), "a status has another size");
_Static_assert(sizeof(int) == sizeof(lt_compute), "a compute type has another size");
_Static_assert(sizeof(int) == sizeof(lt_type), "a type has another size");

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours);
EQUAL(PTAC_LT_OK, CUBLAS_STATUS_SUCCESS)
EQUAL(PTAC_LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED)
EQUAL(PTAC_LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE)
EQUAL(PTAC_LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED)
EQUAL(PTAC_LT_COMPUTE_32F, CUBLAS_COMPUTE_32F)
EQUAL(PTAC_LT_COMPUTE_32I, CUBLAS_COMPUTE_32I)
EQUAL(PTAC_LT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32)
EQUAL(PTAC_LT_R_32F, CUDA_R_32F)
EQUAL(PTAC_LT_R_16F, CUDA_R_16F)
EQUAL(PTAC_LT_R_8I, CUDA_R_8I)
EQUAL(PTAC_LT_R_32I, CUDA_R_32I)
EQUAL(PTAC_LT_R_16BF, CUDA_R_16BF)
EQUAL(PTAC_LT_R_E4M3, CUDA_R_8F_E4M3)

#define DESC(ours, theirs) EQUAL(PTAC_LT_##ours, CUBLASLT_MATMUL_DESC_##theirs)
DESC(TRANSA, TRANSA)
DESC(TRANSB, TRANSB)
DESC(EPILOGUE, EPILOGUE)
DESC(BIAS_POINTER, BIAS_POINTER)
DESC(AUX_POINTER, EPILOGUE_AUX_POINTER)
DESC(AUX_LD, EPILOGUE_AUX_LD)
DESC(A_SCALE, A_SCALE_POINTER)
DESC(B_SCALE, B_SCALE_POINTER)
DESC(FAST_ACCUM, FAST_ACCUM)
DESC(BIAS_TYPE, BIAS_DATA_TYPE)
#if CUBLAS_VERSION >= 120900
DESC(A_SCALE_MODE, A_SCALE_MODE)
DESC(B_SCALE_MODE, B_SCALE_MODE)
EQUAL(PTAC_LT_SCALE_OUTER_VEC, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)
#endif

#define PREFERENCE(ours, theirs) EQUAL(PTAC_LT_##ours, CUBLASLT_MATMUL_PREF_##theirs)
PREFERENCE(MAX_WORKSPACE, MAX_WORKSPACE_BYTES)
PREFERENCE(REDUCTIONS, REDUCTION_SCHEME_MASK)
PREFERENCE(ALIGNMENT_A, MIN_ALIGNMENT_A_BYTES)
PREFERENCE(ALIGNMENT_B, MIN_ALIGNMENT_B_BYTES)
PREFERENCE(ALIGNMENT_C, MIN_ALIGNMENT_C_BYTES)
PREFERENCE(ALIGNMENT_D, MIN_ALIGNMENT_D_BYTES)
EQUAL(PTAC_LT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)

#define EPILOGUE(name) EQUAL(PTAC_LT_EPI_##name, CUBLASLT_EPILOGUE_##name)
EQUAL(PTAC_LT_EPI_NONE, CUBLASLT_EPILOGUE_DEFAULT)
EPILOGUE(RELU)
EPILOGUE(BIAS)
EPILOGUE(RELU_BIAS)
EPILOGUE(GELU)
EPILOGUE(GELU_BIAS)
EPILOGUE(RELU_AUX)
EPILOGUE(RELU_AUX_BIAS)
EPILOGUE(DRELU)
EPILOGUE(DRELU_BGRAD)
EPILOGUE(GELU_AUX)
EPILOGUE(GELU_AUX_BIAS)
EPILOGUE(DGELU)
EPILOGUE(DGELU_BGRAD)
EPILOGUE(BGRADA)
EPILOGUE(BGRADB)
