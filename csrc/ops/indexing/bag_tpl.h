/*
 * bag_tpl.h - bags of rows, a vector of floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 *
 * A window of indices becomes rows of the table at once, so that small bags share it
 * and the rows of the next bag can be fetched ahead. What a bag has so far is in
 * registers as long as the window lasts, and between windows in y.
 */
#include "ops/indexing/bag.h"

enum {
    WINDOW = 256,
    LINE = 64 / sizeof(float), /* floats of a cache line */
    AHEAD = 8,                 /* rows between a fetch and its use */
    FETCHED_LINES = 4,         /* of a row; the CPU guesses what follows */
    NEAR_FLOATS = 1 << 18,     /* in a table that caches hold */
    BLOCK = 4,                 /* vectors of a row in registers */
};

typedef struct bags {
    const ptac_call *call;
    const ptac_bag *p;
    const float *table;
    const void *index;
    bool is_far;
    int has_bad; /* an index that the table does not have */
} bags;

/* Indices [begin, end) as rows in memory, but for padding, which is left out. */
typedef struct window {
    int64_t begin, end;
    int n;
    const float *rows[WINDOW + AHEAD]; /* behind the last some that may be fetched */
    int place[WINDOW + 1];             /* where row i of the indices is, or would be */
    int from[WINDOW];                  /* which index a row is of */
} window;

TARGET static bool fill(const bags *job, int64_t begin, int64_t end, window *w)
{
    const ptac_rows *p = &job->p->rows;
    bool has_all = true;

    w->begin = begin;
    w->end = end;
    w->n = 0;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = ptac_rows_row(p, job->index, i);

        w->place[i - begin] = w->n;
        has_all &= row != PTAC_NO_ROW;
        w->rows[w->n] = job->table + (row == PTAC_NO_ROW ? 0 : row) * p->stride;
        w->from[w->n] = (int)(i - begin);
        w->n += row != p->padding;
    }
    w->place[end - begin] = w->n;
    for (int i = 0; i < AHEAD; i++)
        w->rows[w->n + i] = job->table;
    return has_all;
}

INLINE void fetch(const float *row, int64_t width)
{
    for (int64_t i = 0; i < width && i < FETCHED_LINES * LINE; i += LINE)
        __builtin_prefetch(row + i);
}

/* The sum of n rows, and of y unless it is the first, in vectors from column c on. */
INLINE void add_block(const float *const *rows, int n, int64_t c, int vectors,
                      bool is_first, float *y)
{
    vec sum[BLOCK];

#pragma GCC unroll 4
    for (int k = 0; k < vectors; k++)
        sum[k] = is_first ? v_zero() : v_load(y + c + k * LANES);
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++)
            sum[k] = v_add(sum[k], v_load(rows[i] + c + k * LANES));
#pragma GCC unroll 4
    for (int k = 0; k < vectors; k++)
        v_store(y + c + k * LANES, sum[k]);
}

INLINE void add_vector(const float *const *rows, int n, int64_t c, int lanes,
                       bool is_first, float *y)
{
    vec sum = is_first ? v_zero() : v_load_first(y + c, lanes);

    for (int i = 0; i < n; i++)
        sum = v_add(sum, v_load_first(rows[i] + c, lanes));
    v_store_first(y + c, sum, lanes);
}

INLINE void add_rows(const float *const *rows, int n, int64_t width, bool is_first,
                     float *y)
{
    int64_t c = 0;

    if (width == 1) {
        float sum = is_first ? 0 : *y;

        for (int i = 0; i < n; i++)
            sum += *rows[i];
        *y = sum;
        return;
    }
    for (; c + BLOCK * LANES <= width; c += BLOCK * LANES)
        add_block(rows, n, c, BLOCK, is_first, y);
    for (; c + 2 * LANES <= width; c += 2 * LANES)
        add_block(rows, n, c, 2, is_first, y);
    FOR_LANES(i, lanes, c, width, add_vector(rows, n, i, lanes, is_first, y));
}

