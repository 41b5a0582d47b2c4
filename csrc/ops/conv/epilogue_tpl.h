/*
 * epilogue_tpl.h - the epilogue of convolutions, in place. NaN passes.
 *
 * The includer defines, besides lanes, EPILOGUE, the function's name.
 */
#include "ops/conv/conv2d.h"
#include "ops/conv/epilogue.h"

TARGET void EPILOGUE(const ptac_call *call, float *y)
{
    const ptac_conv2d *p = call->params;
    const int64_t n_places = (int64_t)p->out_d * p->out_h * p->out_w;
    const float *shift = call->n_inputs > 2 ? call->inputs[2].data : NULL;
    const float *scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    const vec least = v_set(ptac_act_least(p->act)),
              most = v_set(ptac_act_most(p->act));

    for (int c = 0; c < p->out_channels; c++, y += n_places) {
        const vec by = v_set(scale ? scale[c] : 1), onto = v_set(shift ? shift[c] : 0);

        FOR_LANES(i, count, 0, n_places, {
            const vec sum = v_fma(v_load_first(y + i, count), by, onto);

            v_store_first(y + i, v_min(most, v_max(least, sum)), count);
        });
    }
}
