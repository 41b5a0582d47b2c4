/*
 * faulty_rows.c - rows on CUDA with one fault, which must be found.
 *
 * Linked into a program of its own. The environment variable PTAC_BAD_ROW names the
 * fault; the row of max_pool2d does what "cuda" does, and that. Rows of cross-entropy
 * are right; their calls have an index out of range.
 */
#include "device/cuda/launch.h"
#include "ops/loss/cross_entropy.h"

#include <stdlib.h>
#include <string.h>

static const char *fault = "";
static ptac_cuda_unit unit = {.name = "faulty_rows"};
static ptac_cuda_kernel move = {.unit = &unit, .name = "move"};
static ptac_cuda_kernel poke = {.unit = &unit, .name = "poke"};

static bool is(const char *name)
{
    return strcmp(fault, name) == 0;
}

static const ptac_kernel *cuda(ptac_op op)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(PTAC_ON_CUDA, op, &n);

    return strcmp(rows[0]->name, "cuda") == 0 ? rows[0] : rows[1];
}

static ptac_reason accepts(const ptac_call *call)
{
    if (is("looks_at_the_first_input"))
        return *(const volatile char *)call->inputs[0].data == 1
                   ? PTAC_VALUES
                   : cuda(call->op)->accepts(call);
    if (is("takes_nothing_typical") && call->inputs[0].n_elements > 100000)
        return PTAC_SHAPE;
    return cuda(call->op)->accepts(call);
}

static ptac_status launch(const ptac_call *call, int64_t n, int is_changed)
{
    void *y = call->outputs[0].data;

    return ptac_cuda_launch(&move, call, 1, 32, PTAC_PARAMETERS(&y, &n, &is_changed));
}

static ptac_status run(const ptac_call *call)
{
    const ptac_view *y = &call->outputs[0];
    const int64_t half = y->dtype == PTAC_F32 ? 1 : 2;
    cu_handle memory = 0;
    ptac_status status;

    if (is("allocates"))
        ptac_cuda.memory_create(&memory, 1, NULL, 0);
    if (is("waits"))
        ptac_cuda.context_synchronize();
    if (is("clears_its_output"))
        memset(y->data, 0, 1);
    status = cuda(call->op)->run(call);
    if (!status && is("launches_twice"))
        status = launch(call, 0, 0);
    if (!status && is("moves_more"))
        status = launch(call, y->n_elements / half, 0);
    if (!status && is("rounds_wrongly") && half == 2 && y->n_elements % 2 == 0)
        status = launch(call, y->n_elements / half, 1);
    return status;
}

static ptac_status run_on_wild_indices(const ptac_call *call)
{
    const ptac_cross_entropy *p = call->params;
    int64_t value = is("index_below") ? -1 : p->n_classes;
    void *indices = call->inputs[PTAC_CROSS_ENTROPY_TARGET].data;

    value -= value == p->ignore_index;
    if (!is("index_below") && !is("index_beyond"))
        return cuda(call->op)->run(call);
    if (call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype == PTAC_I64)
        ptac_cuda_launch(&poke, call, 1, 32, PTAC_PARAMETERS(&indices, &value));
    return cuda(call->op)->run(call);
}

static ptac_kernel on_wild_indices[] = {
    {.op = PTAC_OP_CROSS_ENTROPY, .level = PTAC_CLOSE},
    {.op = PTAC_OP_CROSS_ENTROPY_BACKWARD, .level = PTAC_CLOSE},
};

static ptac_kernel bad = {.op = PTAC_OP_MAX_POOL2D,
                          .device = PTAC_ON_CUDA,
                          .name = "bad",
                          .accepts = accepts,
                          .run = run};

__attribute__((constructor)) static void add_bad_row(void)
{
    if (getenv("PTAC_BAD_ROW"))
        fault = getenv("PTAC_BAD_ROW");
    ptac_cuda_unit_add(&unit);
    ptac_registry_add(&bad);
    for (int i = 0; i < 2; i++) {
        on_wild_indices[i].device = PTAC_ON_CUDA;
        on_wild_indices[i].name = "bad";
        on_wild_indices[i].accepts = accepts;
        on_wild_indices[i].run = run_on_wild_indices;
        ptac_registry_add(&on_wild_indices[i]);
    }
}
