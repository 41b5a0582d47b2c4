/*
 * math_lanes_tpl.h - one loop a function, on the lanes named before.
 */
#include "math_lanes.h"
#include "ops/math/math_tpl.h"

INLINE vec sigmoid_of_slope(vec x)
{
    vec slope;

    return v_sigmoid_slope(x, &slope);
}

INLINE vec sigmoid_slope(vec x)
{
    vec slope;

    v_sigmoid_slope(x, &slope);
    return slope;
}

#define DEFINE_MAP(name, function)                                                     \
    TARGET static void map_##name(const float *x, float *y, int64_t n)                 \
    {                                                                                  \
        for (int64_t i = 0; i < n; i += LANES)                                         \
            v_store(y + i, function(v_load(x + i)));                                   \
    }

DEFINE_MAP(exp, v_exp)
DEFINE_MAP(exp_bounded, v_exp_bounded)
DEFINE_MAP(log, v_log)
DEFINE_MAP(sigmoid, v_sigmoid)
DEFINE_MAP(sigmoid_of_slope, sigmoid_of_slope)
DEFINE_MAP(sigmoid_slope, sigmoid_slope)
DEFINE_MAP(tanh, v_tanh)
DEFINE_MAP(normal, v_normal)
DEFINE_MAP(gelu_slope, v_gelu_slope)

#define ALL_MAPS                                                                       \
    {                                                                                  \
        map_exp, map_exp_bounded, map_log, map_sigmoid, map_sigmoid_of_slope,          \
            map_sigmoid_slope, map_tanh, map_normal, map_gelu_slope                    \
    }
