/*
 * forward_tpl.h - lstm and gru, a step's sums and gates in one pass.
 *
 * For a vector of units the sums of all gates stand in registers side by side, so that
 * the states follow from them at once. Where a thread has so few rows that tiles stay
 * unfilled, the products with x come first, for all steps together.
 */
#include "ops/recurrent/gates_tpl.h"
#include "ops/recurrent/tiles_tpl.h"

/* A call, the weights laid out, and where the sums of x are, if they are there. */
typedef struct forward_job {
    const ptac_call *call;
    const float *x, *h0, *c0;
    float *y, *hn, *cn, *gates, *cells;
    int64_t x_step, x_row;
    int64_t n_steps, n_rows, n_in, n_hidden;
    int64_t n_blocks; /* vectors of units */
    int64_t n_tiles;
    int n_gates;
    float *x_panels, *h_panels;
    float *bias; /* a block's TILE_VECTORS: where its sums begin */
    float *sums; /* of x, for each row of each step its blocks; NULL: not there */
} forward_job;

/* Of some tiles in a step. */
typedef struct forward_place {
    int64_t s, t, before; /* number of the step; it, and the one before, in time */
    int64_t block;
} forward_place;

enum {
    FEW = 4, /* rows that leave tiles so unfilled that the sums of x come first */
};

/* A row's units [u, u + n) of a step. */
typedef struct forward_units {
    int64_t row; /* of the batch */
    int64_t at;  /* of all steps' rows */
    int64_t u;
    int n;
    bool is_first, is_last;
} forward_units;

/* A gradient is as exact as 1 - tanh^2: where it is kept for, tanh is, too. */
INLINE vec tanh_of(vec x, bool keeps)
{
    return keeps ? gate_tanh(x) : gate_tanh_quick(x);
}

INLINE void store_kept(const forward_job *job, const forward_units *p, const vec *kept)
{
    float *to = job->gates + p->at * PTAC_RECURRENT_KEPT * job->n_hidden + p->u;

#pragma GCC unroll 4
    for (int i = 0; i < PTAC_RECURRENT_KEPT; i++)
        v_store_first(to + i * job->n_hidden, kept[i], p->n);
}

INLINE void store_h(const forward_job *job, const forward_units *p, vec h)
{
    v_store_first(job->y + p->at * job->n_hidden + p->u, h, p->n);
    if (p->is_last)
        v_store_first(job->hn + p->row * job->n_hidden + p->u, h, p->n);
}

INLINE void lstm_units(const forward_job *job, const forward_units *p, const vec *sums,
                       bool keeps)
{
    float *state = job->cn + p->row * job->n_hidden + p->u;
    const float *from = p->is_first ? job->c0 + p->row * job->n_hidden + p->u : state;
    const vec kept[PTAC_RECURRENT_KEPT] = {
        gate_sigmoid(sums[0]),
        gate_sigmoid(sums[1]),
        tanh_of(sums[2], keeps),
        gate_sigmoid(sums[3]),
    };
    const vec c = v_fma(kept[1], v_load_first(from, p->n), v_mul(kept[0], kept[2]));

    v_store_first(state, c, p->n);
    store_h(job, p, v_mul(kept[3], tanh_of(c, keeps)));
    if (!keeps)
        return;
    store_kept(job, p, kept);
    v_store_first(job->cells + p->at * job->n_hidden + p->u, c, p->n);
}

INLINE void gru_units(const forward_job *job, const forward_units *p, const float *h,
                      const vec *sums, bool keeps)
{
    const vec r = gate_sigmoid(sums[0]), z = gate_sigmoid(sums[1]);
    const vec n = tanh_of(v_fma(r, sums[3], sums[2]), keeps);
    const vec kept[PTAC_RECURRENT_KEPT] = {r, z, n, sums[3]};

    store_h(job, p, v_fma(z, v_sub(v_load_first(h + p->u, p->n), n), n));
    if (keeps)
        store_kept(job, p, kept);
}

static inline const float *x_of(const forward_job *job, int64_t t, int64_t row)
{
    return job->x + t * job->x_step + row * job->x_row;
}

static inline const float *x_panel(const forward_job *job, int64_t block)
{
    return job->x_panels + block * job->n_in * job->n_gates * LANES;
}

static inline float *sums_of(const forward_job *job, int64_t at, int64_t block)
{
    return job->sums + (at * job->n_blocks + block) * TILE_VECTORS * LANES;
}

INLINE void load_sums(const float *from, vec sums[TILE_VECTORS])
{
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++)
        sums[v] = v_load(from + v * LANES);
}

INLINE void lstm_tile(const forward_job *job, const tile *t, forward_units *p,
                      bool keeps)
{
    for (int i = 0; i < t->n; i++, p->row++, p->at++) {
        vec sums[TILE_VECTORS];

        load_sums(SUM(t->sums, i, 0), sums);
        lstm_units(job, p, sums, keeps);
    }
}

