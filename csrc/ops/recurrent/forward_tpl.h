/*
 * forward_tpl.h - recurrent layers, a step's sums and gates in one pass.
 *
 * For a vector of units the sums of all gates stand in registers side by side, so that
 * the states follow from them at once. Where a thread has so few rows that tiles stay
 * unfilled, the products with x come first, for all steps together.
 */
#include "ops/recurrent/units_tpl.h"

/* The rows whose terms a tile adds up, and where its sums begin. */
static void start_tile(const forward_job *job, const forward_place *place,
                       forward_tile *t)
{
    const float *bias = job->bias + place->block * TILE_VECTORS * LANES;

    for (int i = 0; i < t->tile.n; i++) {
        const int64_t row = t->tile.first + i;
        const int64_t at = ptac_recurrent_at(&job->steps, place->t, row);
        const int64_t before = ptac_recurrent_beside(&job->steps, place->t, row, false);

        t->tile.rows[i] = x_of(job, at, place->t, row);
        t->starts[i] = job->sums ? sums_of(job, at, place->block) : bias;
        t->states[i] = before >= 0 ? job->y + before * job->n_hidden
                                   : job->h0 + row * job->n_hidden;
        t->is_first[i] = before < 0;
    }
}

/* The sums of gate v, of gru also those of n apart, of all rows of a tile. */
TARGET static void direct_gate(const forward_job *job, int64_t block, int v,
                               forward_tile *t)
{
    const ptac_view *in = job->call->inputs;
    int n_units;
    const int64_t n = job->n_hidden, unit = rows_of(job, block, v, &n_units);
    const bool is_gru = job->n_gates == PTAC_GRU_GATES;
    const float *bias = job->bias + (block * TILE_VECTORS + v) * LANES;

    for (int i = 0; i < t->tile.n; i++) {
        const direct_terms of_x = {(const float *)in[PTAC_RECURRENT_W_IH].data +
                                       unit * job->n_in,
                                   t->tile.rows[i], job->n_in};
        const direct_terms of_h = {
            (const float *)in[PTAC_RECURRENT_W_HH].data + unit * n, t->states[i], n};

        direct_sums(is_gru && v == 3 ? NULL : &of_x, is_gru && v == 2 ? NULL : &of_h,
                    n_units, bias, SUM(t->tile.sums, i, v));
    }
}

/* A block of units in a step, of tiles [begin, end), at most GROUP_TILES. */
static void forward_group(const forward_job *job, const forward_place *place,
                          int64_t begin, int64_t end)
{
    forward_tile tiles[GROUP_TILES];
    const int64_t n_x = job->sums ? 0 : job->n_in, n_terms = n_x + job->n_hidden;
    const int64_t width = job->n_vectors * LANES, per_block = n_terms * width;
    const int64_t n_parts = ptac_parts(n_terms, STEP_TERMS);
    const add_step_part_fn *add = add_step_part_fns[job->n_gates == PTAC_GRU_GATES];
    part_terms p = {.panel = job->panels + place->block * per_block};
    int n_tiles = 0;

    for (int64_t i = begin; i < end; i++)
        if (take_rows_of(&tiles[n_tiles].tile, &job->steps, place->t, job->n_tiles,
                         tile_number(&job->steps, job->n_tiles, i)))
            start_tile(job, place, &tiles[n_tiles++]);
    for (int v = 0; job->is_direct && v < TILE_VECTORS; v++)
        for (int i = 0; i < n_tiles; i++)
            direct_gate(job, place->block, v, &tiles[i]);
    if (job->is_direct) {
        tiles_units(job, place, tiles, n_tiles);
        return;
    }
    for (int64_t part = 0; part < n_parts; part++, p.begin = p.end) {
        const float *behind;

        p.end = (part + 1) * n_terms / n_parts;
        behind = p.panel + (p.end - p.begin) * width;
        p.next = part < n_parts - 1 || place->block < job->n_blocks - 1 ? behind
                                                                        : job->panels;
        for (int i = 0; i < n_tiles; i++, p.next += (p.end - p.begin) * LINE)
            add[tiles[i].tile.n - 1](&tiles[i], &p, n_x);
        p.panel = behind;
    }
    tiles_units(job, place, tiles, n_tiles);
}

