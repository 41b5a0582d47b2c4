/*
 * faulty_rows.c - a row of max_pool2d on CUDA with one fault, which must be found.
 *
 * Linked into a program of its own. The environment variable PTAC_BAD_ROW names the
 * fault; the row does what "cuda" does, and that.
 */
#include "device/cuda/launch.h"

#include <stdlib.h>
#include <string.h>

static const char *fault = "";
static ptac_cuda_unit unit = {.name = "faulty_rows"};
static ptac_cuda_kernel move = {.unit = &unit, .name = "move"};

static bool is(const char *name)
{
    return strcmp(fault, name) == 0;
}

static const ptac_kernel *cuda(void)
{
    int n;
    const ptac_kernel *const *rows =
        ptac_registry_rows_on(PTAC_ON_CUDA, PTAC_OP_MAX_POOL2D, &n);

    return strcmp(rows[0]->name, "cuda") == 0 ? rows[0] : rows[1];
}

static ptac_reason accepts(const ptac_call *call)
{
    if (is("looks_at_the_first_input"))
        return *(const volatile char *)call->inputs[0].data == 1
                   ? PTAC_VALUES
                   : cuda()->accepts(call);
    if (is("takes_nothing_typical") && call->inputs[0].n_elements > 100000)
        return PTAC_SHAPE;
    return cuda()->accepts(call);
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
    status = cuda()->run(call);
    if (!status && is("launches_twice"))
        status = launch(call, 0, 0);
    if (!status && is("moves_more"))
        status = launch(call, y->n_elements / half, 0);
    if (!status && is("rounds_wrongly") && half == 2 && y->n_elements % 2 == 0)
        status = launch(call, y->n_elements / half, 1);
    return status;
}

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
}
