/*
 * bias_act.c - the choice between the rows of bias_act, and their threads.
 */
#include "ops/linear/bias_act.h"

#include "core/cpu.h"

#include <string.h>

enum {
    MIN_WORK = 32768,    /* elements that are worth another thread */
    MAX_GROUPS = 32,     /* of rows, whose sums are put together at the end */
    MAX_PARTIALS = 8192, /* sums of all groups, 64 KiB of stack */
    COLUMN_STEP = 16,    /* panels begin at whole cache lines */
};

const ptac_bias_act *ptac_bias_act_best(void)
{
#if defined(__x86_64__)
    const uint32_t have = ptac_cpu_features();

    if (have & PTAC_CPU_AVX512)
        return &ptac_bias_act_avx512;
    if (have & PTAC_CPU_AVX2)
        return &ptac_bias_act_avx2;
#endif
    return &ptac_bias_act_scalar;
}

void ptac_bias_act_forward(const ptac_bias_act *by, const ptac_act_forward *job)
{
    if (job->n_cols > 0)
        ptac_parallel_for(0, job->n_rows, MIN_WORK / job->n_cols + 1,
                          by->forward[job->act], (void *)job);
}

/* Pieces are numbered panel by panel, and in a panel group by group. */
typedef struct plan {
    const ptac_act_backward *job;
    ptac_act_sum sum;
    int64_t n_panels, panel; /* how many, and columns in each */
    int64_t n_groups, group; /* how many, and rows in each */
    double *partials;        /* [group][column]; a single group's sums go to gb */
} plan;

static void run_pieces(int64_t begin, int64_t end, void *context)
{
    const plan *plan = context;
    const ptac_act_backward *job = plan->job;
    double sums[PTAC_ACT_PANEL];

    for (int64_t i = begin; i < end; i++) {
        const int64_t group = i % plan->n_groups;
        const int64_t column = i / plan->n_groups * plan->panel;
        const ptac_act_piece piece = {
            .job = job,
            .row = group * plan->group,
            .last_row = ptac_least(job->n_rows, (group + 1) * plan->group),
            .column = column,
            .n_columns = (int)ptac_least(job->n_cols - column, plan->panel),
        };

        plan->sum(&piece, sums);
        if (plan->n_groups == 1)
            for (int j = 0; j < piece.n_columns; j++)
                job->gb[column + j] = (float)sums[j];
        else
            memcpy(plan->partials + group * job->n_cols + column, sums,
                   (size_t)piece.n_columns * sizeof *sums);
    }
}

static void add_groups(const plan *plan)
{
    const ptac_act_backward *job = plan->job;

    for (int64_t j = 0; j < job->n_cols; j++) {
        double sum = 0;

        for (int64_t group = 0; group < plan->n_groups; group++)
            sum += plan->partials[group * job->n_cols + j];
        job->gb[j] = (float)sum;
    }
}

/* n things in at most max_parts equal parts of whole steps; sets their number. */
static int64_t cut(int64_t n, int64_t max_parts, int64_t step, int64_t *n_parts)
{
    const int64_t part = ptac_parts(ptac_parts(n, max_parts), step) * step;

    *n_parts = part ? ptac_parts(n, part) : 1;
    return part ? part : step;
}

static void run_with_sums(const ptac_act_backward *job, ptac_act_sum sum)
{
    const int64_t n_panels = ptac_parts(job->n_cols, PTAC_ACT_PANEL);
    const int64_t n_groups = ptac_least(MAX_GROUPS, MAX_PARTIALS / job->n_cols);
    double partials[MAX_PARTIALS];
    plan plan = {.job = job, .sum = sum, .partials = partials};

    plan.panel = cut(job->n_cols, n_panels, COLUMN_STEP, &plan.n_panels);
    plan.group =
        cut(job->n_rows, n_groups ? n_groups : 1, PTAC_ACT_ROW_BLOCK, &plan.n_groups);
    ptac_parallel_for(0, plan.n_panels * plan.n_groups,
                      MIN_WORK / (plan.group * plan.panel) + 1, run_pieces, &plan);
    if (plan.n_groups > 1)
        add_groups(&plan);
}

void ptac_bias_act_backward(const ptac_bias_act *by, const ptac_act_backward *job)
{
    if (job->n_cols == 0)
        return;
    if (job->gb)
        run_with_sums(job, by->sum[job->act]);
    else if (job->gz)
        ptac_parallel_for(0, job->n_rows * job->n_cols, MIN_WORK,
                          by->backward[job->act], (void *)job);
}
