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

/* Elements of a source's row into n slots; where there are none, zeros. */
INLINE void copy_row(const float *from, int n_source, int step, int first, int n,
                     float *to)
{
    int j = 0;

    for (; j < n && first + j * step < 0; j++)
        to[j] = 0;
    if (step == 1) {
        const int last = n < n_source - first ? n : n_source - first;

        if (last > j) {
            FOR_LANES(i, m, j, last,
                      v_store_first(to + i, v_load_first(from + first + i, m), m));
            j = last;
        }
    } else {
        if (step == 2)
            for (; j + LANES <= n && first + 2 * (j + LANES) <= n_source; j += LANES)
                v_store(to + j, v_evens(v_load(from + first + 2 * j),
                                        v_load(from + first + 2 * j + LANES)));
        for (; j < n && first + j * step < n_source; j++)
            to[j] = from[first + j * step];
    }
    for (; j < n; j++)
        to[j] = 0;
}

/* One phase of one channel of an image. */
INLINE void copy_phase(const ptac_implicit *plan, const workplace *at,
                       const int phase[PTAC_N_AXES], const float *plane, float *to)
{
    const ptac_implicit_axis *d = &plan->axis[0], *h = &plan->axis[1],
                             *w = &plan->axis[2];
    const int *slots = plan->slots;

    for (int i = 0; i < slots[0]; i++) {
        const int z = (at->first[0] + i) * d->source_step + phase[0] - d->lead;

        for (int j = 0; j < slots[1]; j++, to += slots[2]) {
            const int y = (at->first[1] + j) * h->source_step + phase[1] - h->lead;
            const bool is_there =
                z >= 0 && z < d->n_source && y >= 0 && y < h->n_source;

            if (is_there)
                copy_row(plane + ((int64_t)z * h->n_source + y) * w->n_source,
                         w->n_source, w->source_step,
                         at->first[2] * w->source_step + phase[2] - w->lead, slots[2],
                         to);
            else
                memset(to, 0, (size_t)slots[2] * sizeof *to);
        }
    }
}

INLINE void copy_strip(const ptac_implicit *plan, const workplace *at)
{
    const int64_t image_size =
        (int64_t)plan->slots[0] * plan->slots[1] * plan->slots[2];
    const int64_t image_step = (int64_t)plan->groups * plan->n_channels;
    const ptac_implicit_axis *axis = plan->axis;
    const float *source = plan->source + (at->image * plan->groups + at->group) *
                                             plan->n_channels * plan->source_plane;

    for (int c = 0; c < plan->n_channels; c++) {
        float *to = at->copy + c * plan->plane_size;

        for (int i = 0; i < axis[0].n_phases; i++)
            for (int j = 0; j < axis[1].n_phases; j++)
                for (int k = 0; k < axis[2].n_phases; k++) {
                    const int phase[] = {axis[0].phases[i], axis[1].phases[j],
                                         axis[2].phases[k]};

                    for (int m = 0; m < at->n_images; m++, to += image_size)
                        copy_phase(plan, at, phase,
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

/*
 * n places of a row of sums to where they belong: every step-th result from to on. left
 * results are in the row from there.
 */
INLINE void give_row(const float *from, int n, int step, int class, int64_t left,
                     float *to)
{
    if (step == 1)
        FOR_LANES(i, m, 0, n, v_store_first(to + i, v_load_first(from + i, m), m));
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
    const int column = given->start[2] + given->first[2] * axis[2].result_step;

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

            for (int y = given->first[1]; y < given->last[1]; y++) {
                give_row(from, n, axis[2].result_step, given->class, row - column, to);
                from += pitch;
                to += axis[1].result_step * row;
            }
        }
    }
}
