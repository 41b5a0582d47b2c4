/*
 * embedding_bag.c - aten::_embedding_bag_dense_backward.
 *
 * Of sums and means stock sorts the indices and adds up in that order. Its sort leaves
 * equal ones in any order, on which the sums' bits depend: that sort is called here.
 * Of the largest it adds to one column after another.
 */
#include "bind/torch/overrides/indexing/indexing.h"

#include "bind/torch/overrides/override.h"
#include "ops/indexing/bag.h"

#include <math.h>

enum {
    GRAD = 0,
    INDICES,
    OFFSET2BAG,
    BAG_SIZE,
    LARGEST,
    N_WEIGHTS,
    BY_FREQUENCY,
    MODE,
    WEIGHTS,
    PADDING,
};

/* What both ways have in common: integers of one kind, and a size for each bag. */
static ptac_reason read(const ptac_arguments *args, ptac_rows *p)
{
    static const int integers[] = {INDICES, BAG_SIZE};
    const ptac_view *grad = &args->at[GRAD].view;
    ptac_reason why = ptac_read_gradient(grad, args->at[N_WEIGHTS].number, p);
    bool has_32_bits;

    if (!why)
        why = ptac_read_index(args->at[OFFSET2BAG].tensor, 1, p);
    has_32_bits = p->has_32_bits;
    for (int i = 0; i < 2 && !why; i++) {
        const ptac_argument *at = &args->at[integers[i]];

        why = ptac_read_index(at->tensor, at->view.n_elements, p);
        if (!why && p->has_32_bits != has_32_bits)
            why = PTAC_DTYPE;
    }
    if (why)
        return why;
    p->n = args->at[INDICES].view.n_elements;
    p->padding = args->at[PADDING].number;
    return args->at[BY_FREQUENCY].truth || args->at[WEIGHTS].is_given ||
                   grad->n_dims != 2 || args->at[INDICES].view.n_dims != 1 ||
                   args->at[BAG_SIZE].view.n_elements != p->x_rows
               ? PTAC_ARGUMENT
               : PTAC_TAKE;
}

/* Table rows of sums in which stock's mean of two numbers is, and ours. */
static bool rounds_once(at_tensor grad, at_tensor zeros, at_tensor bags,
                        at_tensor sizes)
{
    enum { MEAN = PTAC_BAG_MEAN };
    const float *x = at_data(grad);
    const at_optional_tensor none = {NULL, false};
    AT_OWNED at_tensor found =
        at_adopt(T.cpu_embedding_bag_backward(grad, zeros, bags, sizes, sizes, 1, false,
                                              MEAN, &none, -1)
                     .words[0]);
    AT_OWNED_ALL at_tensors sorted = {{NULL}};
    const float *y = at_data(found);
    const int64_t *order;
    int64_t n = 0;
    bool agrees = true;

    T.aoti_torch_get_numel(found, &n);
    at_adopt_all(T.cpu_sort(zeros, (at_optional_bool){false, true}, -1, false), 2,
                 sorted.at);
    order = at_data(sorted.at[1]);
    for (int64_t c = 0; c < n; c++) {
        const float first = x[order[0] * n + c] * (order[0] ? 1 / 7.0f : 1 / 3.0f);

        agrees &=
            y[c] == fmaf(order[1] ? 1 / 7.0f : 1 / 3.0f, x[order[1] * n + c], first);
    }
    return agrees;
}

/* Whether the BLAS that torch calls for means multiplies and adds with one rounding. */
static bool means_round_once(void)
{
    enum { UNKNOWN, YES, NO, WIDTH = 37 };
    static const int64_t matrix[] = {2, WIDTH}, pair[] = {2};
    static int known;
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    AT_OWNED_ALL at_tensors t = {{NULL}};
    PTAC_MUTED;

    if (now != UNKNOWN)
        return now == YES;
    if (at_new(AT_DTYPE_F32, 2, matrix, &t.at[0]))
        return false;
    for (int i = 1; i <= 3; i++) {
        if (at_new(AT_DTYPE_I64, 1, pair, &t.at[i]))
            return false;
        for (int64_t k = 0; k < 2; k++) /* zeros; 0 and 1; 3 and 7 */
            ((int64_t *)at_data(t.at[i]))[k] = i == 1 ? 0 : i == 2 ? k : 3 + 4 * k;
    }
    for (int i = 0; i < 2 * WIDTH; i++)
        ((float *)at_data(t.at[0]))[i] = sinf(1.7f * (float)i) + 1.5f;
    now = rounds_once(t.at[0], t.at[1], t.at[2], t.at[3]) ? YES : NO;
    __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    return now == YES;
}

/* The factor of each bag of a mean, as stock rounds it. */
static at_error make_scales(const ptac_rows *p, at_tensor bag_size, at_tensor *made,
                            ptac_view *view)
{
    const void *sizes = at_data(bag_size);
    const at_error error = ptac_new(PTAC_F32, 1, &p->x_rows, NULL, made, view);

    for (int64_t b = 0; b < p->x_rows && !error; b++) {
        const int64_t n = ptac_rows_index(p, sizes, b);

        ((float *)view->data)[b] = n ? (float)(1.0 / (double)n) : 1;
    }
    return error;
}

static void take(const ptac_arguments *args, int which, int i, ptac_call *call,
                 at_tensors *owned)
{
    owned->at[i] = at_dense(args->at[which].tensor, &args->at[which].view, false);
    ptac_view_of(owned->at[i], &call->inputs[i]);
    call->n_inputs = i + 1;
}

