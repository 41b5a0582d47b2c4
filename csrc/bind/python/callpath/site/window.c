/*
 * window.c - windows, at most a few at a time; the interpreter's lock guards them.
 */
#include "bind/python/callpath/site/window.h"

#include <string.h>

enum { MOST = 16 };

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

/* What a thread wants to be called once it has no window open, or NULL. */
static PyObject *afterwards;
static const PyThreadState *call_thread;

PTAC_LENT(relu_code) /* of torch.nn.functional.relu */

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

bool ptac_window_has_room(const ptac_frame *frame)
{
    if (ptac_n_windows > 0)
        drop_of(frame);
    if (ptac_n_windows == MOST)
        drop_dead();
    return ptac_n_windows < MOST;
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
    if (w->may_count && ptac_is_plain_and_versioned(w->y))
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
        ptac_windows_left();
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

    return y || frame->code != relu_code ? y : take(frame->previous, x);
}

/*
 * windows_elsewhere() -> whether another thread is between a result that was computed
 * ahead and the last call that it stands for.
 */
PTAC_NOARGS(windows_elsewhere)
{
    bool is = false;

    drop_dead();
    for (int i = 0; i < ptac_n_windows; i++)
        is |= !windows[i].is_fresh && windows[i].thread != PyThreadState_Get();
    return PyBool_FromLong(is || ptac_sites_in_use > ptac_sites_in_use_here);
}

static bool is_between(void)
{
    for (int i = 0; i < ptac_n_windows; i++)
        if (!windows[i].is_fresh && windows[i].thread == PyThreadState_Get())
            return true;
    return false;
}

void ptac_windows_left(void)
{
    PyObject *call = afterwards, *done;

    if (!call || call_thread != PyThreadState_Get())
        return;
    drop_dead();
    if (is_between())
        return;
    afterwards = NULL;
    done = PyObject_CallNoArgs(call);
    if (!done)
        PyErr_WriteUnraisable(call);
    Py_XDECREF(done);
    Py_DECREF(call);
}

/*
 * windows_then(call) -> whether this thread is between two calls of a window, as in a
 * signal's handler or a finalizer. Then the call is made right after the last of these.
 */
PTAC_O(windows_then, call)
{
    drop_dead();
    if (!is_between())
        Py_RETURN_FALSE;
    ptac_keep(&afterwards, call);
    call_thread = PyThreadState_Get();
    Py_RETURN_TRUE;
}
