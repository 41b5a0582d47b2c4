/*
 * chooser.c - tables of points, found by (operator, kind, dtype) without a search.
 */
#include "core/chooser.h"

#include "core/counters.h"
#include "core/debug.h"

#include <stdlib.h>
#include <string.h>

/*
 * Rounding is a pass over each matrix. Thin products, such as 8 rows times a large
 * weight, have the work of those that calibration measured and not the time to make up
 * for these passes: measured on Zen 4, 0.36 of stock's speed there, and above 1 from
 * some 40 uses on.
 */
enum {
    LEAST_USES = 48,
    MAX_NEIGHBOURS = 16, /* more are as good as these */
    FAR = 8, /* neighbours with less of the largest one's work have no say */
};

typedef struct curve {
    const ptac_point *points; /* by threads, then by work, both ascending */
    int n_points;
} curve;

typedef struct table {
    struct table *next; /* in the list of retired tables */
    curve curves[PTAC_N_OPS][PTAC_MAX_KINDS][PTAC_N_DTYPES];
    int64_t least_work[PTAC_N_OPS]; /* of the points that have a row */
    ptac_point points[];
} table;

typedef struct op_state {
    ptac_reason gates[PTAC_N_DEVICES];
    const ptac_kernel *pinned;
    uint32_t quarantined[PTAC_N_DEVICES]; /* a bit a row, in registry order */
} op_state;

static table *current;
static table *retired;
static op_state states[PTAC_N_OPS] = {
    [0 ... PTAC_N_OPS - 1] = {.gates = {PTAC_OFF, PTAC_OFF}},
};

/*
 * Sequentially consistent, as ptac_call_enter() is: whoever installs a table or shuts a
 * gate looks afterwards whether anyone is inside, and must not look before the store.
 */
#define LOAD(field)         __atomic_load_n(&(field), __ATOMIC_SEQ_CST)
#define STORE(field, value) __atomic_store_n(&(field), value, __ATOMIC_SEQ_CST)

static int by_place(const void *left, const void *right)
{
    const ptac_point *a = left, *b = right;
    const int64_t keys[][2] = {{a->op, b->op},
                               {a->kind, b->kind},
                               {a->dtype, b->dtype},
                               {a->n_threads, b->n_threads},
                               {a->work, b->work}};
    int i = 0;

    while (i < 4 && keys[i][0] == keys[i][1])
        i++;
    return (keys[i][0] > keys[i][1]) - (keys[i][0] < keys[i][1]);
}

/* Points ascend, and lie where curves are; rows are their operator's. */
static void check_points(const ptac_point *points, int n_points)
{
    for (int i = 0; i < n_points; i++) {
        const ptac_point *point = &points[i];

        PTAC_ASSERT(i == 0 || by_place(&points[i - 1], point) <= 0);
        PTAC_ASSERT(point->op < PTAC_N_OPS && point->dtype < PTAC_N_DTYPES);
        PTAC_ASSERT(point->kind >= 0 && point->kind < PTAC_MAX_KINDS);
        PTAC_ASSERT(point->n_threads >= 1 && point->work >= 0);
        PTAC_ASSERT(!point->row || point->row->op == point->op);
    }
}

/* Sizes and elements agree, and a view that has elements lies somewhere. */
static void check_view(const ptac_view *view)
{
    int64_t n = 1;

    PTAC_ASSERT(view->dtype <= PTAC_OTHER_DTYPE);
    PTAC_ASSERT(view->n_dims >= 0 && view->n_elements >= 0);
    if (!view->sizes || !view->strides)
        return; /* what stands for many tensors has no sizes of its own */
    for (int i = 0; i < view->n_dims; i++) {
        PTAC_ASSERT(view->sizes[i] >= 0);
        n *= view->sizes[i];
    }
    PTAC_ASSERT(n == view->n_elements);
}

static void check_call(const ptac_call *call)
{
    PTAC_ASSERT(call->op < PTAC_N_OPS && ptac_registry_shapes(call->op));
    PTAC_ASSERT(call->n_inputs >= 0 && call->n_inputs <= PTAC_MAX_INPUTS);
    PTAC_ASSERT(call->n_outputs >= 0 && call->n_outputs <= PTAC_MAX_OUTPUTS);
    PTAC_ASSERT(call->n_threads >= 1);
    for (int i = 0; i < call->n_inputs; i++)
        check_view(&call->inputs[i]);
}

