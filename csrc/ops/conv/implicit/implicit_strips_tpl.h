/*
 * implicit_strips_tpl.h - strips of images on their way in and out. The includer
 * defines what implicit_tpl.h lists.
 */
#include "ops/conv/implicit/implicit.h"

#include <string.h>

/* The part of the scratch that a piece works in, and what is in it. */
typedef struct workplace {
    float *copy, *sums;
    int64_t strip, group; /* what is copied; of a weight's gradient sums are grads */
    int first[PTAC_N_AXES], places[PTAC_N_AXES];
    int64_t image;
    int n_images, n_places; /* in a row, with those between */
} workplace;

INLINE void fill_zeros(float *to, int n)
{
    for (int j = 0; j < n; j += LANES)
        v_store(to + j, v_zero());
}

/* Every second one of n elements. */
INLINE vec load_evens(const float *from, int n)
{
    if (n >= 2 * LANES)
        return v_evens(v_load(from), v_load(from + LANES));
    return n > LANES ? v_evens(v_load(from), v_load_first(from + LANES, n - LANES))
                     : v_evens(v_load_first(from, n), v_zero());
}

/*
 * Slots of a strip along an axis, of a phase: those in [lead, last) are elements, where
 * lead <= last <= n.
 */
typedef struct run_of_slots {
    int first; /* the element that slot 0 is, if there is one */
    int step, lead, last, n;
} run_of_slots;

INLINE run_of_slots slots_along(const ptac_implicit_axis *axis, int first_place,
                                int phase, int n)
{
    const int step = axis->source_step, first = first_place * step + phase - axis->lead;
    const int lead = first < 0 ? (step - 1 - first) / step : 0;
    const int last =
        first < axis->n_source ? (axis->n_source - first + step - 1) / step : 0;

    return (run_of_slots){
        .first = first,
        .step = step,
        .lead = lead < n ? lead : n,
        .last = last < n ? last : n,
        .n = n,
    };
}

/*
 * Elements of a source's row into slots, and zeros. Up to a vector of slots behind them
 * is written, too: the next row's, which come next.
 */
INLINE void copy_row(const float *from, int n_source, const run_of_slots *s, float *to)
{
    int j = s->lead;

    fill_zeros(to, j);
    from += s->first;
    n_source -= s->first;
    if (s->step == 1)
        for (; j < s->last; j += LANES)
            v_store(to + j, j + LANES <= s->last ? v_load(from + j)
                                                 : v_load_first(from + j, s->last - j));
    else if (s->step == 2)
        for (; j < s->last; j += LANES)
            v_store(to + j, load_evens(from + 2 * j, n_source - 2 * j));
    else
        for (; j < s->last; j++)
            to[j] = from[j * s->step];
    fill_zeros(to + j, s->n - j);
}

/* Rows of up to a vector of slots: which elements of one or two vectors they take. */
INLINE void copy_short_rows(const float *from, int n_source, const run_of_slots *s,
                            int n_rows, int64_t row_step, float *to)
{
    const int begin = s->first < 0 ? -s->first : 0, end = n_source - s->first;
    const int n =
        at_most(s->last * s->step, end); /* elements, from the first slot on */
    const mask low = v_between(at_most(LANES, begin), at_most(LANES, n));
    const mask high = v_between(begin < LANES ? 0 : begin - LANES,
                                n < LANES ? 0 : at_most(LANES, n - LANES));

    from += s->first;
    if (s->step == 1)
        for (int y = 0; y < n_rows; y++, to += s->n, from += row_step)
            v_store(to, v_load_where(from, low));
    else
        for (int y = 0; y < n_rows; y++, to += s->n, from += row_step)
            v_store(to,
                    v_evens(v_load_where(from, low), v_load_where(from + LANES, high)));
}

