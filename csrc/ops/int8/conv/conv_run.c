/*
 * conv_run.c - int8_conv2d by windows or by points.
 */
#include "ops/int8/conv/conv_job.h"

static bool is_points(const ptac_int8_conv2d *p)
{
    return p->kernel[0] == 1 && p->kernel[1] == 1 && p->padding[0] == 0 &&
           p->padding[1] == 0;
}

ptac_status ptac_int8_conv2d_run(const ptac_call *call, const ptac_int8_isa *isa)
{
    const ptac_int8_conv2d *p = call->params;
    ptac_conv_job job = {
        .isa = isa,
        .call = call,
        .p = p,
        .shape = ptac_int8_conv2d_weight(p),
        .x = call->inputs[PTAC_CONV_X].data,
        .y = call->outputs[0].data,
        .packed = call->inputs[PTAC_CONV_PACKED].data,
        .group_bytes = ptac_quads(p->c) * PTAC_QUAD,
        .n_panels = p->groups * ((p->n / p->groups + PTAC_PANEL - 1) / PTAC_PANEL),
        .n_strips = (p->out_height * p->out_width + PTAC_STRIP - 1) / PTAC_STRIP,
    };

    return is_points(p) ? ptac_convolve_points(&job) : ptac_convolve_windows(&job);
}
