/*
 * launch.c - units, their machine code, and launches.
 */
#include "device/cuda/launch.h"

#define LOAD(value)       __atomic_load_n(&(value), __ATOMIC_ACQUIRE)
#define STORE(value, new) __atomic_store_n(&(value), new, __ATOMIC_RELEASE)

static ptac_cuda_unit *units;

void ptac_cuda_unit_add(ptac_cuda_unit *unit)
{
    unit->next = units;
    units = unit;
}

ptac_cuda_unit *ptac_cuda_units(void)
{
    return units;
}

ptac_reason ptac_cuda_ask(ptac_cuda_unit *unit)
{
    int state = LOAD(unit->state);

    if (state == PTAC_CUDA_READY)
        return PTAC_TAKE;
    if (state == PTAC_CUDA_UNASKED)
        __atomic_compare_exchange_n(&unit->state, &state, PTAC_CUDA_WANTED, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return state == PTAC_CUDA_BROKEN ? PTAC_QUARANTINED : PTAC_COMPILING;
}

const char *ptac_cuda_give(ptac_cuda_unit *unit, const void *code)
{
    cu_result result;

    if (!ptac_cuda.library_load || !ptac_cuda.library_kernel || !ptac_cuda.launch) {
        STORE(unit->state, PTAC_CUDA_BROKEN);
        return "the NVIDIA driver is too old: it lacks cuLibraryLoadData";
    }
    result = ptac_cuda.library_load(&unit->library, code, NULL, NULL, 0, NULL, NULL, 0);
    STORE(unit->state, result == PTAC_CU_OK ? PTAC_CUDA_READY : PTAC_CUDA_BROKEN);
    return result == PTAC_CU_OK ? NULL : ptac_cuda_text(result);
}

static cu_result find(ptac_cuda_kernel *kernel, cu_kernel *found)
{
    cu_result result = PTAC_CU_OK;

    *found = LOAD(kernel->found);
    if (!*found) {
        result = ptac_cuda.library_kernel(found, kernel->unit->library, kernel->name);
        if (result == PTAC_CU_OK)
            STORE(kernel->found, *found);
    }
    return result;
}

ptac_status ptac_cuda_launch(ptac_cuda_kernel *kernel, const ptac_call *call,
                             int64_t n_blocks, int n_threads, void **parameters)
{
    cu_kernel found;
    cu_result result = find(kernel, &found);

    if (result == PTAC_CU_OK)
        result = ptac_cuda.launch(found, (unsigned int)n_blocks, 1, 1,
                                  (unsigned int)n_threads, 1, 1, 0, call->stream,
                                  parameters, NULL);
    if (result == PTAC_CU_OK)
        return PTAC_OK;
    ptac_error_set("launch of %s: %s", kernel->name, ptac_cuda_text(result));
    return PTAC_FAILED;
}