/* One phase of one channel of an image. */
INLINE void copy_phase(const ptac_implicit *plan, const run_of_slots *const runs[],
                       const float *plane, float *to)
{
    const run_of_slots *d = runs[0], *h = runs[1], *w = runs[2];
    const int n_source = plan->axis[2].n_source;
    const int64_t row_step = (int64_t)h->step * n_source;
    const int64_t plane_step = (int64_t)d->step * plan->axis[1].n_source * n_source;
    const bool is_short = w->n <= LANES && w->step <= 2 && w->last > w->lead;

    fill_zeros(to, d->lead * h->n * w->n);
    to += d->lead * h->n * w->n;
    plane +=
        (d->first + d->lead * d->step) * (int64_t)plan->axis[1].n_source * n_source +
        (h->first + h->lead * h->step) * (int64_t)n_source;
    for (int i = d->lead; i < d->last; i++, plane += plane_step) {
        const int n = h->last - h->lead;
        const float *row = plane;

        fill_zeros(to, h->lead * w->n);
        to += h->lead * w->n;
        if (is_short)
            copy_short_rows(plane, n_source, w, n, row_step, to);
        else
            for (int j = 0; j < n; j++, row += row_step)
                copy_row(row, n_source, w, to + j * w->n);
        to += n * w->n;
        fill_zeros(to, (h->n - h->last) * w->n);
        to += (h->n - h->last) * w->n;
    }
    fill_zeros(to, (d->n - d->last) * h->n * w->n);
}

INLINE void copy_strip(const ptac_implicit *plan, const workplace *at)
{
    const int64_t image_size =
        (int64_t)plan->slots[0] * plan->slots[1] * plan->slots[2];
    const int64_t image_step = (int64_t)plan->groups * plan->n_channels;
    const ptac_implicit_axis *axis = plan->axis;
    const float *source = plan->source + (at->image * plan->groups + at->group) *
                                             plan->n_channels * plan->source_plane;
    run_of_slots runs[PTAC_N_AXES][PTAC_MOST_PHASES];

    for (int i = 0; i < PTAC_N_AXES; i++)
        for (int j = 0; j < axis[i].n_phases; j++)
            runs[i][j] =
                slots_along(&axis[i], at->first[i], axis[i].phases[j], plan->slots[i]);
    for (int c = 0; c < plan->n_channels; c++) {
        float *to = at->copy + c * plan->plane_size;

        for (int i = 0; i < axis[0].n_phases; i++)
            for (int j = 0; j < axis[1].n_phases; j++)
                for (int k = 0; k < axis[2].n_phases; k++) {
                    const run_of_slots *const of[] = {&runs[0][i], &runs[1][j],
                                                      &runs[2][k]};

                    for (int m = 0; m < at->n_images; m++, to += image_size)
                        copy_phase(plan, of,
                                   source + (m * image_step + c) * plan->source_plane,
                                   to);
                    to += (plan->images - at->n_images) * image_size;
                }
    }
}

/*
 * Places of a row of sums to every second result, and zeros between them, which the
 * next class of results may go over; behind the last one where is_followed.
 */
INLINE void give_first_of_pairs(const float *from, int n, bool is_followed, float *to)
{
    int i = 0;
    vec v;

    for (; i + LANES <= n - !is_followed; i += LANES) {
        v = v_load(from + i);
        v_store(to + 2 * i, v_zip_low(v, v_zero()));
        v_store(to + 2 * i + LANES, v_zip_high(v, v_zero()));
    }
    if (i < n) {
        v = v_load_first(from + i, n - i);
        v_store_two(to + 2 * i, v_zip_low(v, v_zero()), v_zip_high(v, v_zero()),
                    2 * (n - i) - !is_followed);
    }
}

/*
 * To every second result, and leaves those between them, of the class before: behind
 * each place lies the next one's, in the same strip. Masked stores take dozens of steps
 * on some CPUs.
 */
INLINE void give_second_of_pairs(const float *from, int n, float *to)
{
    static const float is_second[] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
    const mask where = v_less(v_zero(), v_load(is_second));
    int i = 1;

    to[0] = from[0];
    for (; i + LANES <= n; i += LANES) {
        float *at = to + 2 * i - 1; /* the first of a pair */
        const vec v = v_load(from + i);

        v_store(at, v_pick(where, v_zip_low(v, v), v_load(at)));
        v_store(at + LANES, v_pick(where, v_zip_high(v, v), v_load(at + LANES)));
    }
    for (; i < n; i++)
        to[2 * i] = from[i];
}

