/*
 * cuda_kernels.c - machine code for CUDA kernels, between launch.c and the package.
 *
 * Where a unit is wanted a thread of ours calls Python. It is there only while there is
 * something to do, so that a fork or the end of the program hardly ever meets it.
 */
#include "bind/python/module/pybind.h"

#include "device/cuda/launch.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

static PyObject *provider; /* None once it is taken back */

static void *call_provider(void *unused)
{
    if (!Py_IsInitialized())
        return unused;

    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *callback = Py_NewRef(provider);
    PyObject *done = callback == Py_None ? callback : PyObject_CallNoArgs(callback);

    if (!done)
        PyErr_WriteUnraisable(callback);
    if (done != callback)
        Py_XDECREF(done);
    Py_DECREF(callback);
    PyGILState_Release(state);
    return unused;
}

/* Called without the GIL or with it, on the way of a call that runs stock. */
static bool start_thread(void)
{
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    bool is_started;

    if (pthread_attr_init(&detached) != 0)
        return false;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    is_started = pthread_create(&thread, &detached, call_provider, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return is_started;
}

/* cuda_when_wanted(callback or None): called in a thread of ours when units are. */
PTAC_O(cuda_when_wanted, callback)
{
    ptac_keep(&provider, callback);
    ptac_cuda_when_wanted(callback == Py_None ? NULL : start_thread);
    Py_RETURN_NONE;
}

static const char *const states[] = {
    [PTAC_CUDA_UNASKED] = "unasked",
    [PTAC_CUDA_WANTED] = "wanted",
    [PTAC_CUDA_READY] = "ready",
    [PTAC_CUDA_BROKEN] = "broken",
};

/* cuda_units() -> {unit: "unasked", "wanted", "ready" or "broken"} */
PTAC_NOARGS(cuda_units)
{
    PyObject *found = PyDict_New();

    for (ptac_cuda_unit *unit = ptac_cuda_units(); unit; unit = unit->next) {
        const int state = __atomic_load_n(&unit->state, __ATOMIC_ACQUIRE);

        ptac_put(&found, unit->name, PyUnicode_FromString(states[state]));
    }
    return found;
}

/* The unit of that name; NULL with ValueError set when there is none. */
static ptac_cuda_unit *unit_of(const char *name)
{
    for (ptac_cuda_unit *unit = ptac_cuda_units(); unit; unit = unit->next)
        if (strcmp(unit->name, name) == 0)
            return unit;
    return (ptac_cuda_unit *)PyErr_Format(PyExc_ValueError, "there is no unit %s",
                                          name);
}

static ptac_cuda_unit *unit_from(PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);

    return text ? unit_of(text) : NULL;
}

/* cuda_want(unit): as a call of one of its kernels does that runs stock. */
PTAC_O(cuda_want, name)
{
    ptac_cuda_unit *unit = unit_from(name);

    if (!unit)
        return NULL;
    (void)ptac_cuda_ask(unit);
    Py_RETURN_NONE;
}

static const char *load_and_look(ptac_cuda_target *target)
{
    const char *trouble = ptac_cuda_load("libcuda.so.1");

    return trouble ? trouble : ptac_cuda_target_of_machine(target);
}

/* cuda_target() -> (why there is none or None, version of the driver, capabilities) */
PTAC_NOARGS(cuda_target)
{
    ptac_cuda_target target = {0};
    const char *trouble = PTAC_UNLOCKED(load_and_look(&target));
    PyObject *list = PyList_New(0);

    for (int i = 0; list && i < target.n_devices; i++)
        ptac_append(&list, PyLong_FromLong(target.capability[i]));
    return list ? Py_BuildValue("ziN", trouble, target.driver_version, list) : NULL;
}

/* cuda_give(unit, machine code): None, or why it does not load. */
PTAC_VARARGS(cuda_give)
{
    const char *name;
    PyObject *code;

    if (!PyArg_ParseTuple(args, "sS", &name, &code))
        return NULL;

    ptac_cuda_unit *unit = unit_of(name);
    const char *bytes = PyBytes_AsString(code);

    if (!unit || !bytes)
        return NULL;
    return Py_BuildValue("z", PTAC_UNLOCKED(ptac_cuda_give(unit, bytes)));
}

/* cuda_give_up(unit): there will be no machine code for it. */
PTAC_O(cuda_give_up, name)
{
    ptac_cuda_unit *unit = unit_from(name);

    if (!unit)
        return NULL;
    ptac_cuda_give_up(unit);
    Py_RETURN_NONE;
}
