/*
 * encoder_layer.c - the row of encoder_layer: attention, then two products with an
 * activation between them; residuals and norms in one pass behind each.
 */
#include "bind/torch/rows/encoder/encoder.h"

#include "bind/torch/dispatch.h"
#include "ops/norm/layer/sum_norm.h"

/* How much wider the hidden layer is: what else a layer does counts for less then. */
enum {
    LAYER,
    WIDE_LAYER,
    WIDE = 8, /* times the width, above */
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_encoder_layer *p = call->params;
    const ptac_self_attention *a = &p->attention;

    if (call->inputs[0].n_elements == 0 || p->hidden == 0 || a->heads == 0)
        return PTAC_EMPTY;
    shape->kind = p->hidden > WIDE * a->width ? WIDE_LAYER : LAYER;
    shape->sizes[0] = a->batch * a->length;
    shape->sizes[1] = a->length;
    shape->sizes[2] = a->width;
    shape->work = shape->sizes[0] * shape->sizes[1] * shape->sizes[2];
    return PTAC_TAKE;
}

PTAC_SHAPES(ENCODER_LAYER, classify, "layer", "wide_layer")

/* A layer on its way: what lives from one product to the next. */
typedef struct tensors {
    at_tensor x;      /* dense */
    at_tensor normal; /* normalized, where norms come first */
    at_tensor sum;    /* h of encoder.h */
    at_tensor hidden, last;
} tensors;

static void drop_tensors(tensors *t)
{
    at_drop_tensor(&t->x);
    at_drop_tensor(&t->normal);
    at_drop_tensor(&t->sum);
    at_drop_tensor(&t->hidden);
    at_drop_tensor(&t->last);
}

static ptac_sum_norm pass(const ptac_encoder_layer *p, const at_tensor *norm)
{
    return (ptac_sum_norm){
        .weight = at_data(norm[0]),
        .bias_of_norm = at_data(norm[1]),
        .is = {.n_rows = p->attention.batch * p->attention.length,
               .width = p->attention.width,
               .eps = p->eps},
    };
}

/* Where norms come first. */
static ptac_status normalize_x(const ptac_encoder_layer *p, tensors *t)
{
    ptac_sum_norm job = pass(p, p->norm1);

    if (ptac_new_matrix(job.is.n_rows, job.is.width, &t->normal, NULL))
        return PTAC_NO_MEMORY;
    job.x = at_data(t->x);
    job.y = at_data(t->normal);
    ptac_sum_norm_run(&job);
    return PTAC_OK;
}

/* h on what attention left, and its norm, there or where norms come first. */
static void add_x(const ptac_encoder_layer *p, tensors *t)
{
    ptac_sum_norm job = pass(p, p->norm_first ? p->norm2 : p->norm1);

    job.x = job.sum = at_data(t->sum);
    job.bias = at_data(p->attention.b_out);
    job.residual = at_data(t->x);
    job.y = at_data(p->norm_first ? t->normal : t->sum);
    ptac_sum_norm_run(&job);
}

static void add_h(const ptac_encoder_layer *p, const tensors *t, float *y)
{
    ptac_sum_norm job = pass(p, p->norm2);

    job.x = at_data(t->last);
    job.bias = at_data(p->b2);
    job.residual = at_data(t->sum);
    job.sum = y;
    job.y = p->norm_first ? NULL : y;
    ptac_sum_norm_run(&job);
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_encoder_layer *p = call->params;

    return ptac_self_attention_reason(&p->attention);
}

static ptac_status run(const ptac_call *call)
{
    const ptac_encoder_layer *p = call->params;
    const ptac_self_attention *a = &p->attention;
    __attribute__((cleanup(drop_tensors)))
    tensors t = {.x = at_dense(a->x, &call->inputs[0], false)};
    ptac_status status = p->norm_first ? normalize_x(p, &t) : PTAC_OK;

    if (!status)
        status = ptac_self_attend(a, p->norm_first ? t.normal : t.x, &t.sum);
    if (status)
        return status;
    add_x(p, &t);
    status = ptac_encoder_product(p->norm_first ? t.normal : t.sum, p->w1, p->b1,
                                  p->activation, &t.hidden);
    if (!status)
        status = ptac_encoder_product(t.hidden, p->w2, NULL, PTAC_ACT_NONE, &t.last);
    if (!status)
        add_h(p, &t, call->outputs[0].data);
    return status;
}

PTAC_ROW(ENCODER_LAYER, "fused", PTAC_CLOSE, 0, accepts, run)