/* All steps of tiles [begin, end). */
static void forward_tiles(int64_t begin, int64_t end, void *context)
{
    const forward_job *job = context;

    for (int64_t s = 0; s < job->steps.n_steps; s++) {
        forward_place p = {.t = ptac_recurrent_step(&job->steps, s)};

        for (; p.block < job->n_blocks; p.block++)
            for (int64_t i = begin; i < end; i += GROUP_TILES)
                forward_group(job, &p, i, ptac_least(end, i + GROUP_TILES));
    }
}

/* Blocks [begin, end) of the only step of few rows. */
static void forward_blocks(int64_t begin, int64_t end, void *context)
{
    const forward_job *job = context;
    forward_place p = {.block = begin};

    for (; p.block < end; p.block++)
        for (int64_t i = 0; i < job->n_tiles; i += GROUP_TILES)
            forward_group(job, &p, i, ptac_least(job->n_tiles, i + GROUP_TILES));
}

/* The last states out of y: in the last step computed of each row. */
static void take_last(const forward_job *job)
{
    const ptac_recurrent_steps *steps = &job->steps;
    int64_t t = steps->is_reverse ? 0 : steps->n_steps - 1;

    for (int64_t row = 0; row < steps->n_rows; row++) {
        while (!steps->is_reverse && row >= ptac_recurrent_rows(steps, t))
            t--;
        memcpy(job->hn + row * job->n_hidden,
               job->y + ptac_recurrent_at(steps, t, row) * job->n_hidden,
               (size_t)job->n_hidden * sizeof(float));
    }
}

/* The sums of x of tiles [begin, end) of all steps' rows. */
static void sum_x_group(const forward_job *job, int64_t block, int64_t begin,
                        int n_tiles)
{
    const int64_t n_rows = job->steps.n_rows, n_all = job->steps.n_all;
    tile tiles[GROUP_TILES];

    for (int i = 0; i < n_tiles; i++) {
        tile *t = &tiles[i];

        take_rows(t, n_all, count_tiles(n_all), begin + i);
        for (int j = 0; j < t->n; j++) {
            const int64_t at = t->first + j;

            t->rows[j] = x_of(job, at, at / n_rows, at % n_rows);
            memcpy(SUM(t->sums, j, 0), job->bias + block * TILE_VECTORS * LANES,
                   TILE_VECTORS * LANES * sizeof(float));
        }
    }
    add_terms(tiles, n_tiles, x_panel(job, block), job->n_in, job->n_vectors,
              x_panel(job, block));
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
    const int64_t n = job->n_hidden, width = job->n_vectors * LANES;

    for (int64_t block = begin; block < end; block++) {
        int n_units[TILE_VECTORS];
        int64_t rows[TILE_VECTORS];
        const bool is_gru = job->n_gates == PTAC_GRU_GATES;
        float *bias = job->bias + block * TILE_VECTORS * LANES;
        float *of_x = job->x_panels ? x_panel(job, block)
                                    : job->panels + block * (job->n_in + n) * width;
        float *of_h =
            job->x_panels ? job->panels + block * n * width : of_x + job->n_in * width;

        for (int v = 0; v < TILE_VECTORS; v++)
            rows[v] = rows_of(job, block, v, &n_units[v]);
        if (!job->is_direct) {
            lay_out_units(call->inputs[PTAC_RECURRENT_W_IH].data, rows, n_units,
                          job->n_in, job->n_vectors, of_x);
            lay_out_units(call->inputs[PTAC_RECURRENT_W_HH].data, rows, n_units, n,
                          job->n_vectors, of_h);
        }
        for (int v = 0; v < TILE_VECTORS; v++) {
            const bool is_of_h = is_gru && v == 3, is_of_x = is_gru && v == 2;

            v_store(bias + v * LANES,
                    both_biases(is_of_h ? NULL : b_ih, is_of_x ? NULL : b_hh, rows[v],
                                n_units[v]));
        }
    }
}

