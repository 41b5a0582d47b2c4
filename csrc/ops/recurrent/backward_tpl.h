/*
 * backward_tpl.h - gradients of lstm and gru through the steps of a sequence.
 *
 * From the last step to the first: the gradients of the gates' sums, which are kept for
 * the products of the weights, and what of them goes through w_hh to the step before.
 */
#include "ops/recurrent/forward_tpl.h"

/* w_hh laid out, and the gates' gradients summed, a row for each tile. */
typedef struct backward_job {
    const ptac_call *call;
    const float *first, *states, *gates, *grad_y;
    float *of_sums, *of_hidden, *of_h, *of_c; /* of_hidden: what goes through w_hh */
    int64_t grad_step, grad_row;              /* strides of grad_y */
    ptac_recurrent_steps steps;
    int64_t n_hidden, n_tiles;
    int n_gates;
    bool is_direct; /* there are no panels */
    float *panels;
    float *bias; /* of n_gates n_hidden, and of gru as many again */
} backward_job;

/* Of a tile in a step. */
typedef struct backward_place {
    int64_t t;      /* the step */
    int64_t number; /* of the tile */
    tile *tile;
} backward_place;

/* A row's units of a step: what is kept of them, and the state before it. */
typedef struct backward_units {
    const float *kept, *before, *grad_y;
    int64_t at, row, u;
    int n;
} backward_units;

static int64_t bias_width(const backward_job *job)
{
    return job->n_gates * job->n_hidden * (job->n_gates == PTAC_GRU_GATES ? 2 : 1);
}

INLINE vec kept_of(const backward_job *job, const backward_units *p, int i)
{
    return v_load_first(p->kept + i * job->n_hidden, p->n);
}

/* The gradient of a sigmoid's argument: grad s (1 - s). */
INLINE vec through_sigmoid(vec grad, vec s)
{
    return v_mul(grad, v_fnma(s, s, s));
}

INLINE vec through_tanh(vec grad, vec bent)
{
    return v_mul(grad, v_fnma(bent, bent, v_set(1)));
}

INLINE vec grad_of_h(const backward_units *p, const float *of_h)
{
    const vec grad = v_load_first(of_h, p->n);

    return p->grad_y ? v_add(grad, v_load_first(p->grad_y, p->n)) : grad;
}

INLINE void store_gradients(const backward_job *job, const backward_units *p,
                            float *all, const vec *of, vec *bias)
{
    float *to = all + p->at * job->n_gates * job->n_hidden + p->u;

#pragma GCC unroll 4
    for (int i = 0; i < job->n_gates; i++) {
        v_store_first(to + i * job->n_hidden, of[i], p->n);
        bias[i] = v_add(bias[i], of[i]);
    }
}

INLINE void lstm_gradients(const backward_job *job, const backward_units *p, vec *bias)
{
    const int64_t n = job->n_hidden;
    float *running = job->of_c + p->row * n + p->u;
    const vec i = kept_of(job, p, 0), f = kept_of(job, p, 1), g = kept_of(job, p, 2);
    const vec o = kept_of(job, p, 3);
    const vec bent = gate_tanh(v_load_first(job->states + p->at * n + p->u, p->n));
    const vec of_h = grad_of_h(p, job->of_h + p->row * n + p->u);
    const vec of_c =
        v_add(through_tanh(v_mul(of_h, o), bent), v_load_first(running, p->n));
    const vec before = v_load_first(p->before, p->n);
    const vec of[PTAC_LSTM_GATES] = {
        through_sigmoid(v_mul(of_c, g), i),
        through_sigmoid(v_mul(of_c, before), f),
        through_tanh(v_mul(of_c, i), g),
        through_sigmoid(v_mul(of_h, bent), o),
    };

    v_store_first(running, v_mul(of_c, f), p->n);
    store_gradients(job, p, job->of_sums, of, bias);
}

