/*
 * chooser.c - gates, pins, quarantine; rows of calls on the CPU, by their table.
 */
#include "core/chooser.h"

#include "core/debug.h"

#include <math.h>

/*
 * Rounding is a pass over each matrix. Thin products, such as 8 rows times a large
 * weight, have the work of those that calibration measured and not the time to make up
 * for these passes: measured on Zen 4, 0.36 of stock's speed there, and above 1 from
 * some 40 uses on.
 */
enum {
    LEAST_USES = 48,
};

enum {
    ROWS_OF_POINT = 1 + PTAC_POINT_OTHERS,
};

typedef struct op_state {
    ptac_reason gates[PTAC_N_DEVICES];
    const ptac_kernel *pinned;
    uint32_t quarantined[PTAC_N_DEVICES]; /* a bit a row, in registry order */
} op_state;

static ptac_calibration *current;
static op_state states[PTAC_N_OPS] = {
    [0 ... PTAC_N_OPS - 1] = {.gates = {PTAC_OFF, PTAC_OFF}},
};

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

static uint64_t generation;

static void decide_anew(void)
{
    __atomic_fetch_add(&generation, 1, __ATOMIC_RELEASE);
}

uint64_t ptac_chooser_generation(void)
{
    return PTAC_LOAD(generation);
}

ptac_status ptac_chooser_install(const ptac_point *points, int n_points)
{
    decide_anew();
    return ptac_calibration_replace(&current, points, n_points, "");
}

void ptac_chooser_collect(void)
{
    ptac_calibration_collect();
}

static bool pays(const ptac_kernel *row, const ptac_call *call, int64_t uses)
{
    return !(row->in_bf16 && uses < LEAST_USES) && (!row->pays || row->pays(call));
}

/* Stock's time at a point divided by a row's, with what the call spares in this. */
static double ratio_of(const ptac_kernel *row, double ratio, const ptac_point *point,
                       const ptac_shape *shape, int n_threads)
{
    const double times =
        point->work > 0 ? (double)shape->work / (double)point->work : 1;
    const double stock_ns = point->stock_ns * times;
    const double kept_ns = row && row->kept_bytes ? shape->kept_ns / n_threads : 0;
    const double row_ns = stock_ns / ratio - kept_ns;

    /* What was measured may be less than what is spared by another measurement. */
    return (stock_ns + shape->spared_ns / n_threads) /
           (row_ns > stock_ns / (4 * ratio) ? row_ns : stock_ns / (4 * ratio));
}

/* Row i of a point, the fastest or one of the others, and its ratio; or NULL. */
static const ptac_kernel *row_at(const ptac_point *point, int i, double *ratio)
{
    *ratio = i ? point->other_ratios[i - 1] : point->ratio;
    return i ? point->others[i - 1] : point->row;
}

/* The ratio of a row there; 0: the point does not know it. */
static double ratio_at(const ptac_kernel *row, const ptac_point *point,
                       const ptac_shape *shape, int n_threads)
{
    double ratio = 0;
    int i = 0;

    while (i < ROWS_OF_POINT && row_at(point, i, &ratio) != row)
        i++;
    if (i == ROWS_OF_POINT || ratio <= 0)
        return 0;
    return point->stock_ns > 0 ? ratio_of(row, ratio, point, shape, n_threads) : ratio;
}

/*
 * Where neighbours of a product disagree, or their row leaves such calls alone: of the
 * rows that the largest one knows that which gains most where it gains least, if it is
 * faster than stock at all of them. Not a library's, which is no more alike between
 * places than stock is.
 */
static const ptac_kernel *row_of_most(const ptac_neighbours *found,
                                      const ptac_shape *shape, const ptac_call *call)
{
    static const double SURELY = 1.05; /* between points, more than at one */
    const ptac_kernel *best = NULL;
    double most = SURELY;

    for (int i = 0; i < ROWS_OF_POINT && found->n > 0; i++) {
        double ratio, least = INFINITY;
        const ptac_kernel *row = row_at(found->at[0], i, &ratio);

        if (!row || !row->needs || !pays(row, call, shape->uses))
            continue;
        for (int j = 0; j < found->n && least >= most; j++)
            least = fmin(least, ratio_at(row, found->at[j], shape, call->n_threads));
        if (least >= most) {
            most = least;
            best = row;
        }
    }
    return best;
}

bool ptac_chooser_knows(ptac_op op, const ptac_shape *shape, ptac_dtype dtype,
                        int n_threads, const ptac_kernel **row)
{
    const ptac_calibration *now = PTAC_LOAD(current);
    ptac_neighbours found;

    if (!now)
        return false;
    *row = ptac_calibration_find(now, op, shape, dtype, n_threads, &found);
    return found.n > 0;
}

/*
 * Of a call that spares something the faster one of the row at a point and those that
 * came next, or NULL where that is stock.
 */
