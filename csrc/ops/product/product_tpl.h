/*
 * product_tpl.h - both ways to compute a product, and the rows of mm and addmm.
 *
 * The includer defines, besides lanes, ISA, NEEDS, WAYS, and PRODUCT_REGISTERS: how
 * many vectors fit into registers.
 */
#include "ops/product/product_dot_tpl.h"
#include "ops/product/product_packed_tpl.h"

const ptac_product_way WAYS[PTAC_N_PRODUCT_WAYS] = {
    [PTAC_PRODUCT_DOT] = {"dot_" ISA, ptac_product_accepts_dot, product_dot},
    [PTAC_PRODUCT_PACKED] = {"packed_" ISA, ptac_product_accepts_packed,
                             product_packed},
};

static ptac_reason accepts_dot(const ptac_call *call)
{
    const ptac_product p = ptac_product_of(call);

    return ptac_product_accepts_dot(&p);
}

static ptac_reason accepts_packed(const ptac_call *call)
{
    const ptac_product p = ptac_product_of(call);

    return ptac_product_accepts_packed(&p);
}

static ptac_status run_dot(const ptac_call *call)
{
    const ptac_product p = ptac_product_of(call);

    return product_dot(&p);
}

static ptac_status run_packed(const ptac_call *call)
{
    const ptac_product p = ptac_product_of(call);

    return product_packed(&p);
}

#define ROWS(id)                                                                       \
    PTAC_ROW(id, "dot_" ISA, PTAC_CLOSE, NEEDS, accepts_dot, run_dot)                  \
    PTAC_ROW(id, "packed_" ISA, PTAC_CLOSE, NEEDS, accepts_packed, run_packed,         \
             .rank = 1)
ROWS(MM)
ROWS(ADDMM)