INLINE void gru_gradients(const backward_job *job, const backward_units *p, vec *bias,
                          vec *hidden_bias)
{
    float *running = job->of_h + p->row * job->n_hidden + p->u;
    const vec r = kept_of(job, p, 0), z = kept_of(job, p, 1), n = kept_of(job, p, 2);
    const vec of_h = grad_of_h(p, running), before = v_load_first(p->before, p->n);
    const vec of_n = through_tanh(v_fnma(of_h, z, of_h), n);
    vec of[PTAC_GRU_GATES] = {
        through_sigmoid(v_mul(of_n, kept_of(job, p, 3)), r),
        through_sigmoid(v_mul(of_h, v_sub(before, n)), z),
        of_n,
    };

    v_store_first(running, v_mul(of_h, z), p->n);
    store_gradients(job, p, job->of_sums, of, bias);
    of[2] = v_mul(of_n, r);
    store_gradients(job, p, job->of_hidden, of, hidden_bias);
}

INLINE void rnn_gradients(const backward_job *job, const backward_units *p,
                          bool is_relu, vec *bias)
{
    const vec of_h = grad_of_h(p, job->of_h + p->row * job->n_hidden + p->u);
    const vec y = v_load_first(job->states + p->at * job->n_hidden + p->u, p->n);
    const vec of_relu = v_pick(v_at_most(y, v_zero()), v_zero(), of_h);
    const vec of = is_relu ? of_relu : through_tanh(of_h, y);

    store_gradients(job, p, job->of_sums, &of, bias);
}

INLINE void add_bias(float *to, int64_t n_hidden, const vec *of, int n_gates, int n)
{
    for (int i = 0; i < n_gates; i++)
        v_store_first(to + i * n_hidden,
                      v_add(v_load_first(to + i * n_hidden, n), of[i]), n);
}

/* Units [u, u + count) of a tile's rows. */
INLINE void tile_gradients(const backward_job *job, const backward_place *p, int64_t u,
                           int count, bool is_gru)
{
    const int64_t n = job->n_hidden;
    float *to = job->bias + p->number * bias_width(job) + u;
    vec bias[TILE_VECTORS], hidden_bias[TILE_VECTORS];

    for (int i = 0; i < TILE_VECTORS; i++)
        bias[i] = hidden_bias[i] = v_zero();
    for (int i = 0; i < p->tile->n; i++) {
        const int64_t row = p->tile->first + i;
        const int64_t at = ptac_recurrent_at(&job->steps, p->t, row);
        const int64_t before = ptac_recurrent_beside(&job->steps, p->t, row, false);
        const int64_t grad_at = job->steps.starts
                                    ? at * job->grad_row
                                    : p->t * job->grad_step + row * job->grad_row;
        const backward_units units = {
            .kept = job->gates + at * PTAC_RECURRENT_KEPT * n + u,
            .before =
                before >= 0 ? job->states + before * n + u : job->first + row * n + u,
            .grad_y = job->grad_y ? job->grad_y + grad_at + u : NULL,
            .at = at,
            .row = row,
            .u = u,
            .n = count,
        };

        if (job->n_gates == PTAC_RNN_GATES)
            rnn_gradients(job, &units, ptac_recurrent_is_relu(job->call), bias);
        else if (is_gru)
            gru_gradients(job, &units, bias, hidden_bias);
        else
            lstm_gradients(job, &units, bias);
    }
    add_bias(to, n, bias, job->n_gates, count);
    if (is_gru)
        add_bias(to + job->n_gates * n, n, hidden_bias, job->n_gates, count);
}

TARGET static void lstm_tile_gradients(const backward_job *job, const backward_place *p)
{
    FOR_LANES(u, count, (int64_t)0, job->n_hidden,
              tile_gradients(job, p, u, count, false));
}

TARGET static void gru_tile_gradients(const backward_job *job, const backward_place *p)
{
    FOR_LANES(u, count, (int64_t)0, job->n_hidden,
              tile_gradients(job, p, u, count, true));
}

/* Vectors of units from u on, which are a panel. */
static inline int panel_vectors(int64_t n_hidden, int64_t u)
{
    return (int)ptac_least(ptac_parts(n_hidden - u, LANES), TILE_VECTORS);
}

/* Sums of a panel's units begin with what does not go through w_hh. */
static void start_sums(const backward_job *job, int64_t u, tile *t)
{
    const int64_t n = ptac_least(job->n_hidden - u, TILE_VECTORS * LANES);

    memset(t->sums, 0, sizeof t->sums);
    if (job->n_gates == PTAC_GRU_GATES)
        for (int i = 0; i < t->n; i++)
            memcpy(SUM(t->sums, i, 0), job->of_h + (t->first + i) * job->n_hidden + u,
                   (size_t)n * sizeof(float));
}

