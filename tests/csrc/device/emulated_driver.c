/*
 * emulated_driver.c - a CUDA device for checkrows: kernels are run by the emulation.
 *
 * With this file the program runs the rows of CUDA instead of the CPU's. The driver's
 * functions take what the real ones take, and refuse what those refuse. A row may but
 * launch: each other function ends the program, and so does touching the device's
 * memory outside of a kernel.
 */
#include "arena.h"
#include "device/cuda/launch.h"
#include "emulated_kernels.h"
#include "faults.h"
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    INVALID_VALUE = 1, /* the driver's numbers */
    NOT_FOUND = 500,
    SUCCESS = 0,
};

static char a_stream; /* of which only the address matters */

static cu_result load(cu_library *library, const void *code, cu_jit_option *options,
                      void **values, unsigned int n_options,
                      cu_library_option *library_options, void **library_values,
                      unsigned int n_library_options)
{
    (void)options, (void)values, (void)library_options, (void)library_values;
    if (n_options || n_library_options)
        return INVALID_VALUE;
    return emulated_library(library, code);
}

static cu_result launch(cu_function kernel, unsigned int blocks_x,
                        unsigned int blocks_y, unsigned int blocks_z,
                        unsigned int threads_x, unsigned int threads_y,
                        unsigned int threads_z, unsigned int shared_bytes,
                        cu_stream stream, void **parameters, void **extra)
{
    const emulated_grid grid = {{blocks_x, blocks_y, blocks_z},
                                {threads_x, threads_y, threads_z}};

    if (stream != (cu_stream)(void *)&a_stream || shared_bytes || extra)
        return INVALID_VALUE;

    const bool was_forbidden = arena_forbid(false);
    const bool done = emulator_launch(kernel, &grid, parameters);

    arena_forbid(was_forbidden);
    return done ? SUCCESS : INVALID_VALUE;
}

/* What would allocate, wait or copy: never returns. */
static void refuse(const char *symbol)
{
    printf("FAIL %s\n  the row called %s\n", faults_noted(), symbol);
    fflush(stdout);
    _Exit(1);
}

#define F(member, symbol, parameters)                                                  \
    static void refuse_##member(void)                                                  \
    {                                                                                  \
        refuse(#symbol);                                                               \
    }
PTAC_CUDA_FUNCTIONS(F)
#undef F

static cu_result error_text(cu_result result, const char **text)
{
    *text = result == NOT_FOUND ? "no such kernel" : "an invalid value";
    return SUCCESS;
}

/* A question, which rows may ask. */
static cu_result is_capturing(cu_stream stream, cu_capture_status *status)
{
    *status = 0;
    return stream == (cu_stream)(void *)&a_stream ? SUCCESS : INVALID_VALUE;
}

static device_work work(void)
{
    const emulated_work done = emulator_work();

    return (device_work){done.n_launches, done.bytes_read, done.bytes_written,
                         done.n_accesses};
}

static void begin(void)
{
    ptac_cuda.library_load = load;
    ptac_cuda.library_kernel = emulated_kernel;
    ptac_cuda.launch = launch;
    for (ptac_cuda_unit *unit = ptac_cuda_units(); unit; unit = unit->next)
        if (ptac_cuda_give(unit, emulated_machine_code))
            abort();
#define F(member, symbol, parameters)                                                  \
    ptac_cuda.member = (cu_result(*) parameters)(void (*)(void))refuse_##member;
    PTAC_CUDA_FUNCTIONS(F)
#undef F
    ptac_cuda.error_text = error_text;
    ptac_cuda.stream_is_capturing = is_capturing;
}

__attribute__((constructor)) static void bring(void)
{
    the_device = (tested_device){
        .device = PTAC_ON_CUDA,
        .begin = begin,
        .stream = &a_stream,
        .set_order = emulator_set_order,
        .work = work,
    };
}
