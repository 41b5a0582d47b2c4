/*
 * expression.c - what is done with the result of a function or an operator of torch's:
 * torch.relu(x @ w + 0.5).
 *
 * The result is a new tensor that nobody has seen. Numbers that are added to it, taken
 * from it, multiplied by it or that divide it, and ReLU, are done in it, block by block
 * while a block is in the cache, by rows of small_pointwise, whose bits are stock's.
 * The calls that would have done so give what they are called with, see window.h.
 */
#include "bind/python/callpath/entry/entry.h"
#include "bind/python/callpath/entry/small.h"
#include "bind/python/callpath/module_guards.h"
#include "bind/python/callpath/site/window.h"
#include "bind/python/interpreter/tracing.h"
#include "bind/torch/rows/convolution/convolution.h"
#include "core/counters.h"
#include "core/host.h"

enum {
    BLOCK = 2048,        /* elements */
    LEAST_UNLOCKED = 16, /* blocks: what is less is done before a lock is given up */
};

static const ptac_op OP = PTAC_OP_SMALL_POINTWISE;

/* Steps, and what they are done in. */
typedef struct program {
    ptac_small steps[PTAC_MOST_STEPS];
    bool in_place[PTAC_MOST_STEPS];
    int n;
    const ptac_kernel *row;
    ptac_view view;
} program;

static bool is_relu(PyObject *module)
{
    PyObject *attributes = ptac_module_kind_of(module) == PTAC_MODULE_RELU
                               ? ptac_module_attributes(module, PTAC_MODULE_RELU)
                               : NULL;

    Py_XDECREF(attributes);
    return attributes;
}

/* Whether it writes to what it is called with is *in_place. */
static bool read_step(const ptac_step *step, const ptac_frame *frame, PyObject *tensor,
                      ptac_small *small, bool *in_place)
{
    PyObject *module;

    *in_place = false;
    if (step->base == PTAC_NUMBER)
        return ptac_small_of_operator(step->slot, Py_TYPE(tensor), step->name, small);
    module = ptac_site_module(step, frame, in_place);
    small->kind = PTAC_SMALL_RELU;
    return module && is_relu(module) && (step->dies || *in_place);
}

static void read_steps(const ptac_site *site, const ptac_frame *frame, PyObject *tensor,
                       program *p)
{
    bool is_written = false, in_place;

    for (; p->n < site->n_steps; p->n++) {
        if (!read_step(&site->steps[p->n], frame, tensor, &p->steps[p->n], &in_place))
            return;
        /* What is written to has counted that, as a new tensor behind it has not. */
        if (is_written && !in_place)
            return;
        p->in_place[p->n] = in_place;
        is_written |= in_place;
    }
}

/* The frame's instruction has called this with these, and nobody in between. */
static bool is_calls_own(const ptac_site *site, const ptac_frame *frame,
                         PyObject *callable, PyObject *const *args, Py_ssize_t n)
{
    PyObject *const *from = &frame->slots[site->slot];

    if (site->is_operator)
        return n == 2 && ((from[0] == args[0] && from[1] == args[1]) ||
                          (from[0] == args[1] && from[1] == args[0]));
    return from[0] ? from[0] == callable && args == from + 1
                   : from[1] == callable && args == from + 2;
}

/* In place. */
static void begin(ptac_call *call, const ptac_small *step, const ptac_view *x)
{
    ptac_small_begin(call, step);
    call->n_threads = 1;
    call->n_outputs = 1;
    call->inputs[0] = *x;
    call->outputs[0] = *x;
}

/* n elements from block i on. */
static ptac_view block_of(const program *p, int64_t i, const int64_t *n)
{
    static const int64_t one_apart = 1;

    return (ptac_view){
        .data = (float *)p->view.data + i * BLOCK,
        .sizes = n,
        .strides = &one_apart,
        .n_elements = *n,
        .n_dims = 1,
        .dtype = PTAC_F32,
    };
}

