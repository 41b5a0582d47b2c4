/*
 * gen_avg_pool2d.h - average pooling by ATen's arithmetic on CUDA.
 */
#ifndef PTAC_TESTS_GEN_AVG_POOL2D_H
#define PTAC_TESTS_GEN_AVG_POOL2D_H

#include "core/kernel.h"

ptac_reason accepts_on_cuda(const ptac_call *call);
ptac_status average_on_cuda(const ptac_call *call);
ptac_status spread_on_cuda(const ptac_call *call);

#endif
