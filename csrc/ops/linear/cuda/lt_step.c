/*
 * lt_step.c - which epilogue says what follows a product, and the kernel that does it
 * where the library refuses.
 */
#include "ops/linear/cuda/lt_step.h"

#include "ops/linear/linear_act.h"

int64_t ptac_lt_saved_ld(ptac_act act, int64_t n)
{
    const int64_t unit =
        act == PTAC_ACT_RELU ? (int64_t)PTAC_LT_MASK_BITS : PTAC_LT_AUX_UNIT;

    return ptac_parts(n, unit) * unit;
}

static ptac_matmul product_of(const ptac_lt_place *place, int64_t m, int64_t n,
                              int64_t k)
{
    const int type = ptac_lt_type(place->dtype);
    const bool is_tf32 = place->allows_tf32 && place->dtype == PTAC_F32;

    return (ptac_matmul){
        .m = m,
        .n = n,
        .k = k,
        .type = type,
        .d_type = type,
        .compute = is_tf32 ? PTAC_LT_COMPUTE_TF32 : PTAC_LT_COMPUTE_32F,
        .epilogue = PTAC_LT_EPI_NONE,
        .device = place->device,
        .only_known = place->only_known,
    };
}

static bool plan(const ptac_lt_place *place, ptac_lt_step *step)
{
    return ptac_lt_plan_for(&step->matmul, &place->workspace, &step->plan);
}

/*
 * The epilogue with which all is done but for ReLU's mask, or NONE where the library
 * has none.
 */
static int forward_epilogue(const ptac_lt_forward *p)
{
    const int bias = p->bias ? PTAC_LT_EPI_BIAS : 0;

    if (p->act == PTAC_ACT_RELU)
        return PTAC_LT_EPI_RELU | bias;
    if (p->act == PTAC_ACT_GELU_TANH)
        return (p->saved.data ? PTAC_LT_EPI_GELU_AUX : PTAC_LT_EPI_GELU) | bias;
    if (p->act == PTAC_ACT_NONE && p->bias)
        return PTAC_LT_EPI_BIAS;
    return PTAC_LT_EPI_NONE;
}

/*
 * ReLU's mask of y. Not by RELU_AUX: nobody says what that gives at 0 and at NaN, and
 * NVIDIA's open kernels (CUTLASS, sm90_visitor_compute) let the gradient pass at 0,
 * where stock does not.
 */
static ptac_act_forward_cuda mask_alone(const ptac_lt_place *place,
                                        const ptac_lt_forward *p)
{
    return (ptac_act_forward_cuda){
        .dtype = place->dtype,
        .act = PTAC_ACT_RELU,
        .n_rows = p->m,
        .n_cols = p->n,
        .z = p->y.data,
        .ldz = p->y.ld,
        .mask = p->saved.data,
        .ldmask = p->saved.ld / 8,
    };
}

static bool plan_fused_forward(const ptac_lt_place *place, const ptac_lt_forward *p,
                               ptac_lt_step *step)
{
    const int epilogue = forward_epilogue(p);
    const bool has_mask = p->act == PTAC_ACT_RELU && p->saved.data;

    if (epilogue == PTAC_LT_EPI_NONE && p->act != PTAC_ACT_NONE)
        return false;
    step->matmul.epilogue = epilogue;
    step->matmul.bias = p->bias;
    step->matmul.aux = has_mask ? (ptac_lt_matrix){NULL, 0} : p->saved;
    step->then = has_mask ? PTAC_LT_THEN_FORWARD : PTAC_LT_FUSED;
    step->forward = mask_alone(place, p);
    return plan(place, step);
}

/* The product's sums lie where z is kept, or else in y. */
static bool plan_forward_kernel(const ptac_lt_place *place, const ptac_lt_forward *p,
                                bool adds_bias, ptac_lt_step *step)
{
    const bool keeps_z = p->saved.data && ptac_act_saves_z(p->act);
    const bool has_mask = p->saved.data && p->act == PTAC_ACT_RELU;
    const ptac_lt_matrix z = keeps_z ? p->saved : p->y;

    step->matmul.d = z;
    step->matmul.aux = (ptac_lt_matrix){NULL, 0};
    step->matmul.bias = adds_bias ? NULL : p->bias;
    step->matmul.epilogue = step->matmul.bias ? PTAC_LT_EPI_BIAS : PTAC_LT_EPI_NONE;
    step->then = PTAC_LT_THEN_FORWARD;
    step->forward = (ptac_act_forward_cuda){
        .dtype = place->dtype,
        .act = p->act,
        .n_rows = p->m,
        .n_cols = p->n,
        .z = z.data,
        .ldz = z.ld,
        .bias = adds_bias ? p->bias : NULL,
        .y = p->y.data,
        .ldy = p->y.ld,
        .kept = keeps_z && adds_bias && p->bias ? z.data : NULL,
        .ldkept = z.ld,
        .mask = has_mask ? p->saved.data : NULL,
        .ldmask = p->saved.ld / 8,
    };
    return plan(place, step);
}

