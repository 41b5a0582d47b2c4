/*
 * frame.c - finding the frame, and proving that it is laid out as we think.
 */
#include "bind/python/module/names.h"
#include "bind/python/interpreter/frame.h"

#include <dlfcn.h>
#include <string.h>

/* Where CPython 3.11 has them: _f_frame of a frame's object, cframe of a thread's state
   (cpython/pystate.h), current_frame of that. */
enum {
    FRAME_OF_OBJECT = 24,
    CFRAME_OF_THREAD = 56,
    FRAME_OF_CFRAME = 8,
};

static bool is_known;

static PyThreadState *(*first_thread)(PyInterpreterState *);
static PyThreadState *(*next_thread)(PyThreadState *);
static int (*last_instruction)(PyFrameObject *);

static const void *pointer_at(const void *start, size_t offset)
{
    const void *pointer;

    memcpy(&pointer, (const char *)start + offset, sizeof pointer);
    return pointer;
}

static const ptac_frame *innermost(const PyThreadState *thread)
{
    const void *cframe = pointer_at(thread, CFRAME_OF_THREAD);

    return cframe ? pointer_at(cframe, FRAME_OF_CFRAME) : NULL;
}

const ptac_frame *ptac_frame_now(void)
{
    return is_known ? innermost(PyThreadState_Get()) : NULL;
}

int ptac_frame_offset(void)
{
    PyFrameObject *object = PyEval_GetFrame();

    return object ? last_instruction(object) : -1;
}

bool ptac_frame_is_alive(const PyThreadState *thread, const ptac_frame *frame)
{
    const PyThreadState *t = first_thread(PyInterpreterState_Get());

    while (t && t != thread)
        t = next_thread((PyThreadState *)t);
    if (!t)
        return false;
    for (const ptac_frame *f = innermost(t); f; f = f->previous)
        if (f == frame)
            return true;
    return false;
}

/* What frame objects say of the caller and its caller, and the first variable. */
static bool is_as_expected(const ptac_frame *f, PyFrameObject *object, PyObject *first)
{
    PTAC_OWNED PyObject *code = (PyObject *)PyFrame_GetCode(object);
    PTAC_OWNED PyObject *back = PyObject_GetAttr((PyObject *)object, ptac_names.f_back);

    PyErr_Clear();
    return f->object == (PyObject *)object && f->code == code &&
           f->globals == PyEval_GetGlobals() && f->builtins == PyEval_GetBuiltins() &&
           f->slots[0] == first && back && back != Py_None &&
           f->previous == pointer_at(back, FRAME_OF_OBJECT) &&
           innermost(PyThreadState_Get()) == f;
}

/*
 * frame_learn(first), called twice by one Python function, of CPython 3.11, whose first
 * variable that is: whether both calls found its frame where and as it should be.
 */
PTAC_O(frame_learn, first)
{
    static const ptac_instruction *place;
    static int number;
    static bool was_right;
    PyFrameObject *object = PyEval_GetFrame();
    const ptac_frame *f = object ? pointer_at(object, FRAME_OF_OBJECT) : NULL;
    const ptac_instruction *const place_before = place;
    const int number_before = number;
    const bool was_right_before = was_right;

    first_thread = dlsym(RTLD_DEFAULT, "PyInterpreterState_ThreadHead");
    next_thread = dlsym(RTLD_DEFAULT, "PyThreadState_Next");
    last_instruction = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
    was_right = f && first_thread && next_thread && last_instruction &&
                is_as_expected(f, object, first);
    if (was_right) {
        place = f->at;
        number = last_instruction(object);
    }
    is_known =
        was_right && was_right_before && number != number_before &&
        (place - place_before) * (Py_ssize_t)sizeof *place == number - number_before;
    return PyBool_FromLong(is_known);
}
