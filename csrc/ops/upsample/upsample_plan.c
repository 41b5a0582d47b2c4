/*
 * upsample_plan.c - tables of indices, and of the lanes that vectors are picked from.
 */
#include "ops/upsample/upsample_plan.h"

#include "core/scratch.h"

static int n_vectors_of(int64_t outputs, int n_lanes)
{
    return n_lanes ? (int)ptac_parts(outputs, n_lanes) : 0;
}

/* Elements of 32 bits that picks take. */
static size_t picks_size(int64_t outputs, int n_lanes)
{
    return (size_t)n_vectors_of(outputs, n_lanes) * (size_t)(n_lanes + 1);
}

/*
 * of[i * step] is the element of output i; they never decrease. False where a vector's
 * do not lie in n_lanes elements.
 */
static bool make_picks(const int32_t *of, int step, const ptac_upsample_axis *axis,
                       int n_lanes, int32_t *memory, ptac_picks *picks)
{
    const int n = (int)ptac_least(n_lanes, axis->outputs);
    bool are_near = true;

    picks->n_vectors = n_vectors_of(axis->outputs, n_lanes);
    picks->n_lanes = n_lanes;
    picks->n_loaded = (int)ptac_least(n_lanes, axis->size);
    picks->outputs = axis->outputs;
    picks->from = memory;
    picks->lanes = memory + picks->n_vectors;
    for (int i = 0; i < picks->n_vectors; i++) {
        const int64_t at = ptac_picks_at(picks, i);
        const int64_t last = axis->size - picks->n_loaded;
        const int32_t from = (int32_t)ptac_least(of[at * step], last);

        picks->from[i] = from;
        for (int lane = 0; lane < n_lanes; lane++) {
            const int32_t index = lane < n ? of[(at + lane) * step] - from : 0;

            picks->lanes[i * n_lanes + lane] = index;
            are_near &= index < picks->n_loaded;
        }
    }
    return are_near;
}

static void find_firsts(const ptac_upsample_axis *axis, int32_t *first)
{
    int64_t output = 0;

    for (int64_t i = 0; i < axis->size; i++) {
        while (output < axis->outputs && ptac_nearest_index(axis, output) < i)
            output++;
        first[i] = (int32_t)output;
    }
    first[axis->size] = (int32_t)axis->outputs;
}

void *ptac_nearest_plan_make(const ptac_call *call, int n_lanes,
                             ptac_nearest_plan *plan, bool *has_picks)
{
    const ptac_upsample *p = call->params;
    const int64_t outputs = p->w.outputs;
    const size_t n = (size_t)(outputs + p->h.size + 1 + p->w.size + 1);
    int32_t *memory =
        ptac_scratch_take(sizeof *memory * (n + picks_size(outputs, n_lanes)));

    if (!memory)
        return NULL;
    plan->call = call;
    plan->columns = memory;
    plan->first_row = plan->columns + outputs;
    plan->first_column = plan->first_row + p->h.size + 1;
    for (int64_t i = 0; i < outputs; i++)
        plan->columns[i] = (int32_t)ptac_nearest_index(&p->w, i);
    find_firsts(&p->h, plan->first_row);
    find_firsts(&p->w, plan->first_column);
    *has_picks = make_picks(plan->columns, 1, &p->w, n_lanes, memory + n, &plan->picks);
    return memory;
}

void *ptac_bilinear_plan_make(const ptac_call *call, int n_lanes,
                              ptac_bilinear_plan *plan, bool *has_picks)
{
    enum { step = sizeof(ptac_linear_place) / sizeof(int32_t) };
    const ptac_upsample *p = call->params;
    const int64_t outputs = p->w.outputs;
    const size_t n_places = (size_t)(p->h.outputs + outputs);
    const size_t n_weights = (size_t)(outputs + n_lanes);
    const size_t n_picks = picks_size(outputs, n_lanes);
    char *memory =
        ptac_scratch_take(n_places * sizeof *plan->rows +
                          2 * (n_weights * sizeof(float) + n_picks * sizeof(int32_t)));
    int32_t *picks;

    if (!memory)
        return NULL;
    plan->call = call;
    plan->rows = (ptac_linear_place *)(void *)memory;
    plan->columns = plan->rows + p->h.outputs;
    plan->of_first = (float *)(void *)(plan->rows + n_places);
    plan->of_second = plan->of_first + n_weights;
    picks = (int32_t *)(void *)(plan->of_second + n_weights);
    for (int64_t i = 0; i < p->h.outputs; i++)
        plan->rows[i] = ptac_linear_at(p, &p->h, i);
    for (int64_t i = 0; i < outputs + n_lanes; i++) {
        const ptac_linear_place at =
            i < outputs ? ptac_linear_at(p, &p->w, i) : (ptac_linear_place){0};

        if (i < outputs)
            plan->columns[i] = at;
        plan->of_first[i] = at.of_first;
        plan->of_second[i] = at.of_second;
    }
    *has_picks =
        make_picks(&plan->columns[0].first, step, &p->w, n_lanes, picks, &plan->first);
    *has_picks &= make_picks(&plan->columns[0].second, step, &p->w, n_lanes,
                             picks + n_picks, &plan->second);
    return memory;
}

/* Elements never decrease along the outputs. */
static void find_places(const ptac_upsample *p, const ptac_upsample_axis *axis,
                        ptac_linear_place *places, int32_t *first)
{
    int64_t element = 0;

    for (int64_t i = 0; i < axis->outputs; i++) {
        places[i] = ptac_linear_at(p, axis, i);
        while (element <= places[i].first)
            first[element++] = (int32_t)i;
    }
    while (element <= axis->size)
        first[element++] = (int32_t)axis->outputs;
}

void *ptac_bilinear_gradient_plan_make(const ptac_call *call,
                                       ptac_bilinear_gradient_plan *plan)
{
    const ptac_upsample *p = call->params;
    const size_t n_places = (size_t)(p->h.outputs + p->w.outputs);
    const size_t n_firsts = (size_t)(p->h.size + 1 + p->w.size + 1);
    void *memory =
        ptac_scratch_take(n_places * sizeof *plan->rows + n_firsts * sizeof(int32_t));

    if (!memory)
        return NULL;
    *plan = (ptac_bilinear_gradient_plan){.call = call, .rows = memory};
    plan->columns = plan->rows + p->h.outputs;
    plan->first_row = (int32_t *)(void *)(plan->rows + n_places);
    plan->first_column = plan->first_row + p->h.size + 1;
    find_places(p, &p->h, plan->rows, plan->first_row);
    find_places(p, &p->w, plan->columns, plan->first_column);
    return memory;
}
