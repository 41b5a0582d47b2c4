/*
 * window.c - windows, at most a few at a time; the interpreter's lock guards them.
 */
#include "bind/python/callpath/site/window.h"

#include <string.h>

enum { MOST = 64 };

typedef struct window {
    const PyThreadState *thread;
    const ptac_frame *frame;
    const ptac_instruction *call;
    PyObject *y; /* owned */
    bool is_fresh;
    const ptac_instruction *begins[PTAC_MOST_STEPS], *ends[PTAC_MOST_STEPS];
    bool in_place[PTAC_MOST_STEPS], may_count;
    int n, at; /* steps, and the one that is expected next */
} window;

int ptac_n_windows;

static window windows[MOST]; /* the first ptac_n_windows */

/* What is called once no window is open and no site in use, or NULL. */
PyObject *ptac_windows_awaited;

/* Its place is taken by the last one. What is dropped may run Python. */
static void close_window(int i)
{
    window gone = windows[i];

    windows[i] = windows[--ptac_n_windows];
    Py_DECREF(gone.y);
}

/* The call that the frame is in is one that the window expects. */
static bool expects(const window *w, const ptac_frame *frame)
{
    return w->frame == frame && frame->at >= w->begins[w->at] &&
           frame->at < w->ends[w->at];
}

static window *find(const ptac_frame *frame, PyObject *x, bool is_fresh)
{
    const PyThreadState *thread = PyThreadState_Get();

    for (window *w = windows; w < windows + ptac_n_windows; w++)
        if (w->y == x && w->thread == thread && w->is_fresh == is_fresh &&
            expects(w, frame))
            return w;
    return NULL;
}

/* Of a frame that is gone, or has gone on elsewhere. */
static bool is_dead(const window *w)
{
    return !ptac_frame_is_alive(w->thread, w->frame) || w->frame->at < w->call ||
           w->frame->at >= w->ends[w->n - 1];
}

static void drop_dead(void)
{
    for (int i = ptac_n_windows - 1; i >= 0; i--)
        if (i < ptac_n_windows && is_dead(&windows[i]))
            close_window(i);
}

/* The frame is at the beginning of a site: what it had open was cut off. */
static void drop_of(const ptac_frame *frame)
{
    const PyThreadState *thread = PyThreadState_Get();

    for (int i = ptac_n_windows - 1; i >= 0; i--)
        if (i < ptac_n_windows && windows[i].frame == frame &&
            windows[i].thread == thread)
            close_window(i);
}

/* Each site in use opens one window at most. */
bool ptac_site_enter(const ptac_frame *frame)
{
    if (ptac_n_windows > 0)
        drop_of(frame);
    if (ptac_n_windows + ptac_sites_in_use >= MOST)
        drop_dead();
    if (ptac_n_windows + ptac_sites_in_use >= MOST)
        return false;
    ptac_sites_in_use++;
    ptac_sites_in_use_here++;
    return true;
}

static bool is_quiet(void)
{
    drop_dead();
    for (int i = 0; i < ptac_n_windows; i++)
        if (!windows[i].is_fresh)
            return false;
    return ptac_sites_in_use == 0;
}

/*
 * May set an exception, which a signal's handler raises in the call: where another is
 * set already, that one stays.
 */