/* Inputs of sums and means; false without memory. */
static bool take_sums(const ptac_arguments *args, const ptac_rows *p, ptac_call *call,
                      at_tensors *owned)
{
    at_tensor sorted[2];

    take(args, GRAD, PTAC_ROWS_TABLE, call, owned);
    take(args, OFFSET2BAG, PTAC_ROWS_X, call, owned);
    at_adopt_all(T.cpu_sort(args->at[INDICES].tensor, (at_optional_bool){false, true},
                            -1, false),
                 2, sorted);
    owned->at[PTAC_ROWS_INDEX] = sorted[0];
    owned->at[PTAC_ROWS_ORDER] = sorted[1];
    ptac_view_of(sorted[0], &call->inputs[PTAC_ROWS_INDEX]);
    ptac_view_of(sorted[1], &call->inputs[PTAC_ROWS_ORDER]);
    call->n_inputs = PTAC_ROWS_ORDER + 1;
    if (args->at[MODE].number == PTAC_BAG_SUM)
        return true;
    call->n_inputs = PTAC_ROWS_SCALES + 1;
    return ptac_view_is_contiguous(&args->at[BAG_SIZE].view) &&
           !make_scales(p, args->at[BAG_SIZE].tensor, &owned->at[PTAC_ROWS_SCALES],
                        &call->inputs[PTAC_ROWS_SCALES]);
}

static bool take_largest(const ptac_arguments *args, ptac_call *call, at_tensors *owned)
{
    take(args, GRAD, PTAC_BAG_GRAD_X, call, owned);
    take(args, LARGEST, PTAC_BAG_GRAD_LARGEST, call, owned);
    take(args, BAG_SIZE, PTAC_BAG_GRAD_SIZES, call, owned);
    return true;
}

/* Why a call of this mode is stock's, or PTAC_TAKE. */
static ptac_reason read_mode(const ptac_arguments *args, const ptac_rows *p)
{
    const ptac_view *grad = &args->at[GRAD].view;
    const int64_t mode = args->at[MODE].number;
    ptac_rows of_largest;

    if (mode == PTAC_BAG_MAX) {
        const ptac_reason why =
            ptac_read_index(args->at[LARGEST].tensor, 1, &of_largest);

        if (why || of_largest.has_32_bits != p->has_32_bits)
            return why ? why : PTAC_DTYPE;
        return ptac_view_has_sizes(&args->at[LARGEST].view, 2, grad->sizes)
                   ? PTAC_TAKE
                   : PTAC_ARGUMENT;
    }
    if (p->n == 0)
        return PTAC_EMPTY;
    if (args->at[OFFSET2BAG].view.n_elements != p->n)
        return PTAC_ARGUMENT;
    return mode == PTAC_BAG_SUM || (mode == PTAC_BAG_MEAN && means_round_once())
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

static ptac_op op_of(const ptac_arguments *args)
{
    return args->at[MODE].number == PTAC_BAG_MAX ? PTAC_OP_EMBEDDING_BAG_MAX_BACKWARD
                                                 : PTAC_OP_EMBEDDING_BAG_BACKWARD;
}

static bool serve(const ptac_arguments *args, at_tensor *out)
{
    AT_OWNED_ALL at_tensors owned = {{NULL}};
    ptac_bag bag = {.mode = (ptac_bag_mode)args->at[MODE].number};
    ptac_rows *rows = &bag.rows;
    const bool is_max = bag.mode == PTAC_BAG_MAX;
    ptac_call call = {.op = op_of(args)};
    ptac_reason why = read(args, rows);
    const int64_t sizes[] = {rows->n_rows, rows->width};
    const ptac_kernel *row;

    call.params = is_max ? (void *)&bag : rows;
    call.inputs[GRAD] = args->at[GRAD].view;
    call.n_inputs = 1;
    bag.n_bags = rows->x_rows;
    if (!why)
        why = read_mode(args, rows);
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    row = ptac_admit(&call);
    if (!row)
        return false;
    if (!(is_max ? take_largest(args, &call, &owned)
                 : take_sums(args, rows, &call, &owned)) ||
        ptac_new(PTAC_F32, 2, sizes, NULL, out, &call.outputs[0])) {
        ptac_refuse(call.op, PTAC_MEMORY);
        return false;
    }
    call.n_outputs = 1;
    if (ptac_run_checked(row, &call, 1, out, ptac_override_stock, args))
        return true;
    at_drop_tensor(out);
    return false;
}

static ptac_override embedding_bag_backward = {
    .schema = "_embedding_bag_dense_backward(Tensor grad, Tensor indices, "
              "Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, "
              "SymInt num_weights, bool scale_grad_by_freq, int mode, "
              "Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
    .op = PTAC_OP_EMBEDDING_BAG_BACKWARD,
    .n_others = 1,
    .others = {PTAC_OP_EMBEDDING_BAG_MAX_BACKWARD},
    .op_of = op_of,
    .out = "aten::_embedding_bag_dense_backward.out",
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .needs = &T.cpu_sort,
    .serve = serve,
};
PTAC_OVERRIDE(embedding_bag_backward, cpu_embedding_bag_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), TENSOR(3), TENSOR(4), INT(5), BOOL(6), INT(7),
              OPTIONAL_TENSOR(8), INT(9))
