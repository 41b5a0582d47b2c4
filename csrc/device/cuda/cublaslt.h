/*
 * cublaslt.h - the functions of cuBLASLt that we call, in our own prototypes.
 *
 * A toolkit with nvcc alone brings no header of cuBLAS, and torch's CUDA builds bring
 * the library: ptac_lt_load() looks each symbol up there. A test,
 * tests/csrc/device/cublaslt/lt_guard.c, compiles this list beside cublasLt.h and fails
 * where a type or a value differs.
 *
 * Source: cuBLAS 12.0 to 13.1. Matrices are column by column.
 */
#ifndef PTAC_DEVICE_CUDA_CUBLASLT_H
#define PTAC_DEVICE_CUDA_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#ifndef PTAC_LT_GUARD
typedef int lt_status; /* 0: success */
typedef int lt_compute;
typedef int lt_type;
typedef int lt_desc_attribute;
typedef int lt_preference_attribute;
typedef void *lt_stream;
typedef struct lt_handle_opaque *lt_handle;
typedef struct lt_desc_opaque *lt_desc;
typedef struct lt_layout_opaque *lt_layout;
typedef struct lt_preference_opaque *lt_preference;

typedef struct lt_algo {
    uint64_t data[8];
} lt_algo;

typedef struct lt_heuristic {
    lt_algo algo;
    size_t workspace_bytes;
    lt_status state;
    float waves;
    int reserved[4];
} lt_heuristic;
#endif

/* F(member, symbol, result, parameters) */
#define PTAC_LT_FUNCTIONS(F)                                                           \
    F(create, cublasLtCreate, lt_status, (lt_handle *))                                \
    F(destroy, cublasLtDestroy, lt_status, (lt_handle))                                \
    F(version, cublasLtGetVersion, size_t, (void))                                     \
    F(status_name, cublasLtGetStatusName, const char *, (lt_status))                   \
    F(desc_create, cublasLtMatmulDescCreate, lt_status,                                \
      (lt_desc *, lt_compute, lt_type))                                                \
    F(desc_destroy, cublasLtMatmulDescDestroy, lt_status, (lt_desc))                   \
    F(desc_set, cublasLtMatmulDescSetAttribute, lt_status,                             \
      (lt_desc, lt_desc_attribute, const void *, size_t))                              \
    F(layout_create, cublasLtMatrixLayoutCreate, lt_status,                            \
      (lt_layout *, lt_type, uint64_t, uint64_t, int64_t))                             \
    F(layout_destroy, cublasLtMatrixLayoutDestroy, lt_status, (lt_layout))             \
    F(preference_create, cublasLtMatmulPreferenceCreate, lt_status, (lt_preference *)) \
    F(preference_destroy, cublasLtMatmulPreferenceDestroy, lt_status, (lt_preference)) \
    F(preference_set, cublasLtMatmulPreferenceSetAttribute, lt_status,                 \
      (lt_preference, lt_preference_attribute, const void *, size_t))                  \
    F(heuristic, cublasLtMatmulAlgoGetHeuristic, lt_status,                            \
      (lt_handle, lt_desc, lt_layout, lt_layout, lt_layout, lt_layout, lt_preference,  \
       int, lt_heuristic *, int *))                                                    \
    F(matmul, cublasLtMatmul, lt_status,                                               \
      (lt_handle, lt_desc, const void *, const void *, lt_layout, const void *,        \
       lt_layout, const void *, const void *, lt_layout, void *, lt_layout,            \
       const lt_algo *, void *, size_t, lt_stream))

/* Values of the library's enums. */
enum {
    PTAC_LT_OK = 0,
    PTAC_LT_NOT_INITIALIZED = 1,
    PTAC_LT_INVALID_VALUE = 7,
    PTAC_LT_NOT_SUPPORTED = 15,

    PTAC_LT_COMPUTE_32F = 68,
    PTAC_LT_COMPUTE_32I = 72,
    PTAC_LT_COMPUTE_TF32 = 77,

    PTAC_LT_R_32F = 0,
    PTAC_LT_R_16F = 2,
    PTAC_LT_R_8I = 3,
    PTAC_LT_R_32I = 10,
    PTAC_LT_R_16BF = 14,
    PTAC_LT_R_E4M3 = 28,