INLINE void gru_tile(const forward_job *job, const tile *t, forward_units *p,
                     bool keeps)
{
    for (int i = 0; i < t->n; i++, p->row++, p->at++) {
        vec sums[TILE_VECTORS];

        load_sums(SUM(t->sums, i, 0), sums);
        gru_units(job, p, t->rows[i], sums, keeps);
    }
}

/* The states of a tile; n is a constant where the block is full, and keeps always. */
INLINE void tile_units(const forward_job *job, const forward_place *place,
                       const tile *t, int n, bool keeps)
{
    forward_units p = {
        .row = t->first,
        .at = place->t * job->n_rows + t->first,
        .u = place->block * LANES,
        .n = n,
        .is_first = place->s == 0,
        .is_last = place->s == job->n_steps - 1,
    };

    if (job->n_gates == PTAC_LSTM_GATES)
        lstm_tile(job, t, &p, keeps);
    else
        gru_tile(job, t, &p, keeps);
}

TARGET static void tiles_units(const forward_job *job, const forward_place *place,
                               const tile *tiles, int n_tiles)
{
    const int64_t n = job->n_hidden - place->block * LANES;

    for (int i = 0; i < n_tiles; i++) {
        if (n >= LANES && job->gates)
            tile_units(job, place, &tiles[i], LANES, true);
        else if (n >= LANES)
            tile_units(job, place, &tiles[i], LANES, false);
        else if (job->gates)
            tile_units(job, place, &tiles[i], (int)n, true);
        else
            tile_units(job, place, &tiles[i], (int)n, false);
    }
}

/* Rows of x, and the sums with which a tile begins. */
TARGET static void start_tile(const forward_job *job, const forward_place *place,
                              tile *t)
{
    const float *bias = job->bias + place->block * TILE_VECTORS * LANES;
    const int64_t at = place->t * job->n_rows + t->first;

    for (int i = 0; i < t->n; i++) {
        t->rows[i] = x_of(job, place->t, t->first + i);
        memcpy(SUM(t->sums, i, 0),
               job->sums ? sums_of(job, at + i, place->block) : bias,
               TILE_VECTORS * LANES * sizeof(float));
    }
}

static void take_states(const forward_job *job, const forward_place *place, tile *t)
{
    for (int i = 0; i < t->n; i++) {
        const int64_t row = t->first + i;

        t->rows[i] = place->s
                         ? job->y + (place->before * job->n_rows + row) * job->n_hidden
                         : job->h0 + row * job->n_hidden;
    }
}

/* A block of units of at most GROUP_TILES tiles in a step. */
static void forward_group(const forward_job *job, const forward_place *place,
                          int64_t first, int n_tiles)
{
    tile tiles[GROUP_TILES];
    const int64_t width = job->n_gates * LANES;
    const int64_t next = (place->block + 1) % job->n_blocks;
    const float *h_panels = job->h_panels + place->block * job->n_hidden * width;

    for (int i = 0; i < n_tiles; i++) {
        take_rows(&tiles[i], job->n_rows, job->n_tiles, first + i);
        start_tile(job, place, &tiles[i]);
    }
    if (!job->sums)
        add_terms(tiles, n_tiles, x_panel(job, place->block), job->n_in, job->n_gates,
                  job->n_gates - 1, h_panels);
    for (int i = 0; i < n_tiles; i++)
        take_states(job, place, &tiles[i]);
    add_terms(tiles, n_tiles, h_panels, job->n_hidden, job->n_gates, TILE_VECTORS - 1,
              job->sums ? job->h_panels + next * job->n_hidden * width
                        : x_panel(job, next));
    tiles_units(job, place, tiles, n_tiles);
}

/* All steps of tiles [begin, end). */
static void forward_tiles(int64_t begin, int64_t end, void *context)
{
    const forward_job *job = context;
    forward_place p = {.s = 0};

    for (; p.s < job->n_steps; p.s++, p.before = p.t) {
        p.t = ptac_recurrent_step(job->call, p.s, job->n_steps);
        for (p.block = 0; p.block < job->n_blocks; p.block++)
            for (int64_t i = begin; i < end; i += GROUP_TILES)
                forward_group(job, &p, i, (int)ptac_least(end - i, GROUP_TILES));
    }
}

/* The sums of x of tiles [begin, end) of all steps' rows. */
static void sum_x_group(const forward_job *job, int64_t block, int64_t begin,
                        int n_tiles)
{
    const int64_t n_rows = job->n_steps * job->n_rows;
    tile tiles[GROUP_TILES];

    for (int i = 0; i < n_tiles; i++) {
        tile *t = &tiles[i];

        take_rows(t, n_rows, count_tiles(n_rows), begin + i);
        for (int j = 0; j < t->n; j++) {
            const int64_t at = t->first + j;

            t->rows[j] = x_of(job, at / job->n_rows, at % job->n_rows);
            memcpy(SUM(t->sums, j, 0), job->bias + block * TILE_VECTORS * LANES,
                   TILE_VECTORS * LANES * sizeof(float));
        }
    }
    add_terms(tiles, n_tiles, x_panel(job, block), job->n_in, job->n_gates,
              job->n_gates - 1, x_panel(job, block));
    for (int i = 0; i < n_tiles; i++)
        for (int j = 0; j < tiles[i].n; j++)
            memcpy(sums_of(job, tiles[i].first + j, block), SUM(tiles[i].sums, j, 0),
                   TILE_VECTORS * LANES * sizeof(float));
}

