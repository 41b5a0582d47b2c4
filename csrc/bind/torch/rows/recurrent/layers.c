/*
 * layers.c - calls of recurrent layers: read, made room for, and run layer by layer.
 */
#include "bind/torch/rows/recurrent/layers.h"

#include <string.h>

static bool has_sizes(const ptac_view *view, int n_dims, int64_t m, int64_t n)
{
    return view->n_dims == n_dims && view->sizes[0] == m &&
           (n_dims == 1 || view->sizes[1] == n);
}

/* Of an input that has to be there, or may be absent. */
static ptac_reason input_reason(const ptac_view *view, int n_dims, int64_t m, int64_t n)
{
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!has_sizes(view, n_dims, m, n))
        return PTAC_ARGUMENT;
    return ptac_view_is_contiguous(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

static ptac_reason tensors_reason(const ptac_call *call)
{
    const ptac_view *in = call->inputs, *x = &in[PTAC_RECURRENT_X];
    const int64_t n = in[PTAC_RECURRENT_W_HH].sizes[1];
    const int64_t columns = ptac_recurrent_gates(call) * n;
    const int64_t n_rows = ptac_recurrent_steps_of(call, x).n_rows;
    ptac_reason why = input_reason(&in[PTAC_RECURRENT_W_IH], 2, columns, x->sizes[2]);

    if (!why)
        why = input_reason(&in[PTAC_RECURRENT_W_HH], 2, columns, n);
    for (int i = PTAC_RECURRENT_B_IH; !why && i <= PTAC_RECURRENT_B_HH; i++)
        if (in[i].n_dims)
            why = input_reason(&in[i], 1, columns, 0);
    if (!why)
        why = input_reason(&in[PTAC_RECURRENT_H0], 2, n_rows, n);
    if (!why && ptac_recurrent_is_lstm(call))
        why = input_reason(&in[PTAC_RECURRENT_C0], 2, n_rows, n);
    return why;
}

ptac_reason ptac_recurrent_read(ptac_op op, bool is_reverse, bool keeps,
                                const ptac_packed *packed,
                                const ptac_view inputs[PTAC_RECURRENT_N_INPUTS],
                                ptac_recurrent_layer *layer)
{
    const ptac_view *x = &inputs[PTAC_RECURRENT_X];
    const ptac_view *w = &inputs[PTAC_RECURRENT_W_HH];

    layer->params =
        (ptac_recurrent){is_reverse, packed->starts, packed->n_steps, packed->is_cell};
    layer->call = (ptac_call){
        .op = op,
        .n_inputs = PTAC_RECURRENT_N_INPUTS,
        .n_outputs = keeps ? PTAC_RECURRENT_N_OUTPUTS : PTAC_RECURRENT_CN + 1,
        .params = &layer->params,
    };
    memcpy(layer->call.inputs, inputs, PTAC_RECURRENT_N_INPUTS * sizeof *inputs);
    if (x->dtype != PTAC_F32 || w->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_dims != 3 || w->n_dims != 2)
        return PTAC_SHAPE;
    if (x->n_elements == 0 || w->n_elements == 0)
        return PTAC_EMPTY;
    if (x->strides[2] != 1 && x->sizes[2] != 1)
        return PTAC_LAYOUT;
    if (packed->starts &&
        (x->sizes[0] != 1 || x->sizes[1] != packed->starts[packed->n_steps]))
        return PTAC_ARGUMENT;
    return tensors_reason(&layer->call);
}

bool ptac_recurrent_run(const ptac_kernel *row, ptac_recurrent_layer *layer,
                        at_tensor made[PTAC_RECURRENT_N_OUTPUTS])
{
    ptac_call *call = &layer->call;
    const ptac_view *x = &call->inputs[PTAC_RECURRENT_X];
    const int64_t n = call->inputs[PTAC_RECURRENT_W_HH].sizes[1];
    const int64_t sizes[3] = {x->sizes[0], x->sizes[1], n};
    const int64_t state[2] = {ptac_recurrent_steps_of(call, x).n_rows, n};
    const int64_t kept[3] = {x->sizes[0], x->sizes[1], PTAC_RECURRENT_KEPT * n};
    const bool has_c = ptac_recurrent_is_lstm(call);
    const bool has_gates = ptac_recurrent_gates(call) != PTAC_RNN_GATES;
    const bool is_made[PTAC_RECURRENT_N_OUTPUTS] = {true, true, has_c, has_gates,
                                                    has_c};

    for (int i = 0; i < call->n_outputs; i++) {
        const bool is_state = i == PTAC_RECURRENT_HN || i == PTAC_RECURRENT_CN;
        const int64_t *of = is_state ? state : i == PTAC_RECURRENT_GATES ? kept : sizes;

        call->outputs[i] = ptac_absent();
        if (is_made[i] && ptac_new(PTAC_F32, is_state ? 2 : 3, of, NULL, &made[i],
                                   &call->outputs[i])) {
            ptac_refuse(call->op, PTAC_MEMORY);
            return false;
        }
    }
    return ptac_run(row, call);
}

/* x of a sequence, its first dimension time, or, packed, one before it. */
static void first_time(const ptac_recurrent_sequence *q, const ptac_view *x,
                       ptac_recurrent_layer *layer, ptac_view *in)
{
    *in = *x;
    if (q->packed.starts && x->n_dims == 2) {
        layer->x_sizes[0] = 1;
        layer->x_strides[0] = 0;
        for (int d = 0; d < 2; d++) {
            layer->x_sizes[d + 1] = x->sizes[d];
            layer->x_strides[d + 1] = x->strides[d];
        }
        in->n_dims = 3;
        in->sizes = layer->x_sizes;
        in->strides = layer->x_strides;
    }
    if (!q->is_batch_first || x->n_dims != 3)
        return;
    for (int d = 0; d < 3; d++) {
        const int from = d == 2 ? 2 : 1 - d;

        layer->x_sizes[d] = x->sizes[from];
        layer->x_strides[d] = x->strides[from];
    }
    in->sizes = layer->x_sizes;
    in->strides = layer->x_strides;
}

/* A part's state out of those of all parts. */
static ptac_reason state_of(const ptac_view *all, int64_t part, int64_t n_parts,
                            ptac_view *view)
{
    *view = *all;
    if (!view->n_dims)
        return PTAC_TAKE;
    if (view->n_dims != 3 || view->sizes[0] != n_parts)
        return PTAC_ARGUMENT;
    view->data = (float *)view->data + part * view->strides[0];
    view->n_elements /= n_parts;
    view->sizes++;
    view->strides++;
    view->n_dims--;
    return PTAC_TAKE;
}

/* The call of a part whose input is x, already with its first dimension time. */
static ptac_reason read_part(const ptac_recurrent_sequence *q, int part, bool keeps,
                             const ptac_view *x, ptac_recurrent_layer *layer)
{
    const ptac_recurrent_weights *w = &q->weights[part];
    const int n_parts = q->n_layers * q->n_directions;
    ptac_view in[PTAC_RECURRENT_N_INPUTS];
    ptac_reason why;

    in[PTAC_RECURRENT_X] = *x;
    in[PTAC_RECURRENT_W_IH] = w->w_ih;
    in[PTAC_RECURRENT_W_HH] = w->w_hh;
    in[PTAC_RECURRENT_B_IH] = w->b_ih;
    in[PTAC_RECURRENT_B_HH] = w->b_hh;
    why = state_of(&q->h, part, n_parts, &in[PTAC_RECURRENT_H0]);
    if (!why)
        why = state_of(&q->c, part, n_parts, &in[PTAC_RECURRENT_C0]);
    return why ? why
               : ptac_recurrent_read(q->op, part % q->n_directions, keeps, &q->packed,
                                     in, layer);
}

ptac_reason ptac_recurrent_probe(const ptac_recurrent_sequence *q, bool keeps,
                                 const ptac_kernel **row)
{
    const ptac_kernel *last = NULL;
    ptac_recurrent_layer layer;
    ptac_view x;
    ptac_reason why = PTAC_TAKE;

    first_time(q, &q->x, &layer, &x);
    for (int part = 0; !why && part < q->n_layers * q->n_directions; part++) {
        if (part == q->n_directions) { /* of later layers */
            const int64_t n =
                q->n_directions * layer.call.inputs[PTAC_RECURRENT_W_HH].sizes[1];

            layer.x_sizes[0] = x.sizes[0];
            layer.x_sizes[1] = x.sizes[1];
            layer.x_sizes[2] = n;
            layer.x_strides[0] = x.sizes[1] * n;
            layer.x_strides[1] = n;
            layer.x_strides[2] = 1;
            x.sizes = layer.x_sizes;
            x.strides = layer.x_strides;
        }
        why = read_part(q, part, keeps, &x, &layer);
        if (!why)
            last = ptac_probe(&layer.call, &why);
    }
    if (row)
        *row = last;
    return why;
}

/* Columns of y's directions side by side. */
static at_error join(const at_tensor *parts, const ptac_view *view, at_tensor *joined)
{
    const int64_t n = view->sizes[2], n_rows = view->sizes[0] * view->sizes[1];
    const int64_t sizes[3] = {view->sizes[0], view->sizes[1], 2 * n};
    ptac_view whole;

    if (ptac_new(PTAC_F32, 3, sizes, NULL, joined, &whole))
        return 1;
    for (int d = 0; d < 2; d++) {
        const float *from = at_data(parts[d]);
        float *to = (float *)whole.data + d * n;

        for (int64_t i = 0; i < n_rows; i++)
            memcpy(to + i * 2 * n, from + i * n, (size_t)n * sizeof(float));
    }
    return 0;
}

/* Owned outputs of a layer's directions. */
typedef struct layer_outputs {
    at_tensor y[2];
} layer_outputs;

static void drop_outputs(layer_outputs *made)
{
    at_drop_tensor(&made->y[0]);
    at_drop_tensor(&made->y[1]);
}

/* A part's states put among those of all parts. */
static void put_states(const ptac_call *call, int part, at_tensor const *made)
{
    for (int i = PTAC_RECURRENT_HN; i <= PTAC_RECURRENT_CN; i++) {
        const ptac_view *state = &call->outputs[i];
        const size_t n = (size_t)state->n_elements;

        if (state->data)
            memcpy((float *)at_data(made[i]) + (size_t)part * n, state->data,
                   n * sizeof(float));
    }
}

/*
 * Have the call keep what its row makes of the weights, if that is the row that kept
 * it: another one, as of a table installed meanwhile, has another use for the memory.
 */
static void keep_part(const ptac_recurrent_sequence *q, int part,
                      const ptac_kernel *row, ptac_call *call)
{
    ptac_recurrent_kept *one = q->kept ? &q->kept[part] : NULL;

    if (!one)
        return;
    if (q->may_keep) {
        ptac_keep_weights(row, call, &one->kept);
        one->row = row;
    } else if (one->kept.data && one->row == row) {
        call->kept = &one->kept;
    }
}

static bool run_part(const ptac_recurrent_sequence *q, int part, const ptac_view *x,
                     at_tensor *y, at_tensor const *states)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};
    ptac_recurrent_layer layer;
    const ptac_reason why = read_part(q, part, false, x, &layer);
    const ptac_kernel *row = why ? NULL : ptac_admit(&layer.call);

    if (why)
        ptac_refuse(q->op, why);
    if (!row)
        return false;
    keep_part(q, part, row, &layer.call);
    if (!ptac_recurrent_run(row, &layer, made.at))
        return false;
    put_states(&layer.call, part, states);
    *y = at_give(&made.at[PTAC_RECURRENT_Y]);
    return true;
}