static void do_blocks(int64_t first, int64_t end, void *context)
{
    const program *p = context;
    ptac_call call;

    for (int64_t i = first; i < end; i++) {
        const int64_t n = ptac_least(BLOCK, p->view.n_elements - i * BLOCK);
        const ptac_view block = block_of(p, i, &n);

        begin(&call, &p->steps[0], &block);
        for (int k = 0; k < p->n; k++) {
            call.params = &p->steps[k];
            p->row->run(&call); /* of floats, which it takes */
        }
    }
}

/* The row of a step for n elements; what the tables say of it is counted next. */
static const ptac_kernel *row_of(const program *p, int step, int64_t n)
{
    const ptac_view part = block_of(p, 0, &n);
    ptac_reason unused;
    ptac_call call;

    begin(&call, &p->steps[step], &part);
    return ptac_probe(&call, &unused);
}

/* That of the first step, which has the others, too. */
static const ptac_kernel *row_for(const program *p)
{
    return row_of(p, 0, ptac_least(BLOCK, p->view.n_elements));
}

/*
 * Steps are estimated one by one, on as many elements as such rows take by themselves:
 * what being one saves beside is left out.
 */
static void count(const program *p)
{
    const int64_t n = ptac_least(PTAC_SMALL_MOST, p->view.n_elements);

    for (int i = 0; i < p->n; i++) {
        if (i > 0 || n > BLOCK) /* or it was asked for last */
            (void)row_of(p, i, n);
        ptac_count_accelerated(OP);
    }
}

static void do_all(program *p)
{
    const int64_t n = ptac_parts(p->view.n_elements, BLOCK);

    count(p);
    if (n < LEAST_UNLOCKED)
        do_blocks(0, n, p);
    else
        (void)PTAC_UNLOCKED((ptac_parallel_for(0, n, LEAST_UNLOCKED, do_blocks, p), 0));
}

/* In one piece, and nobody looks on. */
static bool can_be_written(PyObject *result, ptac_view *view)
{
    if (ptac_why_not_lean() || ptac_is_tracing() || ptac_thread_is_traced() ||
        ptac_shadow_is_on())
        return false;
    ptac_view_of(ptac_borrow(result), view);
    return view->dtype == PTAC_F32 && view->n_elements > 0 &&
           ptac_view_is_contiguous(view);
}

/* For the report: what ran as one. */
static void note(ptac_site *site, PyObject *callable, int n_steps, double saved_ns)
{
    Py_XDECREF(site->function);
    site->function = PyObject_GetAttr(callable, ptac_names.__name__);
    PyErr_Clear();
    site->n_hits++;
    site->saved_ns += saved_ns;
    site->n_kinds = site->function ? n_steps + 1 : 0;
}

static void follow(ptac_site *site, const ptac_frame *frame, PyObject *callable,
                   PyObject *result)
{
    const double saved_before = ptac_estimated_saved_here();
    program p = {.n = 0};

    PTAC_IN_FLIGHT;
    if (ptac_chooser_gate(OP) != PTAC_TAKE || !can_be_written(result, &p.view))
        return;
    read_steps(site, frame, result, &p);
    p.row = p.n > 0 ? row_for(&p) : NULL;
    if (!p.row)
        return;
    do_all(&p);
    note(site, callable, p.n, ptac_estimated_saved_here() - saved_before);
    ptac_window_open(frame, site, p.n, p.in_place, result, false);
}

PyObject *ptac_entry_follow(PyObject *callable, PyObject *const *args, Py_ssize_t n,
                            PyObject *result)
{
    const ptac_frame *frame =
        result && n > 0 && result != args[0] && !ptac_entry_reason(result)
            ? ptac_site_frame()
            : NULL; /* new, and without a gradient */
    ptac_site *site;

    if (!frame || !ptac_site_enter(frame))
        return result;
    site = ptac_site_of(frame); /* which may have run Python */
    if (site && site->n_steps > 0 && ptac_sites_are_open() &&
        is_calls_own(site, frame, callable, args, n))
        follow(site, frame, callable, result);
    ptac_site_leave();
    if (PyErr_Occurred())
        Py_CLEAR(result);
    return result;
}