static void sum_x_tiles(int64_t begin, int64_t end, void *context)
{
    const forward_job *job = context;

    for (int64_t block = 0; block < job->n_blocks; block++)
        for (int64_t i = begin; i < end; i += GROUP_TILES)
            sum_x_group(job, block, i, (int)ptac_least(end - i, GROUP_TILES));
}

/* Both biases of a gate; n of gru has them apart. */
INLINE vec both_biases(const float *b_ih, const float *b_hh, int64_t at, int n)
{
    const vec zero = v_zero();

    return v_add(b_ih ? v_load_first(b_ih + at, n) : zero,
                 b_hh ? v_load_first(b_hh + at, n) : zero);
}

TARGET static void lay_out_blocks(int64_t begin, int64_t end, void *context)
{
    const forward_job *job = context;
    const ptac_call *call = job->call;
    const float *b_ih = call->inputs[PTAC_RECURRENT_B_IH].data;
    const float *b_hh = call->inputs[PTAC_RECURRENT_B_HH].data;
    const int64_t n = job->n_hidden, width = job->n_gates * LANES;

    for (int64_t block = begin; block < end; block++) {
        const int64_t u = block * LANES;
        const int n_units = at_most_lanes(n - u);
        const bool is_gru = job->n_gates == PTAC_GRU_GATES;
        float *bias = job->bias + block * TILE_VECTORS * LANES;

        lay_out_units(call->inputs[PTAC_RECURRENT_W_IH].data, u, n, job->n_in,
                      job->n_gates, job->x_panels + block * job->n_in * width);
        lay_out_units(call->inputs[PTAC_RECURRENT_W_HH].data, u, n, n, job->n_gates,
                      job->h_panels + block * n * width);
        for (int v = 0; v < TILE_VECTORS; v++) {
            const bool is_of_h = is_gru && v == 3, is_of_x = is_gru && v == 2;

            v_store(bias + v * LANES,
                    both_biases(is_of_h ? NULL : b_ih, is_of_x ? NULL : b_hh,
                                (is_of_h ? 2 : v) * n + u, n_units));
        }
    }
}

static forward_job forward_job_of(const ptac_call *call)
{
    const ptac_view *x = &call->inputs[PTAC_RECURRENT_X];
    const int64_t n_hidden = call->inputs[PTAC_RECURRENT_W_HH].sizes[1];

    return (forward_job){
        .call = call,
        .x = x->data,
        .h0 = call->inputs[PTAC_RECURRENT_H0].data,
        .c0 = call->inputs[PTAC_RECURRENT_C0].data,
        .y = call->outputs[PTAC_RECURRENT_Y].data,
        .hn = call->outputs[PTAC_RECURRENT_HN].data,
        .cn = call->outputs[PTAC_RECURRENT_CN].data,
        .gates = call->outputs[PTAC_RECURRENT_GATES].data,
        .cells = call->outputs[PTAC_RECURRENT_CELLS].data,
        .x_step = x->strides[0],
        .x_row = x->strides[1],
        .n_steps = x->sizes[0],
        .n_rows = x->sizes[1],
        .n_in = x->sizes[2],
        .n_hidden = n_hidden,
        .n_blocks = ptac_parts(n_hidden, LANES),
        .n_tiles = count_tiles(x->sizes[1]),
        .n_gates = ptac_recurrent_gates(call),
    };
}

static ptac_status run_forward(const ptac_call *call)
{
    forward_job job = forward_job_of(call);
    const int64_t all_rows = job.n_steps * job.n_rows;
    const int64_t width = job.n_gates * LANES;
    const int64_t of_x = job.n_blocks * job.n_in * width;
    const int64_t of_h = job.n_blocks * job.n_hidden * width;
    const int64_t of_row = job.n_blocks * TILE_VECTORS * LANES;
    const bool is_apart = job.n_rows < FEW && job.n_steps > 1;
    const int64_t tile_work = (of_x + of_h) * TILE_ROWS;
    float *scratch =
        ptac_scratch_take(sizeof(float) * (size_t)(of_x + of_h + of_row +
                                                   (is_apart ? all_rows * of_row : 0)));

    if (!scratch)
        return PTAC_FAILED;
    job.x_panels = scratch;
    job.h_panels = scratch + of_x;
    job.bias = scratch + of_x + of_h;
    ptac_parallel_for(0, job.n_blocks,
                      SHARED_WORK / (4 * (job.n_in + job.n_hidden) * width) + 1,
                      lay_out_blocks, &job);
    if (is_apart) {
        job.sums = job.bias + of_row;
        ptac_parallel_for(0, count_tiles(all_rows), SHARED_WORK / tile_work + 1,
                          sum_x_tiles, &job);
    }
    ptac_parallel_for(0, job.n_tiles, SHARED_WORK / (tile_work * job.n_steps) + 1,
                      forward_tiles, &job);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}
