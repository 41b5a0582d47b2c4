/*
 * units_tpl.h - states of a vector of units from the sums of their gates.
 */
#include "ops/recurrent/gates_tpl.h"
#include "ops/recurrent/direct_tpl.h"

/* A call, the weights laid out, and where the sums of x are, if they are there. */
typedef struct forward_job {
    const ptac_call *call;
    const float *x, *h0, *c0;
    float *y, *hn, *cn, *gates, *cells;
    int64_t x_step, x_row;
    int64_t n_in, n_hidden;
    ptac_recurrent_steps steps;
    int64_t n_blocks;
    int64_t n_tiles;
    int n_gates, n_vectors; /* of a block, which has as many units to a vector */
    bool keeps;
    bool is_direct;  /* there are no panels */
    float *x_panels; /* NULL: they lie in panels, before those of h of their block */
    float *panels;
    float *bias; /* a block's TILE_VECTORS: where its sums begin */
    float *sums; /* of x, for each row of each step its blocks; NULL: not there */
} forward_job;

/* Of some tiles in a step. */
typedef struct forward_place {
    int64_t t; /* the step */
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
    bool is_first;
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

/* at: of all steps' rows; t, row: the same place. */
static inline const float *x_of(const forward_job *job, int64_t at, int64_t t,
                                int64_t row)
{
    return job->steps.starts ? job->x + at * job->x_row
                             : job->x + t * job->x_step + row * job->x_row;
}

static inline float *x_panel(const forward_job *job, int64_t block)
{
    return job->x_panels + block * job->n_in * job->n_vectors * LANES;
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

INLINE void lstm_tile(const forward_job *job, const forward_tile *t, forward_units *p,
                      bool keeps)
{
    for (int i = 0; i < t->tile.n; i++, p->row++, p->at++) {
        vec sums[TILE_VECTORS];

        p->is_first = t->is_first[i];
        load_sums(SUM(t->tile.sums, i, 0), sums);
        lstm_units(job, p, sums, keeps);
    }
}

INLINE void gru_tile(const forward_job *job, const forward_tile *t, forward_units *p,
                     bool keeps)
{
    for (int i = 0; i < t->tile.n; i++, p->row++, p->at++) {
        vec sums[TILE_VECTORS];

        load_sums(SUM(t->tile.sums, i, 0), sums);
        gru_units(job, p, t->states[i], sums, keeps);
    }
}

/*
 * Where a block's vector lies among a weight's rows, and how many units it has: those
 * of a gate, or of rnn some of the block's.
 */
INLINE int64_t rows_of(const forward_job *job, int64_t block, int v, int *n_units)
{
    const bool is_rnn = job->n_gates == PTAC_RNN_GATES;
    const int64_t unit = is_rnn ? (block * TILE_VECTORS + v) * LANES : block * LANES;

    *n_units = unit < job->n_hidden ? at_most_lanes(job->n_hidden - unit) : 0;
    return is_rnn ? unit : ptac_least(v, job->n_gates - 1) * job->n_hidden + unit;
}

INLINE void rnn_tile(const forward_job *job, const forward_place *place,
                     const forward_tile *t)
{
    const bool is_relu = ptac_recurrent_is_relu(job->call);

    for (int i = 0; i < t->tile.n; i++) {
        forward_units p = {
            .at = ptac_recurrent_at(&job->steps, place->t, t->tile.first + i),
        };

        for (int v = 0; v < TILE_VECTORS; v++) {
            const vec sum = v_load(SUM(t->tile.sums, i, v));

            p.u = rows_of(job, place->block, v, &p.n);
            if (p.n > 0)
                store_h(job, &p,
                        is_relu ? v_max(v_zero(), sum) : tanh_of(sum, job->keeps));
        }
    }
}

/* The states of a tile; n is a constant where the block is full, and keeps always. */
INLINE void tile_units(const forward_job *job, const forward_place *place,
                       const forward_tile *t, int n, bool keeps)
{
    forward_units p = {
        .row = t->tile.first,
        .at = ptac_recurrent_at(&job->steps, place->t, t->tile.first),
        .u = place->block * LANES,
        .n = n,
    };

    if (job->n_gates == PTAC_LSTM_GATES)
        lstm_tile(job, t, &p, keeps);
    else
        gru_tile(job, t, &p, keeps);
}

TARGET static void tiles_units(const forward_job *job, const forward_place *place,
                               const forward_tile *tiles, int n_tiles)
{
    const int64_t n = job->n_hidden - place->block * LANES;

    for (int i = 0; i < n_tiles; i++) {
        if (job->n_gates == PTAC_RNN_GATES)
            rnn_tile(job, place, &tiles[i]);
        else if (n >= LANES && job->gates)
            tile_units(job, place, &tiles[i], LANES, true);
        else if (n >= LANES)
            tile_units(job, place, &tiles[i], LANES, false);
        else if (job->gates)
            tile_units(job, place, &tiles[i], (int)n, true);
        else
            tile_units(job, place, &tiles[i], (int)n, false);
    }
}
