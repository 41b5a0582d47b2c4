/*
 * pool_tpl.h - pooling and its gradients for one type of element.
 *
 * Expects OF(name), which gives name_f32, name_bf16 or name_f64, and undefines it;
 * behind it words of typed_lanes.h from typed_<isa>.h.
 */
#include "ops/pool/avg/avg_pool2d_backward_tpl.h"
#include "ops/pool/avg/avg_pool2d_tpl.h"
#include "ops/pool/max/max_pool2d_backward_tpl.h"
#include "ops/pool/max/max_pool2d_tpl.h"
#undef OF
