/*
 * bias_act_cuda.c - launches of bias_act.cu.
 */
#include "ops/linear/cuda/bias_act_cuda.h"

#include "device/cuda/launch.h"
#include "ops/linear/cuda/bias_act_launch.h"

enum {
    ROWS_OF_A_THREAD = 8, /* enough loads in flight, and blocks for all processors */
    MOST_GROUPS = 128,    /* partial sums of a column that a thread adds up */
    PACK_BYTES = 16,
};

PTAC_CUDA_UNIT(bias_act)

static ptac_cuda_kernel forward[] = PTAC_CUDA_KERNELS(bias_act, "bias_act");
static ptac_cuda_kernel forward_wide[] = PTAC_CUDA_KERNELS(bias_act, "bias_act_wide");
static ptac_cuda_kernel backward[] = PTAC_CUDA_KERNELS(bias_act, "bias_act_grad");
static ptac_cuda_kernel backward_wide[] =
    PTAC_CUDA_KERNELS(bias_act, "bias_act_grad_wide");
static ptac_cuda_kernel sum[] = PTAC_CUDA_KERNELS(bias_act, "bias_grad");

ptac_reason ptac_bias_act_ask(void)
{
    return ptac_cuda_ask(&unit_bias_act);
}

/* Groups of rows of which no column's sums are more than most. */
static ptac_bias_act_tiles cover(int64_t n_rows, int64_t n_cols, int64_t most)
{
    const int64_t units = ptac_parts(n_cols, PTAC_BIAS_ACT_UNIT);
    ptac_bias_act_tiles t = {.n_rows = n_rows, .n_cols = n_cols, .width = 1};
    int64_t lines;

    while (t.width < PTAC_BIAS_ACT_THREADS && t.width < units)
        t.width *= 2;
    lines = PTAC_BIAS_ACT_THREADS / t.width;
    t.n_across = (int)ptac_parts(units, t.width);
    t.group = lines * ROWS_OF_A_THREAD;
    if (ptac_parts(n_rows, t.group) > most)
        t.group = ptac_parts(ptac_parts(n_rows, most), lines) * lines;
    return t;
}

static int64_t n_groups_of(const ptac_bias_act_tiles *t)
{
    return ptac_parts(t->n_rows, t->group);
}

size_t ptac_bias_grad_bytes(int64_t n_rows, int64_t n_cols)
{
    const ptac_bias_act_tiles t = cover(n_rows, n_cols, MOST_GROUPS);

    return (size_t)(n_groups_of(&t) * n_cols) * sizeof(float);
}

/* Whether a matrix can be read in packs, also one that is not there. */
static bool is_wide(const void *data, int64_t ld, ptac_dtype dtype)
{
    const int64_t bytes = ld * (dtype == PTAC_F32 ? 4 : 2);

    return !data || ((uintptr_t)data | (uintptr_t)bytes) % PACK_BYTES == 0;
}

ptac_status ptac_bias_act_forward_on(const ptac_act_forward_cuda *job,
                                     const ptac_call *call)
{
    const ptac_dtype dtype = job->dtype;
    const bool wide =
        job->n_cols % PTAC_BIAS_ACT_UNIT == 0 && is_wide(job->z, job->ldz, dtype) &&
        is_wide(job->bias, 0, dtype) && is_wide(job->y, job->ldy, dtype) &&
        is_wide(job->kept, job->ldkept, dtype);
    ptac_cuda_kernel *kernels = wide ? forward_wide : forward;
    ptac_act_forward_cuda j = *job;
    ptac_bias_act_tiles tiles = cover(j.n_rows, j.n_cols, INT32_MAX);
    ptac_bias_act_lds ld = {j.ldz, j.ldy, j.ldkept, j.ldmask};
    int act = (int)j.act;

    return ptac_cuda_launch(
        &kernels[dtype], call, n_groups_of(&tiles) * tiles.n_across,
        PTAC_BIAS_ACT_THREADS,
        PTAC_PARAMETERS(&j.z, &j.bias, &j.y, &j.kept, &j.mask, &tiles, &ld, &act));
}

ptac_status ptac_bias_act_backward_on(const ptac_act_backward_cuda *job,
                                      const ptac_call *call)
{
    const ptac_dtype dtype = job->dtype;
    const bool wide =
        job->n_cols % PTAC_BIAS_ACT_UNIT == 0 && is_wide(job->g, job->ldg, dtype) &&
        is_wide(job->saved, job->ldsaved, dtype) && is_wide(job->gz, job->ldgz, dtype);
    ptac_cuda_kernel *kernels = wide ? backward_wide : backward;
    ptac_act_backward_cuda j = *job;
    ptac_bias_act_tiles tiles =
        cover(j.n_rows, j.n_cols, j.gb ? MOST_GROUPS : INT32_MAX);
    ptac_bias_act_grad_lds ld = {j.ldg, j.ldsaved, j.ldmask, j.ldgz};
    int act = (int)j.act, n_groups = (int)n_groups_of(&tiles);
    ptac_status status;

    if (!j.gb)
        j.partials = NULL;
    status = ptac_cuda_launch(&kernels[dtype], call, (int64_t)n_groups * tiles.n_across,
                              PTAC_BIAS_ACT_THREADS,
                              PTAC_PARAMETERS(&j.g, &j.saved, &j.mask, &j.gz,
                                              &j.partials, &tiles, &ld, &act));
    if (status != PTAC_OK || !j.gb)
        return status;
    return ptac_cuda_launch(&sum[dtype], call,
                            ptac_parts(j.n_cols, PTAC_BIAS_ACT_THREADS),
                            PTAC_BIAS_ACT_THREADS,
                            PTAC_PARAMETERS(&j.partials, &j.gb, &j.n_cols, &n_groups));
}
