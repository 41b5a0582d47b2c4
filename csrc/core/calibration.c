/*
 * calibration.c - tables of points: made, found in, freed.
 */
#include "core/calibration.h"

#include "core/debug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAR = 8, /* neighbours with less of the largest one's work have no say */
};

static ptac_calibration *retired;

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

static void index_points(ptac_calibration *table, int n_points)
{
    for (int op = 0; op < PTAC_N_OPS; op++)
        table->least_work[op] = INT64_MAX;
    for (int i = 0; i < n_points; i++) {
        const ptac_point *point = &table->points[i];
        ptac_curve *home = &table->curves[point->op][point->kind][point->dtype];

        if (home->n_points++ == 0)
            home->points = point;
        table->knows[point->op] = true;
        if (point->row && point->work < table->least_work[point->op])
            table->least_work[point->op] = point->work;
    }
}

static void exchange(ptac_calibration **in_use, ptac_calibration *fresh)
{
    ptac_calibration *old = __atomic_exchange_n(in_use, fresh, __ATOMIC_SEQ_CST);

    if (old) {
        old->next = retired;
        retired = old;
    }
    ptac_calibration_collect();
}

ptac_status ptac_calibration_replace(ptac_calibration **in_use,
                                     const ptac_point *points, int n_points,
                                     const char *device)
{
    ptac_calibration *fresh =
        calloc(1, sizeof *fresh + (size_t)n_points * sizeof *points);

    if (!fresh) {
        ptac_error_set("no memory for a calibration table of %d points", n_points);
        return PTAC_FAILED;
    }
    if (n_points > 0)
        memcpy(fresh->points, points, (size_t)n_points * sizeof *points);
    qsort(fresh->points, (size_t)n_points, sizeof *points, by_place);
    check_points(fresh->points, n_points);
    index_points(fresh, n_points);
    snprintf(fresh->device, sizeof fresh->device, "%s", device);
    exchange(in_use, fresh);
    return PTAC_OK;
}

void ptac_calibration_drop(ptac_calibration **in_use)
{
    exchange(in_use, NULL);
}

void ptac_calibration_collect(void)
{
    if (ptac_calls_in_flight() > 0)
        return;
    while (retired) {
        ptac_calibration *old = retired;

        retired = old->next;
        free(old);
    }
}

static bool is_within(const int64_t *inner, const int64_t *outer)
{
    return inner[0] <= outer[0] && inner[1] <= outer[1] && inner[2] <= outer[2];
}

/* How many points, in their order, have no more threads, and of those no more work. */
static int n_up_to(const ptac_point *points, int n_points, int n_threads, int64_t work)
{
    int begin = 0, end = n_points;

    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        const ptac_point *point = &points[middle];

        if (point->n_threads < n_threads ||
            (point->n_threads == n_threads && point->work <= work))
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/*
 * The neighbours of a product. Of points with the same threads only later ones, with
 * more work, can exceed one.
 */
static void find_neighbours(const ptac_point *points, int n_points,
                            const int64_t *sizes, ptac_neighbours *found)
{
    for (int i = n_points - 1; i >= 0 && found->n < PTAC_MOST_NEIGHBOURS; i--) {
        const ptac_point *point = &points[i];
        bool is_exceeded = false;

        if (found->n > 0 && point->work < found->at[0]->work / FAR)
            break;
        if (!is_within(point->sizes, sizes))
            continue;
        for (int j = 0; j < found->n && !is_exceeded; j++)
            is_exceeded = is_within(point->sizes, found->at[j]->sizes);
        if (!is_exceeded)
            found->at[found->n++] = point;
    }
}

static const ptac_kernel *row_of_all(const ptac_neighbours *found)
{
    for (int i = 1; i < found->n; i++)
        if (found->at[i]->row != found->at[0]->row)
            return NULL;
    return found->n > 0 ? found->at[0]->row : NULL;
}

/* Points of a curve for the largest calibrated thread count up to the call's. */
static const ptac_point *points_of_threads(const ptac_curve *curve, int n_threads,
                                           int *n)
{
    const ptac_point *points = curve->points;
    int begin = 0, end = curve->n_points;

    if (end > 0 && points[end - 1].n_threads > n_threads)
        end = n_up_to(points, end, n_threads, INT64_MAX);
    if (end > 0 && points[0].n_threads < points[end - 1].n_threads)
        begin = n_up_to(points, end, points[end - 1].n_threads - 1, INT64_MAX);
    *n = end - begin;
    return points + begin;
}

const ptac_kernel *ptac_calibration_find(const ptac_calibration *table, ptac_op op,
                                         const ptac_shape *shape, ptac_dtype dtype,
                                         int n_threads, ptac_neighbours *found)
{
    int n;
    const ptac_curve *curve = &table->curves[op][shape->kind][dtype];
    const ptac_point *points;

    if (curve->n_points == 0 && shape->else_kind)
        curve = &table->curves[op][shape->else_kind][dtype];
    points = points_of_threads(curve, n_threads, &n);

    found->n = 0;
    if (n)
        n = n_up_to(points, n, points->n_threads, shape->work);
    if (n && shape->sizes[0] && points->sizes[0])
        find_neighbours(points, n, shape->sizes, found);
    else if (n)
        found->at[found->n++] = &points[n - 1];
    return row_of_all(found);
}
