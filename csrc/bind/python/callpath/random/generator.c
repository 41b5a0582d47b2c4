/*
 * generator.c - showing the extension torch's generators, see bind/torch/generator.h.
 *
 * A generator goes by its address, torch.Generator._cdata. All are private ones, which
 * the caller keeps alive.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/generator.h"
#include "ops/random/bernoulli.h"

#include <string.h>

enum {
    MOST_SAMPLES = 8,
};

/* The address that a number is; NULL with an exception set where it is none. */
static void *address_of(PyObject *number)
{
    void *address = PyLong_AsVoidPtr(number);

    if (!address && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "the address of a generator is expected");
    return address;
}

/* What get_state() has told; false with TypeError set where it is something else. */
static bool read_state(PyObject *tensor, ptac_mt19937 *state)
{
    ptac_view view = {NULL};

    if (ptac_is_plain(tensor))
        ptac_view_of(ptac_borrow(tensor), &view);
    if (!view.data || !ptac_view_is_contiguous(&view) ||
        view.n_elements < (int64_t)sizeof *state) {
        PyErr_Format(PyExc_TypeError, "the state of a generator is expected");
        return false;
    }
    memcpy(state, view.data, sizeof *state);
    return true;
}

/* generator_learn(((address, state), ...)) -> whether it is known where states lie. */
PTAC_O(generator_learn, samples)
{
    ptac_mt19937 states[MOST_SAMPLES];
    const ptac_mt19937 *told[MOST_SAMPLES];
    void *generators[MOST_SAMPLES];
    const Py_ssize_t n = PyTuple_Check(samples) ? PyTuple_Size(samples) : 0;

    if (n < 2 || n > MOST_SAMPLES)
        return PyErr_Format(PyExc_TypeError, "a tuple of some samples is expected");
    for (int i = 0; i < n; i++) {
        PyObject *number, *state;

        if (!PyArg_ParseTuple(PyTuple_GetItem(samples, i), "OO", &number, &state))
            return NULL;
        generators[i] = address_of(number);
        told[i] = &states[i];
        if (!generators[i] || !read_state(state, &states[i]))
            return NULL;
    }
    return PyBool_FromLong(ptac_generator_learn(generators, told, (int)n));
}

/* generator_try_lock(address) -> whether it is locked now */
PTAC_O(generator_try_lock, number)
{
    void *generator = address_of(number);

    return generator ? PyBool_FromLong(ptac_generator_try_lock(generator)) : NULL;
}

/* generator_is_awaited(address) -> whether a thread waits for the lock */
PTAC_O(generator_is_awaited, number)
{
    void *generator = address_of(number);

    return generator ? PyBool_FromLong(ptac_generator_is_awaited(generator)) : NULL;
}

/* generator_end_try(address, whether the lock is proved), by the thread that has it */
PTAC_ARGS(generator_end_try, 2)
{
    void *generator = address_of(args[0]);

    if (!generator)
        return NULL;
    ptac_generator_end_try(generator, args[1] == Py_True);
    Py_RETURN_NONE;
}

/* generator_set_proved(whether ours draws as torch does) */
PTAC_O(generator_set_proved, is_proved)
{
    ptac_generator_set_proved(is_proved == Py_True);
    Py_RETURN_NONE;
}

/*
 * bernoulli_draw(x, p, address) -> whether ours has drawn x from that generator. For
 * the proof: by the row that this CPU prefers, whatever gate and table say.
 */
PTAC_ARGS(bernoulli_draw, 3)
{
    ptac_bernoulli params = {.p = PyFloat_AsDouble(args[1])};
    ptac_call call = {.op = PTAC_OP_BERNOULLI,
                      .n_inputs = 1,
                      .n_outputs = 1,
                      .n_threads = 1,
                      .params = &params};
    const ptac_kernel *row = ptac_registry_preferred(call.op, PTAC_EXACT);
    void *generator = PyErr_Occurred() ? NULL : address_of(args[2]);
    ptac_held_engine held;
    bool done;

    if (!generator)
        return NULL;
    if (!ptac_is_plain(args[0]))
        Py_RETURN_FALSE;
    ptac_view_of(ptac_borrow(args[0]), &call.inputs[0]);
    if (!row || row->accepts(&call) || !ptac_view_is_contiguous(&call.inputs[0]))
        Py_RETURN_FALSE;
    held = ptac_generator_hold(generator);
    params.engine = held.engine;
    call.outputs[0] = call.inputs[0];
    done = held.engine && row->run(&call) == PTAC_OK;
    ptac_generator_let_go(&held);
    return PyBool_FromLong(done);
}
