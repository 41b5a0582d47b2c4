/*
 * product_turned_tpl.h - products whose lanes are neighbouring rows of a, turned on
 * their way in: columns of b, whose terms lie side by side, are the rows of weights
 * that panels_tpl.h multiplies, and y comes out turned, too.
 */
#include "core/scratch.h"
#include "ops/product/panels_tpl.h"

#include <math.h>

static ptac_status product_turned(const ptac_product *p)
{
    float *scratch = ptac_scratch_take(sizeof(float) * (size_t)((p->k + p->n) * p->m));
    float *sums = scratch + p->k * p->m;

    if (!scratch)
        return PTAC_FAILED;
    turn(&(ptac_turned){p->a, p->a_row, p->m, p->k, scratch, p->m});
    multiply(&(ptac_panels){
        .n_rows = p->n,
        .n_terms = p->k,
        .n_places = p->m,
        .weight = p->b,
        .weight_row = p->b_column,
        .columns = scratch,
        .shift = p->bias,
        .least = -INFINITY,
        .most = INFINITY,
        .y = sums,
    });
    turn(&(ptac_turned){sums, p->m, p->n, p->m, p->y, p->y_row});
    ptac_scratch_give(scratch);
    return PTAC_OK;
}
