/*
 * launch.h - calls of our kernels on a CUDA device.
 *
 * A unit is a .cu file. Its machine code is made elsewhere: when the package is built,
 * or by a thread of Python's once a call has asked for the unit. Until there is any,
 * stock does the calls.
 */
#ifndef PTAC_DEVICE_CUDA_LAUNCH_H
#define PTAC_DEVICE_CUDA_LAUNCH_H

#include "core/kernel.h"
#include "device/cuda/driver.h"

typedef enum ptac_cuda_state {
    PTAC_CUDA_UNASKED = 0,
    PTAC_CUDA_WANTED, /* a call would be served if there were machine code */
    PTAC_CUDA_READY,
    PTAC_CUDA_BROKEN, /* there will be none: it does not compile or load */
} ptac_cuda_state;

typedef struct ptac_cuda_unit {
    const char *name; /* of the file, without its ending */
    int state;        /* ptac_cuda_state; read by any thread */
    cu_library library;
    struct ptac_cuda_unit *next;
} ptac_cuda_unit;

/* A kernel of a unit, looked up when it is first launched. */
typedef struct ptac_cuda_kernel {
    ptac_cuda_unit *unit;
    const char *name;
    cu_kernel found;
} ptac_cuda_kernel;

void ptac_cuda_unit_add(ptac_cuda_unit *unit);

/* A unit of this program; announces itself when the library is loaded. */
#define PTAC_CUDA_UNIT(file)                                                           \
    static ptac_cuda_unit unit_##file = {.name = #file};                               \
    __attribute__((constructor)) static void add_unit_##file(void)                     \
    {                                                                                  \
        ptac_cuda_unit_add(&unit_##file);                                              \
    }

/* A unit's kernels by the type of their elements, an array; names end in the type's. */
#define PTAC_CUDA_KERNELS(file, prefix)                                                \
    {                                                                                  \
        [PTAC_F32] = {&unit_##file, prefix "_f32", NULL},                              \
        [PTAC_BF16] = {&unit_##file, prefix "_bf16", NULL},                            \
        [PTAC_F64] = {&unit_##file, prefix "_f64", NULL},                              \
        [PTAC_F16] = {&unit_##file, prefix "_f16", NULL},                              \
    }

/* The first unit; the others follow by next. */
ptac_cuda_unit *ptac_cuda_units(void);

/* PTAC_TAKE where the unit has machine code; else why not, and it is wanted. */
ptac_reason ptac_cuda_ask(ptac_cuda_unit *unit);

/*
 * Have somebody told, by whoever asks, that there are units that are wanted: once for
 * each of them, and once in a child of a fork, which lacks the parent's threads. tell()
 * does not wait, and says whether it has told; else the next who asks tries again. NULL
 * for nobody, which is how a program begins.
 */
void ptac_cuda_when_wanted(bool (*tell)(void));

/*
 * Give a unit its machine code, a CUBIN, PTX or a fat binary that the driver copies.
 * The driver is loaded. NULL, or why the code does not load: the unit is as it was, and
 * may be given other code.
 */
const char *ptac_cuda_give(ptac_cuda_unit *unit, const void *code);

/* There will be no code for this unit, unless it has some already. */
void ptac_cuda_give_up(ptac_cuda_unit *unit);

/*
 * Launch a kernel of a unit that is ready, n_blocks of n_threads along x, behind what
 * is in the call's stream; parameters are the addresses of the kernel's. PTAC_FAILED,
 * with the driver's words, where the driver refuses. PTAC_NOT_YET where a graph is
 * captured and the kernel has never been launched: the driver loads it then, for which
 * it may wait, and that would end the capture.
 */
ptac_status ptac_cuda_launch(ptac_cuda_kernel *kernel, const ptac_call *call,
                             int64_t n_blocks, int n_threads, void **parameters);

#define PTAC_PARAMETERS(...)                                                           \
    (void *[])                                                                         \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }

#endif
