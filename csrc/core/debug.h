/*
 * debug.h - what must hold, checked where the code is compiled with -DPTAC_DEBUG.
 *
 * The sanitizer lane of the C tests is; the shipped library is not, and evaluates
 * nothing. Conditions are therefore without side effects.
 */
#ifndef PTAC_CORE_DEBUG_H
#define PTAC_CORE_DEBUG_H

#ifdef PTAC_DEBUG
#include <stdio.h>
#include <stdlib.h>

static inline _Noreturn void ptac_debug_abort(const char *file, int line,
                                              const char *text)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
    abort();
}

/* Ends the process, naming file, line and text, where the condition is false. */
#define PTAC_ASSERT(condition)                                                         \
    ((condition) ? (void)0 : ptac_debug_abort(__FILE__, __LINE__, #condition))
#else
#define PTAC_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

#endif