/* A row of results; up to end there are others, which come next. */
INLINE void give_neighbours(const float *from, int n, const float *end, float *to)
{
    for (int i = 0; i < n; i += LANES)
        if (i + LANES <= n || to + i + LANES <= end)
            v_store(to + i, v_load(from + i));
        else
            v_store_first(to + i, v_load_first(from + i, n - i), n - i);
}

/*
 * n places of a row of sums to where they belong: every step-th result from to on. left
 * results are in the row from there.
 */
INLINE void give_row(const float *from, int n, int step, int class, int64_t left,
                     const float *end, float *to)
{
    if (step == 1)
        give_neighbours(from, n, end, to);
    else if (step == 2 && class == 0)
        give_first_of_pairs(from, n, 2 * n <= left, to);
    else if (step == 2)
        give_second_of_pairs(from, n, to);
    else
        for (int i = 0; i < n; i++)
            to[(int64_t)i * step] = from[i];
}

/* The places [*first, *last) of a strip along an axis that are results. */
INLINE void results_along(const ptac_implicit_axis *axis, int first_place, int n,
                          int class, int *first, int *last)
{
    const int offset = first_place * axis->result_step + class - axis->start;

    *first = offset >= 0 ? 0 : (-offset + axis->result_step - 1) / axis->result_step;
    *last =
        axis->n_results <= offset
            ? 0
            : (axis->n_results - offset + axis->result_step - 1) / axis->result_step;
    if (*last > n)
        *last = n;
}

/* Of a strip's places those that are results of a class. */
typedef struct given_places {
    int first[PTAC_N_AXES], last[PTAC_N_AXES];
    int start[PTAC_N_AXES]; /* the result that place 0 is */
    int class;              /* along the row */
} given_places;

INLINE given_places results_of(const ptac_implicit *plan, const workplace *at,
                               const ptac_implicit_class *class)
{
    given_places given = {.class = class->of[PTAC_N_AXES - 1]};

    for (int i = 0; i < PTAC_N_AXES; i++) {
        const ptac_implicit_axis *axis = &plan->axis[i];

        results_along(axis, at->first[i], at->places[i], class->of[i], &given.first[i],
                      &given.last[i]);
        given.start[i] = at->first[i] * axis->result_step + class->of[i] - axis->start;
    }
    return given;
}

/* One row of results, that of channel. */
INLINE void give_results(const ptac_implicit *plan, const workplace *at,
                         const given_places *given, int channel, const float *sums)
{
    const ptac_implicit_axis *axis = plan->axis;
    const int64_t pitch = plan->slots[2], plane = plan->slots[1] * pitch;
    const int64_t row = axis[2].n_results;
    const int n = given->last[2] - given->first[2];
    const int n_rows = given->last[1] - given->first[1];
    const int column = given->start[2] + given->first[2] * axis[2].result_step;
    /* Rows lie behind one another, none between them. */
    const bool is_run = n == row && axis[1].result_step == 1;

    if (n <= 0)
        return;
    for (int k = 0; k < at->n_images; k++) {
        float *image =
            plan->result +
            (((at->image + k) * plan->groups + at->group) * plan->n_rows + channel) *
                plan->result_plane +
            column;

        for (int z = given->first[0]; z < given->last[0]; z++) {
            const float *from = sums + (k * (int64_t)plan->slots[0] + z) * plane +
                                given->first[1] * pitch + given->first[2];
            const int64_t depth = given->start[0] + z * axis[0].result_step;
            float *to = image + (depth * axis[1].n_results + given->start[1] +
                                 given->first[1] * axis[1].result_step) *
                                    row;
            const float *end = is_run ? to + n_rows * row : to;

            for (int y = given->first[1]; y < given->last[1]; y++) {
                give_row(from, n, axis[2].result_step, given->class, row - column, end,
                         to);
                from += pitch;
                to += axis[1].result_step * row;
            }
        }
    }
}
