/*
 * cublaslt.c - the stand-in for cuBLASLt as a library of the emulated devices.
 *
 * It is found by the name of the real one. Products are launches of their stream, by
 * the name of "product_" and the epilogue, with "_tf32" where that is allowed.
 */
#include "device.h"
#include "emulated_lt.h"

#include <stdio.h>

static bool begin(void *stream, uint32_t epilogue, int compute)
{
    char name[32];

    snprintf(name, sizeof name, "product_%u%s", epilogue,
             compute == PTAC_LT_COMPUTE_TF32 ? "_tf32" : "");
    return emulated_begin(name, stream);
}

__attribute__((constructor)) static void follow_the_devices(void)
{
    emulated_lt.begin = begin;
    emulated_lt.end = emulated_close;
}

/* The heuristic refuses this epilogue from now on; 0: none any more. */
EMULATED_API void emulated_refuse(uint32_t epilogue)
{
    static int n;

    if (!epilogue)
        n = 0;
    else
        emulated_lt.refused[n++] = epilogue;
    emulated_lt.refused[n] = 0;
}

/* Products give this status from now on; 0: they are computed. */
EMULATED_API void emulated_break(int status)
{
    emulated_lt.failure = status;
}

/* How often the heuristic was asked. */
EMULATED_API int emulated_heuristics(void)
{
    return emulated_lt.n_heuristics;
}

/* What the library was last misused by, or NULL. */
EMULATED_API const char *emulated_misuse(void)
{
    return emulated_lt.misuse;
}