ptac_status ptac_chooser_install(const ptac_point *points, int n_points)
{
    table *fresh = calloc(1, sizeof *fresh + (size_t)n_points * sizeof *points);

    if (!fresh) {
        ptac_error_set("no memory for a calibration table of %d points", n_points);
        return PTAC_FAILED;
    }
    if (n_points > 0)
        memcpy(fresh->points, points, (size_t)n_points * sizeof *points);
    qsort(fresh->points, (size_t)n_points, sizeof *points, by_place);
    check_points(fresh->points, n_points);
    for (int op = 0; op < PTAC_N_OPS; op++)
        fresh->least_work[op] = INT64_MAX;
    for (int i = 0; i < n_points; i++) {
        const ptac_point *point = &fresh->points[i];
        curve *home = &fresh->curves[point->op][point->kind][point->dtype];

        if (home->n_points++ == 0)
            home->points = point;
        if (point->row && point->work < fresh->least_work[point->op])
            fresh->least_work[point->op] = point->work;
    }

    table *old = __atomic_exchange_n(&current, fresh, __ATOMIC_SEQ_CST);

    if (old) {
        old->next = retired;
        retired = old;
    }
    ptac_chooser_collect();
    return PTAC_OK;
}

void ptac_chooser_collect(void)
{
    if (ptac_calls_in_flight() > 0)
        return;
    while (retired) {
        table *old = retired;

        retired = old->next;
        free(old);
    }
}

static bool is_within(const int64_t *inner, const int64_t *outer)
{
    return inner[0] <= outer[0] && inner[1] <= outer[1] && inner[2] <= outer[2];
}

/*
 * The row that all neighbours of a product have, or NULL; the largest of them, NULL
 * where it has none. Of points with the same threads only later ones, with more work,
 * can exceed one.
 */
static const ptac_point *largest_neighbour(const ptac_point *points, int n_points,
                                           const int64_t *sizes,
                                           const ptac_kernel **row)
{
    const ptac_point *neighbours[MAX_NEIGHBOURS];
    int n = 0;

    *row = NULL;
    for (int i = n_points - 1; i >= 0 && n < MAX_NEIGHBOURS; i--) {
        const ptac_point *point = &points[i];
        bool is_exceeded = false;

        if (n > 0 && point->work < neighbours[0]->work / FAR)
            break;
        if (!is_within(point->sizes, sizes))
            continue;
        for (int j = 0; j < n && !is_exceeded; j++)
            is_exceeded = is_within(point->sizes, neighbours[j]->sizes);
        if (is_exceeded)
            continue;
        if (n > 0 && point->row != *row) {
            *row = NULL;
            break;
        }
        *row = point->row;
        neighbours[n++] = point;
    }
    return n > 0 ? neighbours[0] : NULL;
}

/* Points of a curve for the largest calibrated thread count up to the call's. */
static const ptac_point *points_of_threads(const curve *curve, int n_threads, int *n)
{
    const ptac_point *points = curve->points;
    int end = curve->n_points, begin;

    while (end > 0 && points[end - 1].n_threads > n_threads)
        end--;
    for (begin = end; begin > 0; begin--)
        if (points[begin - 1].n_threads != points[end - 1].n_threads)
            break;
    *n = end - begin;
    return points + begin;
}

/* The point of a table that speaks for a place, and the row there. */
static const ptac_point *find_point(const table *now, ptac_op op,
                                    const ptac_shape *shape, ptac_dtype dtype,
                                    int n_threads, const ptac_kernel **row)
{
    int n;
    const ptac_point *points =
        points_of_threads(&now->curves[op][shape->kind][dtype], n_threads, &n);

    if (n && shape->sizes[0] && points->sizes[0])
        return largest_neighbour(points, n, shape->sizes, row);
    while (n > 0 && points[n - 1].work > shape->work)
        n--;
    *row = n ? points[n - 1].row : NULL;
    return n ? &points[n - 1] : NULL;
}

bool ptac_chooser_knows(ptac_op op, const ptac_shape *shape, ptac_dtype dtype,
                        int n_threads, const ptac_kernel **row)
{
    const table *now = LOAD(current);

    return now && find_point(now, op, shape, dtype, n_threads, row);
}

