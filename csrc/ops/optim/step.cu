/*
 * step.cu - steps of optimizers whose tables fit 4 KB of parameters.
 */
#include "device/cuda/kernel.h"

#define BYTES      PTAC_STEP_PARAMETERS
#define NAME(name) name
#include "ops/optim/step_cuda_tpl.h"
