/*
 * product.c - what the ways to compute a product can do; mm and addmm by definition.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/product/product.h"

ptac_reason ptac_product_accepts_dot(const ptac_product *product)
{
    if (product->a_term != 1 || product->b_term != 1)
        return PTAC_LAYOUT;
    return product->n < 4 ? PTAC_SHAPE : PTAC_TAKE;
}

ptac_reason ptac_product_accepts_packed(const ptac_product *product)
{
    return (product->a_row == 1 || product->a_term == 1) &&
                   (product->b_term == 1 || product->b_column == 1)
               ? PTAC_TAKE
               : PTAC_LAYOUT;
}

/*
 * How a and b lie: "n" row by row, "t" column by column. nt is a layer's forward, nn
 * the gradient of its input, tn that of its weight.
 */
enum {
    NN,
    NT,
    TN,
    TT,
};

/* Row by row; of a single row or column both are true, which then serves better. */
static bool is_row_by_row(const ptac_view *x)
{
    return x->strides[1] == 1 || x->sizes[1] == 1;
}

static bool is_dense_one_way(const ptac_view *x)
{
    return (is_row_by_row(x) && (x->strides[0] >= x->sizes[1] || x->sizes[0] == 1)) ||
           ((x->strides[0] == 1 || x->sizes[0] == 1) &&
            (x->strides[1] >= x->sizes[0] || x->sizes[1] == 1));
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_view *a = &call->inputs[0], *b = &call->inputs[1];
    const int64_t m = a->sizes[0], k = a->sizes[1], n = b->sizes[1];

    if (m == 0 || n == 0 || k == 0)
        return PTAC_EMPTY;
    if (!is_dense_one_way(a) || !is_dense_one_way(b))
        return PTAC_LAYOUT;
    shape->kind = (is_row_by_row(a) ? NN : TN) + (is_row_by_row(b) ? 0 : 1);
    shape->work = m * n * k;
    shape->sizes[0] = m;
    shape->sizes[1] = k;
    shape->sizes[2] = n;
    shape->uses = shape->work / (m * n + m * k + n * k);
    return PTAC_TAKE;
}

PTAC_SHAPES(MM, classify, "nn", "nt", "tn", "tt")
PTAC_SHAPES(ADDMM, classify, "nn", "nt", "tn", "tt")

ptac_product ptac_product_of(const ptac_call *call)
{
    const ptac_view *a = &call->inputs[0], *b = &call->inputs[1];
    ptac_product p = {
        .m = a->sizes[0],
        .n = b->sizes[1],
        .k = a->sizes[1],
        .a = a->data,
        .b = b->data,
        .a_row = a->strides[0],
        .a_term = is_row_by_row(a) ? 1 : a->strides[1],
        .b_term = b->strides[0],
        .b_column = is_row_by_row(b) ? 1 : b->strides[1],
        .bias = call->op == PTAC_OP_ADDMM ? call->inputs[2].data : NULL,
        .y = call->outputs[0].data,
        .y_row = b->sizes[1],
    };

    if (p.a_term != 1)
        p.a_row = 1;
    if (p.b_column != 1)
        p.b_term = 1;
    return p;
}

static ptac_reason accepts_floats(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static ptac_status run_scalar(const ptac_call *call)
{
    const ptac_product p = ptac_product_of(call);

    for (int64_t i = 0; i < p.m; i++) {
        for (int64_t j = 0; j < p.n; j++) {
            const float *a = p.a + i * p.a_row, *b = p.b + j * p.b_column;
            double sum = p.bias ? p.bias[j] : 0;

            for (int64_t l = 0; l < p.k; l++)
                sum += (double)a[l * p.a_term] * b[l * p.b_term];
            p.y[i * p.y_row + j] = (float)sum;
        }
    }
    return PTAC_OK;
}

PTAC_ROW(MM, "scalar", PTAC_CLOSE, 0, accepts_floats, run_scalar)
PTAC_ROW(ADDMM, "scalar", PTAC_CLOSE, 0, accepts_floats, run_scalar)
