/*
 * launch.c - units, their machine code, and launches.
 */
#include "device/cuda/launch.h"

#include <pthread.h>

#define LOAD(value)       __atomic_load_n(&(value), __ATOMIC_ACQUIRE)
#define STORE(value, new) __atomic_store_n(&(value), new, __ATOMIC_RELEASE)

static ptac_cuda_unit *units;

static bool (*tell_wanted)(void);
static bool must_tell; /* of a unit that nobody has been told of */

static void have_told_again(void)
{
    STORE(must_tell, true);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, have_told_again);
}

void ptac_cuda_when_wanted(bool (*tell)(void))
{
    STORE(tell_wanted, tell);
    STORE(must_tell, true);
}

static void say_wanted(void)
{
    bool (*tell)(void) = LOAD(tell_wanted);

    if (tell && __atomic_exchange_n(&must_tell, false, __ATOMIC_ACQ_REL) && !tell())
        STORE(must_tell, true);
}

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
    if (state == PTAC_CUDA_BROKEN)
        return PTAC_QUARANTINED;
    if (state == PTAC_CUDA_UNASKED &&
        __atomic_compare_exchange_n(&unit->state, &state, PTAC_CUDA_WANTED, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        STORE(must_tell, true);
    if (LOAD(must_tell))
        say_wanted();
    return PTAC_COMPILING;
}

/* Another thread may be capturing a graph, which forbids most of the driver to all. */
static cu_result load(cu_library *library, const void *code)
{
    cu_capture_mode mode = PTAC_CU_CAPTURE_MODE_RELAXED;
    const bool is_relaxed =
        ptac_cuda.capture_mode && ptac_cuda.capture_mode(&mode) == PTAC_CU_OK;
    const cu_result result =
        ptac_cuda.library_load(library, code, NULL, NULL, 0, NULL, NULL, 0);

    if (is_relaxed)
        ptac_cuda.capture_mode(&mode);
    return result;
}

const char *ptac_cuda_give(ptac_cuda_unit *unit, const void *code)
{
    cu_result result;

    if (LOAD(unit->state) == PTAC_CUDA_READY)
        return NULL;
    if (!ptac_cuda.library_load || !ptac_cuda.library_kernel || !ptac_cuda.launch)
        return "driver too old: it lacks cuLibraryLoadData";
    result = load(&unit->library, code);
    if (result != PTAC_CU_OK)
        return ptac_cuda_text(result);
    STORE(unit->state, PTAC_CUDA_READY);
    return NULL;
}

void ptac_cuda_give_up(ptac_cuda_unit *unit)
{
    if (LOAD(unit->state) != PTAC_CUDA_READY)
        STORE(unit->state, PTAC_CUDA_BROKEN);
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

static bool may_load(const ptac_call *call)
{
    cu_capture_status status = 0;

    /* An error: another stream is captured, in whose place the default one stands. */
    return !ptac_cuda.stream_is_capturing ||
           (!ptac_cuda.stream_is_capturing(call->stream, &status) && !status);
}

ptac_status ptac_cuda_launch(ptac_cuda_kernel *kernel, const ptac_call *call,
                             int64_t n_blocks, int n_threads, void **parameters)
{
    cu_kernel found;
    cu_result result;

    if (!LOAD(kernel->found) && !may_load(call))
        return PTAC_NOT_YET;
    result = find(kernel, &found);
    if (result == PTAC_CU_OK)
        result = ptac_cuda.launch(found, (unsigned int)n_blocks, 1, 1,
                                  (unsigned int)n_threads, 1, 1, 0, call->stream,
                                  parameters, NULL);
    if (result == PTAC_CU_OK)
        return PTAC_OK;
    ptac_error_set("launch of %s: %s", kernel->name, ptac_cuda_text(result));
    return PTAC_FAILED;
}
