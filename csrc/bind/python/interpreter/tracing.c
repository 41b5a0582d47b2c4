/*
 * tracing.c - learning where a thread's state keeps its tracing functions.
 *
 * The stable ABI does not tell (c_profilefunc and c_tracefunc of CPython's
 * cpython/pystate.h). Three pictures are taken of a thread's state: without any, with a
 * profiling function, with a tracing function. Each of them, and an object beside it,
 * are words that are set in one picture only.
 */
#include "bind/python/interpreter/tracing.h"

#include <string.h>

enum {
    BARE,
    PROFILED,
    TRACED,
    N_PICTURES,
    N_WORDS = 32, /* all of the state that is looked at; it is longer */
};

static uintptr_t pictures[N_PICTURES][N_WORDS];
static size_t profile_word, trace_word; /* 0: not known */

bool ptac_thread_is_traced(void)
{
    const uintptr_t *state = (const uintptr_t *)PyThreadState_Get();

    return trace_word && (state[profile_word] | state[trace_word]) != 0;
}

/* tracing_picture(which): of this thread as it is. */
PTAC_OF_NUMBER(tracing_picture)
{
    if (number < 0 || number >= N_PICTURES)
        return PyErr_Format(PyExc_ValueError, "there are three pictures");
    memcpy(pictures[number], PyThreadState_Get(), sizeof pictures[number]);
    Py_RETURN_NONE;
}

/* The first word that is set in one picture and in no other; 0 where there is none. */
static size_t word_of(int picture)
{
    for (size_t i = 0; i < N_WORDS; i++)
        if (pictures[picture][i] && !pictures[BARE][i] &&
            !pictures[PROFILED + TRACED - picture][i])
            return i;
    return 0;
}

/* tracing_learn() -> whether the pictures show it. */
PTAC_NOARGS(tracing_learn)
{
    profile_word = word_of(PROFILED);
    trace_word = word_of(TRACED);
    if (!profile_word || !trace_word)
        profile_word = trace_word = 0;
    return PyBool_FromLong(trace_word != 0);
}