static const ptac_kernel *look_up(const ptac_call *call, const ptac_shape *shape,
                                  ptac_dtype dtype)
{
    const table *now = LOAD(current);
    const ptac_kernel *row = NULL;
    const ptac_point *point;

    if (!now)
        return NULL;
    point = find_point(now, call->op, shape, dtype, call->n_threads, &row);
    if (point && point->stock_ns > 0) {
        /* Time grows with the work beyond the point's. */
        const double times =
            point->work > 0 ? (double)shape->work / (double)point->work : 1;
        const double stock_ns = point->stock_ns * times;

        ptac_count_estimate(call->op, stock_ns,
                            point->row ? stock_ns * (1 - 1 / point->ratio) : 0);
    }
    return row;
}

static uint32_t row_bit(const ptac_kernel *row)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(row->device, row->op, &n);

    for (int i = 0; i < n; i++)
        if (rows[i] == row)
            return 1u << i;
    return 0;
}

const ptac_kernel *ptac_select(const ptac_call *call, ptac_reason *why)
{
    op_state *state = &states[call->op];
    const ptac_op_shapes *shapes = ptac_registry_shapes(call->op);
    ptac_shape shape = {.uses = INT64_MAX};
    ptac_dtype dtype;

    *why = LOAD(state->gates[PTAC_ON_CPU]);
    if (*why)
        return NULL;
    check_call(call);
    dtype = call->inputs[shapes->typed_input].dtype;
    if (dtype >= PTAC_N_DTYPES) {
        *why = PTAC_DTYPE;
        return NULL;
    }
    *why = shapes->classify(call, &shape);
    if (*why)
        return NULL;

    const ptac_kernel *row = LOAD(state->pinned);

    if (!row) {
        row = look_up(call, &shape, dtype);
        if (row && row->in_bf16 && shape.uses < LEAST_USES)
            row = NULL;
    }
    if (!row && shapes->is_decided)
        row = ptac_registry_preferred(call->op, PTAC_FAST);
    if (!row) {
        *why = PTAC_NOT_FASTER;
        return NULL;
    }
    if (LOAD(state->quarantined[PTAC_ON_CPU]) && ptac_chooser_is_quarantined(row)) {
        *why = PTAC_QUARANTINED;
        return NULL;
    }
    *why = row->accepts(call);
    return *why ? NULL : row;
}

int64_t ptac_chooser_least_work(ptac_op op)
{
    const table *now = LOAD(current);

    if (LOAD(states[op].pinned))
        return 0;
    return now ? now->least_work[op] : INT64_MAX;
}

void ptac_chooser_set_gate(ptac_op op, ptac_reason reason)
{
    for (int device = 0; device < PTAC_N_DEVICES; device++)
        STORE(states[op].gates[device], reason);
}

void ptac_chooser_set_gate_on(ptac_device device, ptac_op op, ptac_reason reason)
{
    STORE(states[op].gates[device], reason);
}

ptac_reason ptac_chooser_gate(ptac_op op)
{
    return LOAD(states[op].gates[PTAC_ON_CPU]);
}

ptac_reason ptac_chooser_gate_on(ptac_device device, ptac_op op)
{
    return LOAD(states[op].gates[device]);
}

const ptac_kernel *ptac_chooser_pin(ptac_op op, const ptac_kernel *row)
{
    return __atomic_exchange_n(&states[op].pinned, row, __ATOMIC_ACQ_REL);
}

const ptac_kernel *ptac_chooser_pinned(ptac_op op)
{
    return LOAD(states[op].pinned);
}

void ptac_chooser_quarantine(const ptac_kernel *row)
{
    __atomic_fetch_or(&states[row->op].quarantined[row->device], row_bit(row),
                      __ATOMIC_RELEASE);
}

bool ptac_chooser_is_quarantined(const ptac_kernel *row)
{
    return LOAD(states[row->op].quarantined[row->device]) & row_bit(row);
}

void ptac_chooser_reset_quarantine(void)
{
    for (int op = 0; op < PTAC_N_OPS; op++)
        for (int device = 0; device < PTAC_N_DEVICES; device++)
            STORE(states[op].quarantined[device], 0u);
}
