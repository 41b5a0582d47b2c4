/*
 * step_tiles_tpl.h - tiles whose sums are of two products, those of x and of h.
 *
 * A panel has the terms of x before those of h. Sums of all gates of a vector of units
 * stand side by side; gru's new state has that of h apart from that of x.
 */
#include "ops/recurrent/tiles_tpl.h"

enum {
    STEP_TERMS = 32 * 1024 / (4 * TILE_VECTORS * LANES), /* of a part, at most */
};

/* A tile whose rows are those of x; those of h, and where each row's sums begin. */
typedef struct forward_tile {
    tile tile;
    const float *states[TILE_ROWS], *starts[TILE_ROWS];
    bool is_first[TILE_ROWS];
} forward_tile;

/*
 * Terms [begin, end) of a step's sums, those of x before those of h, for a tile; n_rows
 * and is_gru are constants.
 */
INLINE void add_step_part_of(forward_tile *t, const part_terms *p, int64_t n_x,
                             int n_rows, bool is_gru)
{
    const int n_vectors = is_gru ? PTAC_GRU_GATES : PTAC_LSTM_GATES;
    part_terms span = *p;
    tile_part part;

    start_part(n_rows, part);
    span.end = ptac_least(p->end, n_x);
    if (span.begin < span.end)
        add_span(t->tile.rows, &span, n_rows, n_vectors, n_vectors - 1, part);
    span.begin = p->begin > n_x ? p->begin - n_x : 0;
    span.end = p->end - n_x;
    if (span.begin < span.end)
        add_span(t->states, &span, n_rows, n_vectors, TILE_VECTORS - 1, part);
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++) {
        float *sums = SUM(t->tile.sums, i, 0);
        const float *from = p->begin ? sums : t->starts[i];

#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            v_store(sums + v * LANES, v_add(v_load(from + v * LANES), part[i][v]));
    }
}

typedef void (*add_step_part_fn)(forward_tile *t, const part_terms *p, int64_t n_x);

#define ADD_STEP_PART(n_rows)                                                          \
    TARGET static void add_lstm_part_##n_rows(forward_tile *t, const part_terms *p,    \
                                              int64_t n_x)                             \
    {                                                                                  \
        add_step_part_of(t, p, n_x, n_rows, false);                                    \
    }                                                                                  \
    TARGET static void add_gru_part_##n_rows(forward_tile *t, const part_terms *p,     \
                                             int64_t n_x)                              \
    {                                                                                  \
        add_step_part_of(t, p, n_x, n_rows, true);                                     \
    }
ADD_STEP_PART(1)
ADD_STEP_PART(2)
ADD_STEP_PART(3)
#if RECURRENT_REGISTERS == 32
ADD_STEP_PART(4)
ADD_STEP_PART(5)
ADD_STEP_PART(6)
#endif

/* Of lstm and of gru, by rows from one on. */
static const add_step_part_fn add_step_part_fns[2][TILE_ROWS] = {
    {
        add_lstm_part_1,
        add_lstm_part_2,
        add_lstm_part_3,
#if RECURRENT_REGISTERS == 32
        add_lstm_part_4,
        add_lstm_part_5,
        add_lstm_part_6,
#endif
    },
    {
        add_gru_part_1,
        add_gru_part_2,
        add_gru_part_3,
#if RECURRENT_REGISTERS == 32
        add_gru_part_4,
        add_gru_part_5,
        add_gru_part_6,
#endif
    },
};
