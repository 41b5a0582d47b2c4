/*
 * epilogue.c - the epilogue of convolutions, by its definition, and which one to call.
 */
#include "ops/conv/epilogue.h"

#include "ops/conv/conv2d.h"

static void define(const ptac_call *call, float *y)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_places = (int64_t)p->out_d * p->out_h * p->out_w;
    const float *shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    const float least = ptac_act_least(p->act), most = ptac_act_most(p->act);

    for (int c = 0; c < p->out_channels; c++, y += n_places) {
        for (int64_t i = 0; i < n_places; i++) {
            const float sum = y[i] * (scale ? scale[c] : 1) + (shift ? shift[c] : 0);
            const float kept = sum < least ? least : sum;

            y[i] = kept > most ? most : kept;
        }
    }
}

ptac_conv_epilogue ptac_conv_epilogue_of(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const uint32_t have = ptac_cpu_features();

    if (call->n_inputs <= 2 && p->act == PTAC_ACT_NONE)
        return NULL;
#if defined(__x86_64__)
    if (have & PTAC_CPU_AVX512)
        return ptac_conv_epilogue_avx512;
    if (have & PTAC_CPU_AVX2)
        return ptac_conv_epilogue_avx2;
#endif
    (void)have;
    return define;
}