bool ptac_lt_plan_forward(const ptac_lt_place *place, const ptac_lt_forward *layer,
                          ptac_lt_step *step)
{
    *step = (ptac_lt_step){.matmul = product_of(place, layer->m, layer->n, layer->k)};
    step->matmul.a = layer->x;
    step->matmul.b = layer->w;
    step->matmul.b_is_transposed = true;
    step->matmul.d = layer->y;
    if (layer->x_scales) {
        step->matmul.type = PTAC_LT_R_E4M3;
        step->matmul.compute = PTAC_LT_COMPUTE_32F;
        step->matmul.a_scales = layer->x_scales;
        step->matmul.b_scales = layer->w_scales;
    }
    return plan_fused_forward(place, layer, step) ||
           (layer->bias && plan_forward_kernel(place, layer, false, step)) ||
           plan_forward_kernel(place, layer, true, step);
}

ptac_act_backward_cuda ptac_lt_act_grad(const ptac_lt_place *place,
                                        const ptac_lt_through *layer)
{
    const bool has_mask = layer->act == PTAC_ACT_RELU && !layer->has_y;
    const bool has_saved = !has_mask && layer->act != PTAC_ACT_NONE;

    return (ptac_act_backward_cuda){
        .dtype = place->dtype,
        .act = layer->act,
        .n_rows = layer->m,
        .n_cols = layer->n,
        .g = layer->g.data,
        .ldg = layer->g.ld,
        .saved = has_saved ? layer->saved.data : NULL,
        .ldsaved = layer->saved.ld,
        .mask = has_mask ? layer->saved.data : NULL,
        .ldmask = layer->saved.ld / 8,
        .gz = layer->gz.data,
        .ldgz = layer->gz.ld,
        .gb = layer->gb,
        .partials = place->workspace.data,
    };
}

static bool plan_backward_kernel(const ptac_lt_place *place,
                                 const ptac_lt_through *layer, ptac_lt_step *step)
{
    step->matmul.epilogue = PTAC_LT_EPI_NONE;
    step->matmul.bias = NULL;
    step->matmul.aux = (ptac_lt_matrix){NULL, 0};
    step->then = PTAC_LT_THEN_BACKWARD;
    step->backward = ptac_lt_act_grad(place, layer);
    if (layer->gb && ptac_bias_grad_bytes(layer->m, layer->n) > place->workspace.bytes)
        return false;
    return plan(place, step);
}

/* Whether the library may have an epilogue for the gradient of the activation. */
static bool has_slope(const ptac_lt_through *layer)
{
    if (layer->act == PTAC_ACT_RELU)
        return !layer->has_y;
    return layer->act == PTAC_ACT_GELU_TANH && layer->saved.ld % PTAC_LT_AUX_UNIT == 0;
}

bool ptac_lt_plan_through(const ptac_lt_place *place, const ptac_lt_through *layer,
                          ptac_lt_step *step)
{
    ptac_lt_through in_place = *layer;

    *step = (ptac_lt_step){.matmul = product_of(place, layer->m, layer->n, layer->k)};
    step->matmul.a = layer->g;
    step->matmul.b = layer->w;
    step->matmul.d = layer->gz;
    if (layer->act == PTAC_ACT_NONE && !layer->gb)
        return plan(place, step);
    if (has_slope(layer)) {
        const bool is_relu = layer->act == PTAC_ACT_RELU;

        step->matmul.epilogue =
            layer->gb ? is_relu ? PTAC_LT_EPI_DRELU_BGRAD : PTAC_LT_EPI_DGELU_BGRAD
            : is_relu ? PTAC_LT_EPI_DRELU
                      : PTAC_LT_EPI_DGELU;
        step->matmul.bias = layer->gb;
        step->matmul.aux = layer->saved;
        if (plan(place, step))
            return true;
    }
    in_place.g = layer->gz; /* where the product has left its sums */
    return plan_backward_kernel(place, &in_place, step);
}

bool ptac_lt_plan_weight_grad(const ptac_lt_place *place,
                              const ptac_lt_weight_grad *layer, ptac_lt_step *step)
{
    /* The activation's gradient has been taken: only sums are left to the kernel. */
    const ptac_lt_through sums = {
        .m = layer->m,
        .n = layer->n,
        .g = layer->gz,
        .gb = layer->gb,
        .act = PTAC_ACT_NONE,
    };

    *step = (ptac_lt_step){.matmul = product_of(place, layer->n, layer->k, layer->m)};
    step->matmul.a = layer->gz;
    step->matmul.a_is_transposed = true;
    step->matmul.b = layer->x;
    step->matmul.d = layer->gw;
    if (!layer->gb)
        return plan(place, step);
    step->matmul.epilogue = PTAC_LT_EPI_BGRADB;
    step->matmul.bias = layer->gb;
    return plan(place, step) || plan_backward_kernel(place, &sums, step);
}

ptac_status ptac_lt_step_run(const ptac_lt_place *place, const ptac_lt_step *step)
{
    const ptac_status status =
        ptac_lt_run(&step->matmul, &step->plan, &place->workspace, place->call->stream);

    if (status != PTAC_OK || step->then == PTAC_LT_FUSED)
        return status;
    return step->then == PTAC_LT_THEN_FORWARD
               ? ptac_bias_act_forward_on(&step->forward, place->call)
               : ptac_bias_act_backward_on(&step->backward, place->call);
}
