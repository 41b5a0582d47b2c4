/*
 * step_large.cu - the same with tables of 32 KB, for drivers from CUDA 12.1 on.
 */
#include "device/cuda/kernel.h"

#define BYTES      PTAC_STEP_PARAMETERS_LARGE
#define NAME(name) large_##name
#include "ops/optim/step_cuda_tpl.h"