static const ptac_kernel *with_spared(const ptac_point *point, const ptac_kernel *own,
                                      const ptac_shape *shape, int n_threads)
{
    static const double ENOUGH = 1.03;
    double best = ENOUGH;
    const ptac_kernel *row = NULL;

    if (point->stock_ns <= 0)
        return own;
    for (int i = 0; i < ROWS_OF_POINT; i++) {
        double ratio;
        const ptac_kernel *one = row_at(point, i, &ratio);

        ratio = one ? ratio_of(one, ratio, point, shape, n_threads) : 0;
        if (ratio >= best) {
            best = ratio;
            row = one;
        }
    }
    return row;
}

/*
 * The row that the table has for a call, if it pays there. What the call takes in stock
 * is said by its own kind, where the other one does not serve it.
 */
static const ptac_kernel *look_up(const ptac_call *call, const ptac_shape *shape,
                                  ptac_dtype dtype)
{
    const ptac_calibration *now = PTAC_LOAD(current);
    const bool spares = shape->spared_ns > 0 || shape->kept_ns > 0;
    const int n_threads = call->n_threads;
    const ptac_kernel *own = NULL, *row;
    ptac_neighbours found;

    if (!now)
        return NULL;
    own = ptac_calibration_find(now, call->op, shape, dtype, n_threads, &found);
    if (found.n > 0) {
        const ptac_point *point = found.at[0];

        ptac_point_estimate(point, shape);
        if (own == point->row && spares)
            own = with_spared(point, own, shape, n_threads);
        if (own && pays(own, call, shape->uses))
            return own;
        row = shape->sizes[0] ? row_of_most(&found, shape, call) : NULL;
        if (row)
            return row;
    }
    if (shape->or_kind) {
        const ptac_shape other = {.kind = shape->or_kind, .work = shape->or_work};

        row = ptac_calibration_find(now, call->op, &other, dtype, n_threads, &found);
        if (row && row != own && row->pays_in_any && row->pays_in_any(call)) {
            ptac_point_estimate(found.at[0], &other);
            return row;
        }
    }
    return NULL;
}

static __thread bool pinned_pays;

bool ptac_chooser_pinned_pays(void)
{
    return pinned_pays;
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

    *why = PTAC_LOAD(state->gates[PTAC_ON_CPU]);
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

    const ptac_kernel *row = PTAC_LOAD(state->pinned);

    if (row) {
        pinned_pays = !row->pays || row->pays(call);
    } else {
        row = look_up(call, &shape, dtype);
    }
    if (!row && shapes->is_decided)
        row = ptac_registry_preferred(call->op, PTAC_FAST);
    if (!row) {
        *why = PTAC_NOT_FASTER;
        return NULL;
    }
    if (PTAC_LOAD(state->quarantined[PTAC_ON_CPU]) &&
        ptac_chooser_is_quarantined(row)) {
        *why = PTAC_QUARANTINED;
        return NULL;
    }
    *why = row->accepts(call);
    return *why ? NULL : row;
}

int64_t ptac_chooser_least_work(ptac_op op)
{
    const ptac_calibration *now = PTAC_LOAD(current);

    if (PTAC_LOAD(states[op].pinned))
        return 0;
    return now ? now->least_work[op] : INT64_MAX;
}

void ptac_chooser_set_gate(ptac_op op, ptac_reason reason)
{
    for (int device = 0; device < PTAC_N_DEVICES; device++)
        PTAC_STORE(states[op].gates[device], reason);
    decide_anew();
}

void ptac_chooser_set_gate_on(ptac_device device, ptac_op op, ptac_reason reason)
{
    PTAC_STORE(states[op].gates[device], reason);
    decide_anew();
}

ptac_reason ptac_chooser_gate(ptac_op op)
{
    return PTAC_LOAD(states[op].gates[PTAC_ON_CPU]);
}

ptac_reason ptac_chooser_gate_on(ptac_device device, ptac_op op)
{
    return PTAC_LOAD(states[op].gates[device]);
}

const ptac_kernel *ptac_chooser_pin(ptac_op op, const ptac_kernel *row)
{
    decide_anew();
    return __atomic_exchange_n(&states[op].pinned, row, __ATOMIC_ACQ_REL);
}

const ptac_kernel *ptac_chooser_pinned(ptac_op op)
{
    return PTAC_LOAD(states[op].pinned);
}

void ptac_chooser_quarantine(const ptac_kernel *row)
{
    __atomic_fetch_or(&states[row->op].quarantined[row->device], row_bit(row),
                      __ATOMIC_RELEASE);
    decide_anew();
}

bool ptac_chooser_is_quarantined(const ptac_kernel *row)
{
    return PTAC_LOAD(states[row->op].quarantined[row->device]) & row_bit(row);
}

void ptac_chooser_reset_quarantine(void)
{
    for (int op = 0; op < PTAC_N_OPS; op++)
        for (int device = 0; device < PTAC_N_DEVICES; device++)
            PTAC_STORE(states[op].quarantined[device], 0u);
    decide_anew();
}
