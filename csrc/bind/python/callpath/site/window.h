/*
 * window.h - from a result that is computed ahead to the last call that it stands for.
 *
 * The result stands in the frame where the program expects one of an earlier step. Each
 * call that the window still expects is answered with it. A window is closed by its
 * last call. One that an exception has cut off is found dead when somebody looks for
 * room; it keeps its tensor alive until then, so that no other can be taken for it.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_SITE_WINDOW_H
#define PTAC_BIND_PYTHON_CALLPATH_SITE_WINDOW_H

#include "bind/python/callpath/site/site.h"

/* Windows that are open, dead ones included. */
extern int ptac_n_windows;

/* What is to be called once none is open, see windows_then(); NULL: nothing. */
extern PyObject *ptac_windows_awaited;

/* Call it, if it is time. False with an exception set. */
bool ptac_windows_look(void);

/*
 * This thread uses a site in this frame: what the frame had open was cut off, and there
 * is room for one more window. False, and nothing is to be computed ahead, where there
 * is not. ptac_site_leave() follows, which may run Python, and set an exception.
 */
bool ptac_site_enter(const ptac_frame *frame);
void ptac_site_leave(void);

/*
 * Open one: the n next steps of a site stand for nothing but y. Steps that are in place
 * write to it, which is counted unless a node has saved it. Between
 * ptac_site_enter() and ptac_site_leave(), as the next one.
 */
void ptac_window_open(const ptac_frame *frame, const ptac_site *site, int n,
                      const bool *in_place, PyObject *y, bool has_saved);

/*
 * Open one for the next step alone, which is called as ever, but may know of its input
 * that nobody else has it.
 */
void ptac_window_note_fresh(const ptac_frame *frame, const ptac_site *site,
                            PyObject *y);

/* Whether the call that the frame is in has such an x; the window is closed then. */
bool ptac_window_is_fresh(const ptac_frame *frame, PyObject *x);

/*
 * The result of a call with x that a window expects; NULL: none expects it, or with an
 * exception set.
 */
PyObject *ptac_window_take(PyObject *x);

/* Likewise of a call of a function of torch's, by one of torch's own or by the site. */
PyObject *ptac_window_take_function(PyObject *x);

/* See fork.c. */
void ptac_windows_after_fork(void);

#endif
