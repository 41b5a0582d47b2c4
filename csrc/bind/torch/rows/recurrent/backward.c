/*
 * backward.c - gradients of a recurrent layer: those of the gates' sums
 * by a row, and of weights and x by products of torch's library.
 */
#include "bind/torch/rows/gemm.h"
#include "bind/torch/rows/recurrent/layers.h"

/* The call of a row, and what it makes. */
typedef struct through_steps {
    ptac_recurrent params;
    ptac_call call;
    at_tensor made[PTAC_RECURRENT_N_GRADIENTS];
} through_steps;

static void drop_made(through_steps *steps)
{
    for (int i = 0; i < PTAC_RECURRENT_N_GRADIENTS; i++)
        at_drop_tensor(&steps->made[i]);
}

static bool is_gru(const ptac_recurrent_gradients *g)
{
    return g->op == PTAC_OP_GRU;
}

/* Floats that lie as rows want them; an absent gradient has no data. */
static ptac_reason take(at_tensor tensor, bool is_grad_y, ptac_view *view)
{
    *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    if (!tensor)
        return PTAC_TAKE;
    ptac_view_of(tensor, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (is_grad_y)
        return view->strides[2] == 1 || view->sizes[2] == 1 ? PTAC_TAKE : PTAC_LAYOUT;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

/* A program may have changed batch_sizes since forward. */
static bool are_steps_of(const ptac_recurrent_gradients *g, const ptac_call *call)
{
    const ptac_packed *packed = g->packed;

    return !packed->starts ||
           (packed->starts[packed->n_steps] ==
                call->inputs[PTAC_RECURRENT_GRAD_GATES].sizes[1] &&
            packed->starts[1] == call->inputs[PTAC_RECURRENT_GRAD_FIRST].sizes[0]);
}

static bool has_sizes(at_tensor tensor, int n_dims, int64_t a, int64_t b, int64_t c)
{
    const int64_t sizes[3] = {a, b, c};
    ptac_view view;

    if (!tensor)
        return true;
    ptac_view_of(tensor, &view);
    return ptac_view_has_sizes(&view, n_dims, sizes + 3 - n_dims);
}

/* Nor need what the program shares have its sizes still: it may have set its .data. */
static bool are_sizes_of(const ptac_recurrent_gradients *g, const ptac_call *call)
{
    ptac_view x, y;

    ptac_view_of(g->x, &x);
    ptac_view_of(g->y, &y);

    const int64_t n = y.sizes[2], columns = ptac_recurrent_gates(call) * n;
    const int64_t n_rows = g->packed->starts ? g->packed->starts[1] : y.sizes[1];

    return x.n_dims == 3 && x.sizes[0] == y.sizes[0] && x.sizes[1] == y.sizes[1] &&
           has_sizes(g->w_ih, 2, 0, columns, x.sizes[2]) &&
           has_sizes(g->w_hh, 2, 0, columns, n) && has_sizes(g->h0, 2, 0, n_rows, n) &&
           has_sizes(g->c0, 2, 0, n_rows, n);
}

static ptac_reason read(const ptac_recurrent_gradients *g, through_steps *steps)
{
    const bool lstm = g->op == PTAC_OP_LSTM;
    const at_tensor from[PTAC_RECURRENT_GRAD_N_INPUTS] = {
        g->w_hh,    lstm ? g->c0 : g->h0, lstm ? g->cells : g->y, g->gates, g->grad_y,
        g->grad_hn, g->grad_cn,
    };
    ptac_reason why = PTAC_TAKE;

    steps->params =
        (ptac_recurrent){g->is_reverse, g->packed->starts, g->packed->n_steps, false};
    steps->call = (ptac_call){
        .op = ptac_recurrent_backward_of(g->op),
        .n_inputs = PTAC_RECURRENT_GRAD_N_INPUTS,
        .n_outputs = PTAC_RECURRENT_N_GRADIENTS,
        .params = &steps->params,
    };
    for (int i = 0; !why && i < PTAC_RECURRENT_GRAD_N_INPUTS; i++)
        why = take(from[i], i == PTAC_RECURRENT_GRAD_Y, &steps->call.inputs[i]);
    if (!why && (!are_steps_of(g, &steps->call) || !are_sizes_of(g, &steps->call)))
        return PTAC_ARGUMENT;
    return why;
}

static at_error make_outputs(through_steps *steps)
{
    ptac_call *call = &steps->call;
    const ptac_view *gates = &call->inputs[PTAC_RECURRENT_GRAD_GATES];
    const int64_t n = call->inputs[PTAC_RECURRENT_GRAD_W_HH].sizes[1];
    const int64_t columns = ptac_recurrent_gates(call) * n;
    const int64_t sums[3] = {gates->sizes[0], gates->sizes[1], columns};
    const int64_t state[2] = {ptac_recurrent_steps_of(call, gates).n_rows, n};

    for (int i = 0; i < PTAC_RECURRENT_N_GRADIENTS; i++) {
        const bool is_bias = i == PTAC_RECURRENT_OF_B_IH || i == PTAC_RECURRENT_OF_B_HH;
        const bool is_state = i == PTAC_RECURRENT_OF_H0 || i == PTAC_RECURRENT_OF_C0;
        const bool is_absent =
            (!ptac_recurrent_is_lstm(call) && i == PTAC_RECURRENT_OF_C0) ||
            (!ptac_recurrent_is_gru(call) && i >= PTAC_RECURRENT_OF_HIDDEN_SUMS);

        call->outputs[i] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (!is_absent && ptac_new(PTAC_F32,
                                   is_bias    ? 1
                                   : is_state ? 2
                                              : 3,
                                   is_bias    ? &columns
                                   : is_state ? state
                                              : sums,
                                   NULL, &steps->made[i], &call->outputs[i]))
            return 1;
    }
    return 0;
}

/* Steps [begin, begin + n) of [steps, rows, columns] as a matrix of rows. */
static ptac_matrix steps_of(at_tensor tensor, int64_t begin, int64_t n)
{
    ptac_view view;

    ptac_view_of(tensor, &view);

    const int64_t n_rows = view.sizes[1], columns = view.sizes[2];

    return (ptac_matrix){
        tensor, begin * n_rows * columns, {n * n_rows, columns}, {columns, 1}};
}

static ptac_matrix matrix_of(at_tensor tensor)
{
    ptac_view view;

    ptac_view_of(tensor, &view);
    return (ptac_matrix){tensor, 0, {view.sizes[0], view.sizes[1]}, {view.sizes[1], 1}};
}

/* *out = a^T b, of matrices with a row for each row of some steps. */
static at_error over_rows(ptac_matrix a, ptac_matrix b, at_tensor *out)
{
    const ptac_matrix left = ptac_transposed(a), right = ptac_transposed(b);

    return ptac_gemm_sum(PTAC_GEMM_BLAS, &left, &right, out);
}

/* The gradient of w_hh: each step's sums times the state before it. */
static at_error of_w_hh_packed(ptac_recurrent_gradients *g, const ptac_call *call,
                               at_tensor sums)
{
    AT_OWNED at_tensor before = NULL;
    ptac_view y;

    ptac_view_of(g->y, &y);
    return ptac_packed_states_before(call, &y, g->h0, &before) ||
           over_rows(steps_of(sums, 0, 1), matrix_of(before), &g->of_w_hh);
}

static at_error of_w_hh(ptac_recurrent_gradients *g, at_tensor sums)
{
    ptac_view view;

    ptac_view_of(sums, &view);

    const int64_t n_steps = view.sizes[0], rest = n_steps - 1;
    const int64_t first = g->is_reverse ? rest : 0,
                  sizes[2] = {view.sizes[2], view.sizes[1]};
    const int64_t strides[2] = {1, view.sizes[2]};
    AT_OWNED at_tensor left = NULL;

    if (rest == 0)
        return over_rows(steps_of(sums, 0, 1), matrix_of(g->h0), &g->of_w_hh);
    if (over_rows(steps_of(sums, !g->is_reverse, rest),
                  steps_of(g->y, g->is_reverse, rest), &g->of_w_hh))
        return 1;
    return T.aoti_torch__reinterpret_tensor(sums, 2, sizes, strides,
                                            first * sizes[0] * sizes[1], &left) ||
           T.aoti_torch_cpu_addmm_out(g->of_w_hh, g->of_w_hh, left, g->h0, 1, 1);
}

static at_error of_weights(ptac_recurrent_gradients *g, through_steps *steps)
{
    at_tensor *made = steps->made, hidden;
    AT_OWNED at_tensor dense = NULL;
    ptac_view x;

    ptac_view_of(g->x, &x);
    if (at_contiguous(at_share(g->x), false, &dense) ||
        over_rows(steps_of(made[PTAC_RECURRENT_OF_SUMS], 0, x.sizes[0]),
                  steps_of(dense, 0, x.sizes[0]), &g->of_w_ih))
        return 1;
    hidden = made[is_gru(g) ? PTAC_RECURRENT_OF_HIDDEN_SUMS : PTAC_RECURRENT_OF_SUMS];
    if (g->packed->starts ? of_w_hh_packed(g, &steps->call, hidden)
                          : of_w_hh(g, hidden))
        return 1;
    g->of_b_ih = at_give(&made[PTAC_RECURRENT_OF_B_IH]);
    g->of_b_hh = at_give(&made[PTAC_RECURRENT_OF_B_HH]);
    return 0;
}

/* [steps, rows, n_in], contiguous. */
static at_error of_x(ptac_recurrent_gradients *g, at_tensor sums)
{
    ptac_view x;

    ptac_view_of(g->x, &x);

    const int64_t n = x.sizes[2], strides[3] = {x.sizes[1] * n, n, 1};
    const ptac_matrix left = steps_of(sums, 0, x.sizes[0]);
    const ptac_matrix w = ptac_transposed(matrix_of(g->w_ih));
    AT_OWNED at_tensor rows = NULL;
    bool has_bias;

    return ptac_gemm_rows(PTAC_GEMM_BLAS, &left, &w, NULL, &rows, &has_bias) ||
           T.aoti_torch__reinterpret_tensor(rows, 3, x.sizes, strides, 0, &g->of_x);
}

bool ptac_recurrent_backward(ptac_recurrent_gradients *g)
{
    __attribute__((cleanup(drop_made))) through_steps steps = {.made = {NULL}};
    const ptac_reason why = read(g, &steps);
    const ptac_kernel *row = why ? NULL : ptac_admit(&steps.call);

    if (why)
        ptac_refuse(steps.call.op, why);
    if (!row)
        return false;
    if (make_outputs(&steps)) {
        ptac_refuse(steps.call.op, PTAC_MEMORY);
        return false;
    }
    if (!ptac_run(row, &steps.call))
        return false;
    if ((g->wants_x && of_x(g, steps.made[PTAC_RECURRENT_OF_SUMS])) ||
        (g->wants_w && of_weights(g, &steps)))
        return false;
    g->of_h0 = at_give(&steps.made[PTAC_RECURRENT_OF_H0]);
    g->of_c0 = at_give(&steps.made[PTAC_RECURRENT_OF_C0]);
    return true;
}
