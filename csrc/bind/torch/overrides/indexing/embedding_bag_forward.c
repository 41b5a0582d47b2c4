/*
 * embedding_bag_forward.c - aten::_embedding_bag, and _embedding_bag_forward_only,
 * which nobody differentiates.
 *
 * Source: ATen/native/EmbeddingBag.cpp, for sizes of what comes beside the result. Sums
 * without padding have no numbers of bags, as in FBGEMM's way there.
 */
#include "bind/torch/overrides/indexing/indexing.h"

#include "bind/torch/overrides/override.h"
#include "ops/indexing/bag.h"

enum {
    MODE = 4,
    WEIGHTS = 6,
    HAS_LAST = 7,
    PADDING = 8,
    SIZES_OF_EACH = 2, /* places in own_sizes */
};

static ptac_reason read_tensors(const ptac_arguments *args, const ptac_call *call,
                                ptac_rows *p)
{
    const ptac_view *table = &call->inputs[PTAC_BAG_TABLE];
    const ptac_view *index = &call->inputs[PTAC_BAG_INDEX];
    const ptac_view *offsets = &call->inputs[PTAC_BAG_OFFSETS];
    ptac_reason why = ptac_read_table(table, p);
    ptac_rows of_offsets;

    if (!why)
        why = ptac_read_index(args->at[2].tensor, offsets->n_elements, &of_offsets);
    if (!why)
        why = ptac_read_index(args->at[1].tensor, index->n_elements, p);
    if (why)
        return why;
    if (table->n_dims != 2 || index->n_dims != 1 || offsets->n_dims != 1)
        return PTAC_SHAPE;
    if (table->strides[1] != 1 || !ptac_view_is_contiguous(index) ||
        !ptac_view_is_contiguous(offsets))
        return PTAC_LAYOUT;
    return p->has_32_bits == of_offsets.has_32_bits ? PTAC_TAKE : PTAC_DTYPE;
}

/* Place i among the outputs: integers, of one dimension or two. */
static void expect(ptac_outputs *outputs, int i, bool has_32_bits, int n_dims,
                   int64_t first, int64_t second)
{
    int64_t *sizes = outputs->own_sizes + SIZES_OF_EACH * i;

    sizes[0] = first;
    sizes[1] = second;
    outputs->at[i].n_dims = n_dims;
    outputs->at[i].sizes = sizes;
    if (i != PTAC_BAG_Y)
        outputs->at[i].dtype = has_32_bits ? AT_DTYPE_I32 : AT_DTYPE_I64;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, ptac_bag *p,
                        ptac_outputs *outputs, bool is_trained)
{
    ptac_rows *rows = &p->rows;
    const ptac_reason why = read_tensors(args, call, rows);
    const int64_t mode = args->at[MODE].number;
    bool has_bag_of;

    if (why)
        return why;
    if (rows->has_32_bits && ptac_shadow_is_on()) /* these know no int32 */
        return PTAC_DTYPE;
    if (args->at[WEIGHTS].is_given || mode < PTAC_BAG_SUM || mode > PTAC_BAG_MAX)
        return PTAC_ARGUMENT;
    p->mode = (ptac_bag_mode)mode;
    rows->padding = args->at[PADDING].number;
    p->n_offsets = call->inputs[PTAC_BAG_OFFSETS].n_elements;
    p->n_bags = p->n_offsets - args->at[HAS_LAST].truth;
    p->n_sizes = is_trained || p->mode != PTAC_BAG_SUM ? p->n_bags : p->n_offsets;
    if (p->n_bags == 0)
        return PTAC_EMPTY;
    has_bag_of = p->mode != PTAC_BAG_SUM || rows->padding >= 0;
    outputs->dense = 0;
    expect(outputs, PTAC_BAG_Y, false, 2, p->n_bags, rows->width);
    expect(outputs, PTAC_BAG_BAG_OF, rows->has_32_bits, 1, has_bag_of ? rows->n : 0, 0);
    expect(outputs, PTAC_BAG_SIZES, rows->has_32_bits, 1, p->n_sizes, 0);
    if (p->mode == PTAC_BAG_MAX)
        expect(outputs, PTAC_BAG_LARGEST, rows->has_32_bits, 2, p->n_bags, rows->width);
    else
        expect(outputs, PTAC_BAG_LARGEST, rows->has_32_bits, 1, p->n_sizes, 0);
    return PTAC_TAKE;
}

static ptac_reason read_trained(const ptac_arguments *args, const ptac_call *call,
                                void *params, ptac_outputs *outputs)
{
    return read(args, call, params, outputs, true);
}

static ptac_reason read_forward_only(const ptac_arguments *args, const ptac_call *call,
                                     void *params, ptac_outputs *outputs)
{
    return read(args, call, params, outputs, false);
}

#define ARGUMENTS                                                                      \
    "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, "  \
    "int mode=0, bool sparse=False, Tensor? per_sample_weights=None, "                 \
    "bool include_last_offset=False, int padding_idx=-1) "                             \
    "-> (Tensor, Tensor, Tensor, Tensor)"

#define BAGS(name, in_aten, by)                                                        \
    static ptac_override name = {                                                      \
        .schema = in_aten ARGUMENTS,                                                   \
        .op = PTAC_OP_EMBEDDING_BAG,                                                   \
        .n_inputs = PTAC_BAG_N_INPUTS,                                                 \
        .inputs = {0, 1, 2},                                                           \
        .read = by,                                                                    \
        .by_handles = true,                                                            \
    };                                                                                 \
    PTAC_OVERRIDE(name, cpu_##name, TENSOR(0), TENSOR(1), TENSOR(2), BOOL(3),          \
                  INT(MODE), BOOL(5), OPTIONAL_TENSOR(WEIGHTS), BOOL(HAS_LAST),        \
                  INT(PADDING))

BAGS(embedding_bag, "_embedding_bag", read_trained)
BAGS(embedding_bag_forward_only, "_embedding_bag_forward_only", read_forward_only)