static at_error make_states(const ptac_recurrent_sequence *q, at_tensor made[3])
{
    const ptac_view *const like[3] = {NULL, &q->h, &q->c};

    for (int i = 1; i < 3; i++)
        if (like[i]->n_dims &&
            ptac_new(PTAC_F32, 3, like[i]->sizes, NULL, &made[i], NULL))
            return 1;
    return 0;
}

/* y as the caller wants it, by another look at the same memory. */
static at_error turn(const ptac_recurrent_sequence *q, at_tensor *y)
{
    ptac_view view;
    at_tensor turned = NULL;

    if (!q->is_batch_first && !q->packed.starts)
        return 0;
    ptac_view_of(*y, &view);

    const int from = q->packed.starts ? 1 : 0;
    const int64_t sizes[3] = {view.sizes[1 - from], view.sizes[from], view.sizes[2]};
    const int64_t strides[3] = {view.strides[1 - from], view.strides[from],
                                view.strides[2]};

    if (T.aoti_torch__reinterpret_tensor(*y, 3 - from, sizes + from, strides + from, 0,
                                         &turned))
        return 1;
    at_drop_tensor(y);
    *y = turned;
    return 0;
}

bool ptac_recurrent_all(const ptac_recurrent_sequence *q, at_tensor made[3])
{
    AT_OWNED at_tensor y = NULL;
    ptac_recurrent_layer first;
    ptac_view x;

    first_time(q, &q->x, &first, &x);
    if (make_states(q, made)) {
        ptac_refuse(q->op, PTAC_MEMORY);
        return false;
    }
    for (int l = 0; l < q->n_layers; l++) {
        __attribute__((cleanup(drop_outputs))) layer_outputs of = {{NULL}};
        at_tensor joined = NULL;

        for (int d = 0; d < q->n_directions; d++)
            if (!run_part(q, l * q->n_directions + d, &x, &of.y[d], made))
                return false;
        ptac_view_of(of.y[0], &x);
        if (q->n_directions == 2 && join(of.y, &x, &joined)) {
            ptac_refuse(q->op, PTAC_MEMORY);
            return false;
        }
        at_drop_tensor(&y);
        y = joined ? joined : at_give(&of.y[0]);
        ptac_view_of(y, &x);
    }
    if (turn(q, &y)) {
        ptac_refuse(q->op, PTAC_MEMORY);
        return false;
    }
    made[PTAC_RECURRENT_Y] = at_give(&y);
    return true;
}
