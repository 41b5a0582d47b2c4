/*
 * squeeze_excite_ref.c - squeeze-and-excitation by its definition, its shape kinds, and
 * the order of its stages.
 *
 * The row "scalar" runs on any CPU, with sums in double; every other row is tested
 * against it.
 */
#include "core/scratch.h"
#include "ops/squeeze_excite/squeeze_excite.h"

#include <math.h>

enum {
    FEW,
    MANY,
    GRAIN = 16384, /* elements that are worth a thread */
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    enum { LEAST_OF_MANY = 128 };
    const ptac_squeeze_excite *p = call->params;

    if (call->inputs[PTAC_EXCITE_X].dtype != PTAC_F32)
        return PTAC_DTYPE;
    shape->kind = p->n_channels < LEAST_OF_MANY ? FEW : MANY;
    shape->work = p->n * p->n_channels * p->n_places;
    return PTAC_TAKE;
}

PTAC_SHAPES(SQUEEZE_EXCITE, classify, "few", "many")

ptac_reason ptac_excite_accepts(const ptac_call *call)
{
    const ptac_squeeze_excite *p = call->params;
    const ptac_view *x = &call->inputs[PTAC_EXCITE_X];

    for (int i = 0; i < call->n_inputs; i++)
        if (call->inputs[i].dtype != PTAC_F32)
            return PTAC_DTYPE;
    if (!ptac_view_is_contiguous(x))
        return PTAC_LAYOUT;
    if (p->n == 0 || p->n_channels == 0 || p->n_hidden == 0 || p->n_places == 0)
        return PTAC_EMPTY;
    return p->act == PTAC_ACT_NONE || p->act == PTAC_ACT_RELU || p->act == PTAC_ACT_SILU
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

static void run_stages(const ptac_excitement *all, const ptac_excite_stages *stages)
{
    const ptac_squeeze_excite *p = all->p;
    const int64_t n_means = p->n * p->n_channels, n_hidden = p->n * p->n_hidden;

    /* Each reads all that the one before has written. */
    ptac_parallel_for(0, n_means, GRAIN / p->n_places + 1, stages->squeeze,
                      (void *)all);
    ptac_parallel_for(0, p->n_hidden, GRAIN / n_means + 1, stages->hide, (void *)all);
    ptac_parallel_for(0, p->n_channels, GRAIN / (n_hidden + p->n * p->n_places) + 1,
                      stages->excite, (void *)all);
}

typedef struct images {
    const ptac_excitement *all;
    const ptac_excite_stages *stages;
} images;

static void run_images(int64_t begin, int64_t end, void *context)
{
    const images *of = context;
    ptac_squeeze_excite p = *of->all->p;
    const int64_t size = p.n_channels * p.n_places;

    p.n = 1;
    for (int64_t i = begin; i < end; i++) {
        ptac_excitement one = *of->all;

        one.p = &p;
        one.x += i * size;
        one.y += i * size;
        one.means += i * p.n_channels;
        one.gates += i * p.n_channels;
        one.hidden += i * p.n_hidden;
        run_stages(&one, of->stages);
    }
}

/* An image that has more numbers than the weights stays in the caches, and not they. */
static bool is_by_images(const ptac_call *call)
{
    const ptac_squeeze_excite *p = call->params;

    return p->n >= call->n_threads && 2 * p->n_hidden < p->n_places;
}

ptac_status ptac_excite_run(const ptac_call *call, const ptac_excite_stages *stages)
{
    const ptac_squeeze_excite *p = call->params;
    const bool is_shifted = call->n_inputs > PTAC_EXCITE_B1;
    const int64_t n_means = p->n * p->n_channels, n_hidden = p->n * p->n_hidden;
    float *scratch = ptac_scratch_take(sizeof(float) * (2 * n_means + n_hidden));
    ptac_excitement all = {
        .p = p,
        .x = call->inputs[PTAC_EXCITE_X].data,
        .w1 = call->inputs[PTAC_EXCITE_W1].data,
        .w2 = call->inputs[PTAC_EXCITE_W2].data,
        .b1 = is_shifted ? call->inputs[PTAC_EXCITE_B1].data : NULL,
        .b2 = is_shifted ? call->inputs[PTAC_EXCITE_B2].data : NULL,
        .y = call->outputs[0].data,
    };

    if (!scratch)
        return PTAC_NO_MEMORY;
    all.means = scratch;
    all.gates = scratch + n_means;
    all.hidden = scratch + 2 * n_means;
    if (is_by_images(call))
        ptac_parallel_for(0, p->n, GRAIN / (p->n_channels * p->n_places) + 1,
                          run_images, &(images){&all, stages});
    else
        run_stages(&all, stages);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

/* --- by definition ---------------------------------------------------------------- */

static void squeeze(int64_t begin, int64_t end, void *context)
{
    const ptac_excitement *all = context;
    const int64_t n = all->p->n_places;

    for (int64_t i = begin; i < end; i++) {
        double sum = 0;

        for (int64_t k = 0; k < n; k++)
            sum += all->x[i * n + k];
        all->means[i] = (float)(sum / (double)n);
    }
}

static double dot(const float *a, const float *b, int64_t n, const float *bias)
{
    double sum = bias ? *bias : 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void hide(int64_t begin, int64_t end, void *context)
{
    const ptac_excitement *all = context;
    const ptac_squeeze_excite *p = all->p;

    for (int64_t i = 0; i < p->n; i++)
        for (int64_t k = begin; k < end; k++) {
            const double z =
                dot(all->w1 + k * p->n_channels, all->means + i * p->n_channels,
                    p->n_channels, all->b1 ? all->b1 + k : NULL);
            float *to = &all->hidden[i * p->n_hidden + k];

            if (p->act == PTAC_ACT_SILU)
                *to = (float)(z / (1 + exp(-z)));
            else
                *to = (float)(p->act == PTAC_ACT_RELU && z < 0 ? 0 : z);
        }
}

static double gate_of(double z, bool is_hard)
{
    if (!is_hard)
        return 1 / (1 + exp(-z));
    z += 3;
    return (z < 0 ? 0 : z > 6 ? 6 : z) / 6;
}

static void excite(int64_t begin, int64_t end, void *context)
{
    const ptac_excitement *all = context;
    const ptac_squeeze_excite *p = all->p;

    for (int64_t i = 0; i < p->n; i++)
        for (int64_t c = begin; c < end; c++) {
            const double z =
                dot(all->w2 + c * p->n_hidden, all->hidden + i * p->n_hidden,
                    p->n_hidden, all->b2 ? all->b2 + c : NULL);
            const float gate = (float)gate_of(z, p->is_hard);
            const int64_t at = (i * p->n_channels + c) * p->n_places;

            for (int64_t k = 0; k < p->n_places; k++)
                all->y[at + k] = all->x[at + k] * gate;
        }
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_excite_stages stages = {squeeze, hide, excite};

    return ptac_excite_run(call, &stages);
}

PTAC_ROW(SQUEEZE_EXCITE, "scalar", PTAC_CLOSE, 0, ptac_excite_accepts, run)