static void call_afterwards(void)
{
    PyObject *type, *value, *trace, *call = ptac_windows_awaited, *done;

    if (ptac_sites_in_use > 0 || !is_quiet())
        return;
    ptac_windows_awaited = NULL;
    PyErr_Fetch(&type, &value, &trace);
    done = PyObject_CallNoArgs(call);
    if (!done && !ptac_windows_awaited) /* it may not have begun */
        ptac_windows_awaited = Py_NewRef(call);
    if (type) {
        if (!done)
            PyErr_WriteUnraisable(call);
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(done);
    Py_DECREF(call);
}

bool ptac_windows_look(void)
{
    if (ptac_windows_awaited)
        call_afterwards();
    return !PyErr_Occurred();
}

void ptac_site_leave(void)
{
    ptac_sites_in_use_here--;
    ptac_sites_in_use--;
    if (ptac_windows_awaited)
        call_afterwards();
}

static window *open_window(const ptac_frame *frame, const ptac_site *site, int n,
                           PyObject *y)
{
    window *w = &windows[ptac_n_windows++];

    *w = (window){.thread = PyThreadState_Get(),
                  .frame = frame,
                  .call = site->call,
                  .y = Py_NewRef(y),
                  .n = n};
    for (int i = 0; i < n; i++) {
        w->begins[i] = site->steps[i].begin;
        w->ends[i] = site->steps[i].end;
    }
    return w;
}

void ptac_window_open(const ptac_frame *frame, const ptac_site *site, int n,
                      const bool *in_place, PyObject *y, bool has_saved)
{
    window *w = open_window(frame, site, n, y);

    memcpy(w->in_place, in_place, sizeof w->in_place);
    w->may_count = !has_saved;
}

void ptac_window_note_fresh(const ptac_frame *frame, const ptac_site *site, PyObject *y)
{
    open_window(frame, site, 1, y)->is_fresh = true;
}

bool ptac_window_is_fresh(const ptac_frame *frame, PyObject *x)
{
    window *w = ptac_n_windows > 0 ? find(frame, x, true) : NULL;

    if (w)
        close_window((int)(w - windows));
    return w;
}

/* A write that was done ahead, as torch would count it. */
static void count_write(const window *w)
{
    if (w->may_count && (ptac_is_plain_and_versioned(w->y) ||
                         ptac_is_plain_and_versioned_on_cuda(w->y)))
        ptac_bump_version(w->y);
}

static PyObject *take(const ptac_frame *frame, PyObject *x)
{
    window *w = find(frame, x, false);
    PyObject *y = w ? Py_NewRef(w->y) : NULL;

    if (w && w->in_place[w->at])
        count_write(w);
    if (w && ++w->at == w->n) {
        close_window((int)(w - windows));
        if (ptac_windows_awaited)
            call_afterwards();
        if (PyErr_Occurred())
            Py_CLEAR(y);
    }
    return y;
}

PyObject *ptac_window_take(PyObject *x)
{
    return take(ptac_frame_now(), x);
}

/* Functions of C are called by the site, or by torch's of Python that it calls. */
PyObject *ptac_window_take_function(PyObject *x)
{
    const ptac_frame *frame = ptac_frame_now();
    PyObject *y = take(frame, x);

    if (y || PyErr_Occurred() || !frame || !ptac_site_is_f_relu(frame->code))
        return y;
    return take(frame->previous, x);
}

/* In a child there is no other thread that could be between two calls. */
void ptac_windows_after_fork(void)
{
    const PyThreadState *thread = PyThreadState_Get();

    for (int i = ptac_n_windows - 1; i >= 0; i--)
        if (i < ptac_n_windows && windows[i].thread != thread)
            close_window(i);
}

/* windows_open() -> how many there are, dead ones included */
PTAC_GIVES(windows_open, PyLong_FromLong(ptac_n_windows))

/* windows_are_quiet() -> whether no window is open and nothing computed ahead */
PTAC_GIVES(windows_are_quiet, PyBool_FromLong(is_quiet()))

/* windows_look(): make the call that waits for quiet, if it is. */
PTAC_NOARGS(windows_look)
{
    return ptac_windows_look() ? Py_NewRef(Py_None) : NULL;
}

/* windows_then(call or None): make the call, in any thread, once that is so. */
PTAC_O(windows_then, call)
{
    ptac_keep(&ptac_windows_awaited, call);
    if (ptac_windows_awaited == Py_None)
        Py_CLEAR(ptac_windows_awaited);
    Py_RETURN_NONE;
}