    /* Of a description: type and size in bytes beside each. */
    PTAC_LT_TRANSA = 3,          /* int32, 4: 1 where the matrix is transposed */
    PTAC_LT_TRANSB = 4,          /* int32, 4 */
    PTAC_LT_EPILOGUE = 7,        /* uint32, 4 */
    PTAC_LT_BIAS_POINTER = 8,    /* 8; where bias gradients go, too */
    PTAC_LT_AUX_POINTER = 11,    /* 8 */
    PTAC_LT_AUX_LD = 12,         /* int64, 8: bits of ReLU's mask, elements of GELU's */
    PTAC_LT_A_SCALE = 17,        /* 8 */
    PTAC_LT_B_SCALE = 18,        /* 8 */
    PTAC_LT_FAST_ACCUM = 25,     /* int8, 1 */
    PTAC_LT_BIAS_TYPE = 26,      /* int32, 4 */
    PTAC_LT_A_SCALE_MODE = 31,   /* int32, 4 */
    PTAC_LT_B_SCALE_MODE = 32,   /* int32, 4 */
    PTAC_LT_SCALE_OUTER_VEC = 3, /* a float for each row of A, each column of B */

    PTAC_LT_MAX_WORKSPACE = 1, /* uint64, 8 */
    PTAC_LT_REDUCTIONS = 3,    /* uint32, 4: what sums of parts may be kept in */
    PTAC_LT_ALIGNMENT_A = 5,   /* uint32, 4, in bytes; and B, C, D */
    PTAC_LT_ALIGNMENT_B = 6,
    PTAC_LT_ALIGNMENT_C = 7,
    PTAC_LT_ALIGNMENT_D = 8,
    PTAC_LT_REDUCTION_COMPUTE_TYPE = 2,

    PTAC_LT_EPI_NONE = 1,
    PTAC_LT_EPI_RELU = 2,
    PTAC_LT_EPI_BIAS = 4,
    PTAC_LT_EPI_RELU_BIAS = 6,
    PTAC_LT_EPI_GELU = 32,
    PTAC_LT_EPI_GELU_BIAS = 36,
    PTAC_LT_EPI_RELU_AUX = 130,
    PTAC_LT_EPI_RELU_AUX_BIAS = 134,
    PTAC_LT_EPI_DRELU = 136,
    PTAC_LT_EPI_DRELU_BGRAD = 152,
    PTAC_LT_EPI_GELU_AUX = 160,
    PTAC_LT_EPI_GELU_AUX_BIAS = 164,
    PTAC_LT_EPI_DGELU = 192,
    PTAC_LT_EPI_DGELU_BGRAD = 208,
    PTAC_LT_EPI_BGRADA = 256,
    PTAC_LT_EPI_BGRADB = 512,
};

#ifndef PTAC_LT_GUARD
typedef struct ptac_lt_functions {
#define F(member, symbol, result, parameters) result(*member) parameters;
    PTAC_LT_FUNCTIONS(F)
#undef F
} ptac_lt_functions;

/* Filled by ptac_lt_load(). */
extern ptac_lt_functions ptac_lt;

/* Names under which torch's CUDA builds have the library, the newest first. */
extern const char *const ptac_lt_names[];

/*
 * Finds the library under the first of these names, of which NULL is the last, that is
 * mapped already, as torch's own is; else under the first that the dynamic linker
 * finds. No names: the program itself (tests). NULL, or why there is none; the text
 * stays good. Once it has succeeded it does nothing. One thread at a time.
 */
const char *ptac_lt_load(const char *const names[]);

/* A device that products run on. */
typedef struct ptac_lt_device {
    lt_handle handle;
    int capability; /* 90: compute capability 9.0 */
} ptac_lt_device;

enum {
    PTAC_LT_MAX_DEVICES = 64,
};

/*
 * Makes the device's handle, whose context is current, once; the library is loaded.
 * Allocates a little on the device, so not while a graph is captured. NULL, or why
 * there is no handle; the text stays good. One thread at a time.
 */
const char *ptac_lt_open(int device, int capability);

/* NULL where the device was not opened. Any thread. */
const ptac_lt_device *ptac_lt_on(int device);
#endif

#endif
