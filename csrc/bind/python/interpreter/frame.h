/*
 * frame.h - the Python function that calls us, as its interpreter has it.
 *
 * The stable ABI shows frames as objects, which have to be made, and which tell neither
 * a local variable nor what lies on the stack. This is the frame itself, as CPython
 * 3.11 lays it out (internal/pycore_frame.h). Nothing is read of it before
 * frame_learn() has found all of that confirmed in the running interpreter.
 */
#ifndef PTAC_BIND_PYTHON_INTERPRETER_FRAME_H
#define PTAC_BIND_PYTHON_INTERPRETER_FRAME_H

#include "bind/python/module/pybind.h"

typedef uint16_t ptac_instruction;

typedef struct ptac_frame {
    PyObject *function, *globals, *builtins, *locals;
    PyObject *code, *object;
    struct ptac_frame *previous;
    const ptac_instruction *at; /* the last one that has begun */
    int stack_top;
    bool is_entry;
    char owner;
    PyObject *slots[]; /* variables, then what lies on the stack; NULL: nothing */
} ptac_frame;

/* The frame of this thread's innermost Python function; NULL: it is not known how. */
const ptac_frame *ptac_frame_now(void);

/* The offset in bytes of the instruction that this frame is at; -1: there is none. */
int ptac_frame_offset(void);

/* Whether a frame, which may be gone by now, is one of that thread's. */
bool ptac_frame_is_alive(const PyThreadState *thread, const ptac_frame *frame);

#endif