/* Which of n rows has the largest of each column; the first of equal ones. */
INLINE void largest_vector(const bags *job, const window *w, int first, int n,
                           int64_t c, int lanes, bool is_first, int64_t b)
{
    const ptac_bag *p = job->p;
    const int64_t at = b * p->rows.width + c;
    float *y = (float *)job->call->outputs[PTAC_BAG_Y].data + at;
    void *largest = job->call->outputs[PTAC_BAG_LARGEST].data;
    float places[LANES];
    vec most = v_load_first(is_first ? w->rows[first] + c : y, lanes);
    vec place = v_set(is_first ? (float)first : -1);

    for (int i = first + is_first; i < first + n; i++) {
        const vec x = v_load_first(w->rows[i] + c, lanes);
        const mask is_larger = v_less(most, x);

        most = v_pick(is_larger, x, most);
        place = v_pick(is_larger, v_set((float)i), place);
    }
    v_store_first(y, most, lanes);
    v_store(places, place);
    for (int i = 0; i < lanes; i++)
        if (places[i] >= 0) {
            const int64_t from = w->begin + w->from[(int)places[i]];

            ptac_bag_put(p, largest, at + i,
                         ptac_rows_index(&p->rows, job->index, from));
        }
}

/* The rows [first, first + n) of a window go to a bag. */
INLINE void take(const bags *job, const window *w, int first, int n, bool is_first,
                 int64_t b)
{
    const int64_t width = job->p->rows.width;

    if (job->is_far)
        for (int i = first; i < first + n; i++)
            fetch(w->rows[i + AHEAD], width);
    if (job->p->mode == PTAC_BAG_MAX)
        FOR_LANES(c, lanes, 0, width,
                  largest_vector(job, w, first, n, c, lanes, is_first, b));
    else
        add_rows(w->rows + first, n, width, is_first,
                 (float *)job->call->outputs[PTAC_BAG_Y].data + b * width);
}

/* A bag without rows. */
INLINE void leave_empty(const bags *job, int64_t b)
{
    const int64_t width = job->p->rows.width;
    float *y = (float *)job->call->outputs[PTAC_BAG_Y].data + b * width;

    for (int64_t c = 0; c < width; c++) {
        y[c] = 0;
        if (job->p->mode == PTAC_BAG_MAX)
            ptac_bag_put(job->p, job->call->outputs[PTAC_BAG_LARGEST].data,
                         b * width + c, 0);
    }
}

INLINE void divide(float *y, int64_t width, float by)
{
    const vec divisor = v_set(by);

    FOR_LANES(i, n, 0, width,
              v_store_first(y + i, v_div(v_load_first(y + i, n), divisor), n));
}

/* Bags [first, last). */
TARGET static void run_bags(int64_t first, int64_t last, void *context)
{
    bags *job = context;
    const ptac_bag *p = job->p;
    const void *offsets = job->call->inputs[PTAC_BAG_OFFSETS].data;
    const int64_t whole = ptac_bag_within(p, offsets, last);
    float *y = job->call->outputs[PTAC_BAG_Y].data;
    window w = {.end = 0};

    for (int64_t b = first; b < last; b++) {
        const int64_t begin = ptac_bag_within(p, offsets, b);
        const int64_t end = ptac_bag_within(p, offsets, b + 1);
        int64_t n_taken = 0;

        for (int64_t i = begin, next; i < end; i = next) {
            int place, n;

            next = ptac_least(end, i + WINDOW);
            if (i < w.begin || next > w.end) {
                const int64_t until = ptac_least(whole, i + WINDOW);

                if (!fill(job, i, until > next ? until : next, &w)) {
                    __atomic_store_n(&job->has_bad, 1, __ATOMIC_RELAXED);
                    return;
                }
            }
            place = w.place[i - w.begin];
            n = w.place[next - w.begin] - place;
            if (n > 0)
                take(job, &w, place, n, n_taken == 0, b);
            n_taken += n;
        }
        if (n_taken == 0)
            leave_empty(job, b);
        else if (p->mode == PTAC_BAG_MEAN)
            divide(y + b * p->rows.width, p->rows.width, (float)n_taken);
        ptac_bag_finish(job->call, b, n_taken);
        ptac_bag_number(job->call, b, begin, end);
    }
}

static ptac_status run(const ptac_call *call)
{
    const ptac_bag *p = call->params;
    bags job = {
        .call = call,
        .p = p,
        .table = call->inputs[PTAC_BAG_TABLE].data,
        .index = call->inputs[PTAC_BAG_INDEX].data,
        .is_far = p->rows.n_rows * p->rows.stride > NEAR_FLOATS,
    };

    if (!ptac_bag_has_offsets(call))
        return PTAC_UNSUITED;
    ptac_bag_clear_rest(call);
    ptac_share_bags(p, run_bags, &job);
    return job.has_bad ? PTAC_UNSUITED : PTAC_OK;
}

PTAC_ROW(EMBEDDING_BAG, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run)