static void store_sums(const backward_job *job, int64_t u, const tile *t)
{
    const int64_t n = ptac_least(job->n_hidden - u, TILE_VECTORS * LANES);

    for (int i = 0; i < t->n; i++)
        memcpy(job->of_h + (t->first + i) * job->n_hidden + u, SUM(t->sums, i, 0),
               (size_t)n * sizeof(float));
}

/* What goes through w_hh in a step, of tiles [begin, end), at most GROUP_TILES. */
static void backward_group(const backward_job *job, backward_place *p, int64_t begin,
                           int64_t end)
{
    tile tiles[GROUP_TILES];
    const float *w = job->call->inputs[PTAC_RECURRENT_GRAD_W_HH].data;
    const int64_t n = job->n_hidden, n_terms = job->n_gates * n;
    int n_tiles = 0;

    for (int64_t i = begin; i < end; i++) {
        tile *t = &tiles[n_tiles];

        p->tile = t;
        p->number = tile_number(&job->steps, job->n_tiles, i);
        if (!take_rows_of(t, &job->steps, p->t, job->n_tiles, p->number))
            continue;
        n_tiles++;
        if (job->n_gates == PTAC_GRU_GATES)
            gru_tile_gradients(job, p);
        else
            lstm_tile_gradients(job, p);
        for (int j = 0; j < t->n; j++)
            t->rows[j] = job->of_hidden +
                         ptac_recurrent_at(&job->steps, p->t, t->first + j) * n_terms;
    }
    for (int64_t u = 0; u < n; u += TILE_VECTORS * LANES) {
        const int n_vectors = panel_vectors(n, u);

        for (int i = 0; i < n_tiles; i++)
            start_sums(job, u, &tiles[i]);
        for (int i = 0; job->is_direct && i < n_tiles; i++)
            add_columns(w + u, n, n - u, n_terms, &tiles[i]);
        if (!job->is_direct)
            add_terms(tiles, n_tiles, job->panels + u * n_terms, n_terms, n_vectors,
                      job->panels + (u + TILE_VECTORS * LANES < n
                                         ? (u + TILE_VECTORS * LANES) * n_terms
                                         : 0));
        for (int i = 0; i < n_tiles; i++)
            store_sums(job, u, &tiles[i]);
    }
}

/* All steps of tiles [begin, end). */
static void backward_tiles(int64_t begin, int64_t end, void *context)
{
    const backward_job *job = context;

    for (int64_t s = job->steps.n_steps - 1; s >= 0; s--) {
        backward_place p = {.t = ptac_recurrent_step(&job->steps, s)};

        for (int64_t i = begin; i < end; i += GROUP_TILES)
            backward_group(job, &p, i, ptac_least(end, i + GROUP_TILES));
    }
}

/* Panels [begin, end) of w_hh, whose columns lie side by side. */
TARGET static void lay_out_panels(int64_t begin, int64_t end, void *context)
{
    const backward_job *job = context;
    const int64_t n = job->n_hidden, n_terms = job->n_gates * n;
    const float *w = job->call->inputs[PTAC_RECURRENT_GRAD_W_HH].data;

    for (int64_t i = begin; i < end; i++) {
        const int64_t u = i * TILE_VECTORS * LANES;
        const int n_vectors = panel_vectors(n, u);
        float *to = job->panels + u * n_terms;

        for (int64_t k = 0; k < n_terms; k++, to += n_vectors * LANES)
            for (int v = 0; v < n_vectors; v++)
                v_store(to + v * LANES, v_load_first(w + k * n + u + v * LANES,
                                                     at_most_lanes(n - u - v * LANES)));
    }
}

/* The tiles' rows of sums, added up in their order. */
static void add_up_bias(const backward_job *job)
{
    const int64_t n = job->n_gates * job->n_hidden;
    float *to[2] = {job->call->outputs[PTAC_RECURRENT_OF_B_IH].data,
                    job->call->outputs[PTAC_RECURRENT_OF_B_HH].data};

    for (int half = 0; half < bias_width(job) / n; half++) {
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;

            for (int64_t tile = 0; tile < job->n_tiles; tile++)
                sum += job->bias[tile * bias_width(job) + half * n + j];
            to[half][j] = sum;
        }
    }
}

