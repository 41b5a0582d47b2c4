/*
 * pool_tpl.h - pooling and its gradients for one type of element.
 *
 * Expects OF(name), which gives name_f32, name_bf16 or name_f64, and undefines it;
 * behind it words of typed_lanes.h from typed_<isa>.h. IS_BF16 is defined for bfloat16
 * alone, of which there is no 3-d average pooling.
 */
#include "ops/pool/avg/avg_pool2d_backward_tpl.h"
#include "ops/pool/avg/avg_pool2d_tpl.h"
#include "ops/pool/max/max_pool2d_backward_tpl.h"
#include "ops/pool/max/max_pool2d_tpl.h"
#include "ops/pool/volume/max_pool3d_tpl.h"
#ifndef IS_BF16
#include "ops/pool/volume/avg_pool3d_tpl.h"
#endif
#undef OF