static forward_job forward_job_of(const ptac_call *call)
{
    const ptac_view *x = &call->inputs[PTAC_RECURRENT_X];
    const int64_t n_hidden = call->inputs[PTAC_RECURRENT_W_HH].sizes[1];
    const ptac_recurrent_steps steps = ptac_recurrent_steps_of(call, x);
    const int n_gates = ptac_recurrent_gates(call);

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
        .n_in = x->sizes[2],
        .n_hidden = n_hidden,
        .steps = steps,
        .n_blocks = ptac_parts(
            n_hidden, n_gates == PTAC_RNN_GATES ? TILE_VECTORS * LANES : LANES),
        .n_tiles = count_tiles(steps.n_rows),
        .n_gates = n_gates,
        .n_vectors = n_gates == PTAC_RNN_GATES ? TILE_VECTORS : n_gates,
        .keeps = call->n_outputs > PTAC_RECURRENT_GATES,
        .is_direct = steps.n_all <= DIRECT_ROWS,
    };
}

/* Floats of the weights and biases as they are laid out. */
static int64_t laid_out(const forward_job *job)
{
    const int64_t width = job->n_vectors * LANES;
    const int64_t of_panels = job->is_direct ? 0 : (job->n_in + job->n_hidden) * width;

    return job->n_blocks * (of_panels + TILE_VECTORS * LANES);
}

static bool is_apart(const forward_job *job)
{
    return !job->is_direct && job->steps.n_rows < FEW && job->steps.n_steps > 1;
}

static size_t forward_kept_bytes(const ptac_call *call)
{
    const forward_job job = forward_job_of(call);

    return sizeof(float) * (size_t)laid_out(&job);
}

/* Laid out in what is kept, where that may be, or in the scratch. */
static void have_panels(forward_job *job, float *room, ptac_kept *kept)
{
    static const char us[] = ISA;
    const int64_t width = job->n_vectors * LANES;
    const int64_t of_x = job->is_direct ? 0 : job->n_blocks * job->n_in * width;
    const int64_t of_h = job->is_direct ? 0 : job->n_blocks * job->n_hidden * width;

    job->x_panels = is_apart(job) ? room : NULL;
    job->panels = is_apart(job) ? room + of_x : room;
    job->bias = room + of_x + of_h;
    if (kept && kept->maker == us)
        return;
    if (kept)
        kept->maker = NULL; /* while it is written */
    ptac_parallel_for(0, job->n_blocks,
                      SHARED_WORK / (4 * (job->n_in + job->n_hidden) * width) + 1,
                      lay_out_blocks, job);
    if (kept)
        kept->maker = us;
}

static ptac_status run_forward(const ptac_call *call)
{
    forward_job job = forward_job_of(call);
    ptac_kept *kept = call->kept;
    const int64_t all_rows = job.steps.n_all;
    const int64_t of_row = job.n_blocks * TILE_VECTORS * LANES;
    const int64_t work =
        job.n_blocks * (job.n_in + job.n_hidden) * job.n_vectors * LANES;
    const int64_t tile_work = work * TILE_ROWS;
    const int64_t of_sums = is_apart(&job) ? all_rows * of_row : 0;
    const int64_t of_weights = kept ? 0 : laid_out(&job);
    float *scratch =
        ptac_scratch_take(sizeof(float) * (size_t)(of_weights + of_sums + 1));

    if (!scratch)
        return PTAC_FAILED;
    have_panels(&job, kept ? kept->data : scratch, kept);
    if (is_apart(&job)) {
        job.sums = scratch + of_weights;
        ptac_parallel_for(0, count_tiles(all_rows), SHARED_WORK / tile_work + 1,
                          sum_x_tiles, &job);
    }
    if (job.is_direct && job.steps.n_steps == 1)
        ptac_parallel_for(0, job.n_blocks,
                          SHARED_WORK * job.n_blocks / (work * job.steps.n_rows) + 1,
                          forward_blocks, &job);
    else
        ptac_parallel_for(0, job.n_tiles,
                          SHARED_WORK / (tile_work * job.steps.n_steps) + 1,
                          forward_tiles, &job);
    take_last(&job);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}