static void start_from(const ptac_view *last, const ptac_view *running)
{
    const size_t bytes = (size_t)running->n_elements * sizeof(float);

    if (running->data && last->data)
        memcpy(running->data, last->data, bytes);
    else if (running->data)
        memset(running->data, 0, bytes);
}

static backward_job backward_job_of(const ptac_call *call)
{
    const ptac_view *gates = &call->inputs[PTAC_RECURRENT_GRAD_GATES];
    const ptac_view *grad_y = &call->inputs[PTAC_RECURRENT_GRAD_Y];
    const ptac_view *out = call->outputs;
    const int n_gates = ptac_recurrent_gates(call);
    const ptac_recurrent_steps steps = ptac_recurrent_steps_of(call, gates);

    return (backward_job){
        .call = call,
        .first = call->inputs[PTAC_RECURRENT_GRAD_FIRST].data,
        .states = call->inputs[PTAC_RECURRENT_GRAD_STATES].data,
        .gates = gates->data,
        .grad_y = grad_y->data,
        .grad_step = grad_y->data ? grad_y->strides[0] : 0,
        .grad_row = grad_y->data ? grad_y->strides[1] : 0,
        .of_sums = out[PTAC_RECURRENT_OF_SUMS].data,
        .of_hidden = out[n_gates == PTAC_GRU_GATES ? PTAC_RECURRENT_OF_HIDDEN_SUMS
                                                   : PTAC_RECURRENT_OF_SUMS]
                         .data,
        .of_h = out[PTAC_RECURRENT_OF_H0].data,
        .of_c = out[PTAC_RECURRENT_OF_C0].data,
        .steps = steps,
        .n_hidden = call->inputs[PTAC_RECURRENT_GRAD_W_HH].sizes[1],
        .n_tiles = count_tiles(steps.n_rows),
        .n_gates = n_gates,
        .is_direct = steps.n_all <= DIRECT_ROWS,
    };
}

static ptac_status run_backward(const ptac_call *call)
{
    backward_job job = backward_job_of(call);
    const int64_t n_terms = job.n_gates * job.n_hidden;
    const int64_t width = ptac_parts(job.n_hidden, LANES) * LANES;
    const int64_t of_panels = job.is_direct ? 0 : width * n_terms;
    const int64_t of_bias = job.n_tiles * bias_width(&job);
    const int64_t tile_work = n_terms * width * TILE_ROWS * job.steps.n_steps;
    float *scratch = ptac_scratch_take(sizeof(float) * (size_t)(of_panels + of_bias));

    if (!scratch)
        return PTAC_FAILED;
    job.panels = scratch;
    job.bias = scratch + of_panels;
    memset(job.bias, 0, (size_t)of_bias * sizeof(float));
    start_from(&call->inputs[PTAC_RECURRENT_GRAD_HN],
               &call->outputs[PTAC_RECURRENT_OF_H0]);
    start_from(&call->inputs[PTAC_RECURRENT_GRAD_CN],
               &call->outputs[PTAC_RECURRENT_OF_C0]);
    if (!job.is_direct)
        ptac_parallel_for(0, ptac_parts(job.n_hidden, TILE_VECTORS * LANES),
                          SHARED_WORK / (n_terms * TILE_VECTORS * LANES) + 1,
                          lay_out_panels, &job);
    ptac_parallel_for(0, job.n_tiles, SHARED_WORK / tile_work + 1, backward_tiles,
                      &job);
    add_up_bias(&job);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

PTAC_ROW(LSTM, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_forward,
         .kept_bytes = forward_kept_bytes)
PTAC_ROW(GRU, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_forward,
         .kept_bytes = forward_kept_bytes)
PTAC_ROW(LSTM_BACKWARD, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_backward)
PTAC_ROW(GRU_BACKWARD, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_backward)
PTAC_ROW(RNN_TANH, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_forward,
         .kept_bytes = forward_kept_bytes)
PTAC_ROW(RNN_RELU, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_forward,
         .kept_bytes = forward_kept_bytes)
PTAC_ROW(RNN_TANH_BACKWARD, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_backward)
PTAC_ROW(RNN_RELU_BACKWARD, ISA, PTAC_CLOSE, NEEDS, ptac_accept_all, run_backward)
