/*
 * cublaslt.h - cuBLASLt for calls of ours: found, and with a handle for the device.
 */
#ifndef PTAC_BIND_TORCH_CUBLASLT_H
#define PTAC_BIND_TORCH_CUBLASLT_H

#include "bind/torch/cuda.h"
#include "device/cuda/cublaslt.h"

/*
 * Between ptac_cuda_begin() and the end of its scope: why the call's device has no
 * handle, which is made when first asked for, but never while a graph is captured.
 */
ptac_reason ptac_lt_begin(const ptac_call *call);

/* Its version, 120900 for 12.9; 0, or why there is none. Looks for it if need be. */
size_t ptac_lt_version(const char **why);

/* What was missing, for the report; NULL where nothing was. It is not tried again. */
const char *ptac_lt_trouble(void);

#endif
