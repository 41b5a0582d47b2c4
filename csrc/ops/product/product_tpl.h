/*
 * product_tpl.h - the ways to compute a product, and the rows of mm, addmm, bmm and
 * baddbmm.
 *
 * The includer defines, besides lanes, ISA, NEEDS, WAYS, and PRODUCT_REGISTERS: how
 * many vectors fit into registers.
 */
#include "ops/product/product_dot_tpl.h"
#include "ops/product/product_packed_tpl.h"
#include "ops/product/product_stream_tpl.h"
#include "ops/product/product_turned_tpl.h"

static ptac_status product_small(const ptac_product *p)
{
    return ptac_product_small_is_dot(p) ? product_dot(p) : product_packed(p);
}

const ptac_product_way WAYS[PTAC_N_PRODUCT_WAYS] = {
    [PTAC_PRODUCT_DOT] = {"dot_" ISA, ptac_product_accepts_dot, product_dot},
    [PTAC_PRODUCT_PACKED] = {"packed_" ISA, ptac_product_accepts_packed,
                             product_packed},
    [PTAC_PRODUCT_STREAM] = {"stream_" ISA, ptac_product_accepts_stream,
                             product_stream},
    [PTAC_PRODUCT_TURNED] = {"turned_" ISA, ptac_product_accepts_turned,
                             product_turned},
    [PTAC_PRODUCT_SMALL] = {"small_" ISA, ptac_product_accepts_packed, product_small},
};

static ptac_reason accepts_dot(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_accepts_dot(&all.first);
}

static ptac_reason accepts_packed(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_accepts_packed(&all.first);
}

static ptac_reason accepts_stream(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_accepts_stream(&all.first);
}

static ptac_reason accepts_turned(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_accepts_turned(&all.first);
}

static bool turned_pays(const ptac_call *call)
{
    return ptac_product_turned_pays(ptac_product_batch_of(call).first.m, LANES);
}

static bool packed_pays(const ptac_call *call)
{
    const ptac_product p = ptac_product_batch_of(call).first;

    return p.b_column == 1 || ptac_product_packed_pays(p.n, p.k, call->n_threads);
}

static bool small_pays(const ptac_call *call)
{
    const ptac_product p = ptac_product_batch_of(call).first;

    return ptac_product_small_pays(&p);
}

static ptac_status run_dot(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_batch_run(&all, &WAYS[PTAC_PRODUCT_DOT]);
}

static ptac_status run_packed(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_batch_run(&all, &WAYS[PTAC_PRODUCT_PACKED]);
}

static ptac_status run_stream(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_batch_run(&all, &WAYS[PTAC_PRODUCT_STREAM]);
}

static ptac_status run_turned(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_batch_run(&all, &WAYS[PTAC_PRODUCT_TURNED]);
}

static ptac_status run_small(const ptac_call *call)
{
    const ptac_product_batch all = ptac_product_batch_of(call);

    return ptac_product_batch_run(&all, &WAYS[PTAC_PRODUCT_SMALL]);
}

#define ROWS(id, ...)                                                                  \
    PTAC_ROW(id, "dot_" ISA, PTAC_CLOSE, NEEDS, accepts_dot, run_dot)                  \
    PTAC_ROW(id, "stream_" ISA, PTAC_CLOSE, NEEDS, accepts_stream, run_stream)         \
    PTAC_ROW(id, "packed_" ISA, PTAC_CLOSE, NEEDS, accepts_packed, run_packed,         \
             .rank = 1, ##__VA_ARGS__)
#define ROWS_OF_ONE(id)                                                                \
    ROWS(id, .pays = packed_pays)                                                      \
    PTAC_ROW(id, "small_" ISA, PTAC_CLOSE, NEEDS, accepts_packed, run_small,           \
             .pays = small_pays)                                                       \
    PTAC_ROW(id, "turned_" ISA, PTAC_CLOSE, NEEDS, accepts_turned, run_turned,         \
             .pays = turned_pays)
ROWS_OF_ONE(MM)
ROWS_OF_ONE(ADDMM)
ROWS(BMM)
ROWS(BADDBMM)
