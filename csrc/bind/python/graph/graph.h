/*
 * graph.h - a recorded forward as a list of steps over values.
 *
 * pai_torchacc/graph records and plans; what it has planned is described here once, and
 * run at each call without the interpreter, but for steps that call one of torch's
 * functions. A plan is for one geometry of its inputs: sizes, strides and dtypes of all
 * values are known, and only their data changes from run to run.
 */
#ifndef PTAC_BIND_PYTHON_GRAPH_GRAPH_H
#define PTAC_BIND_PYTHON_GRAPH_GRAPH_H

#include "bind/python/module/pybind.h"

typedef enum ptac_value_kind {
    PTAC_VALUE_FIXED, /* a tensor that the plan keeps: of its arena, or a constant */
    PTAC_VALUE_GIVEN, /* each run is given it: an argument, or a module's own */
    PTAC_VALUE_MADE,  /* a step makes it, anew in each run */
    PTAC_VALUE_VIEW,  /* of the memory of another value, which stands before it */
    PTAC_N_VALUE_KINDS,
} ptac_value_kind;

typedef struct ptac_value {
    ptac_value_kind kind;
    int of;           /* VIEW: the other value */
    int64_t offset;   /* VIEW: elements from the other's first */
    int32_t dtype;    /* torch's */
    int32_t n_bytes;  /* of an element */
    ptac_view view;   /* geometry; and data, while a run has it */
    PyObject *object; /* owned; made when a step or the caller wants one */
    at_tensor handle; /* owned, where there is no object; likewise */
} ptac_value;

struct ptac_plan;

/*
 * One operation. run() returns false where the call has to be made eagerly: with an
 * exception set, which was torch's own, or without.
 */
typedef struct ptac_step {
    bool (*run)(struct ptac_plan *plan, struct ptac_step *step);
    void (*drop)(struct ptac_step *step); /* frees it */
    int (*traverse)(const struct ptac_step *step, visitproc visit,
                    void *arg);   /* or NULL */
    int n_ends, *ends;            /* values made that no later step reads, owned */
    const ptac_kernel *row;       /* that it runs, or NULL */
    bool allocates;               /* what it makes, in place of being told where to */
    bool has_effects;             /* of which a call made again would be the second */
    bool is_foreign;              /* it calls the program, which may do anything */
    int n_written, *written;      /* values whose versions it has to count, owned */
    struct ptac_step **otherwise; /* steps that do it where run() gives back, owned */
    int n_otherwise;
} ptac_step;

typedef struct ptac_plan {
    PyObject_HEAD int n_values, n_steps, n_given, n_results;
    ptac_value *values;
    ptac_step **steps;
    int *given, *results; /* values, in the caller's order */
    int64_t *geometry;    /* sizes and strides of all values */
    uint64_t running;     /* 1 + how often the process had forked when a run began */
} ptac_plan;

/* The value's tensor while it has one, borrowed; NULL: an exception is set. */
PyObject *ptac_value_object(ptac_plan *plan, int i);

/* The same without making an object of Python's; NULL without an exception. */
at_tensor ptac_value_handle(ptac_plan *plan, int i);

/* The value's data as of this run. */
static inline void *ptac_value_data(const ptac_plan *plan, int i)
{
    const ptac_value *value = &plan->values[i];

    return value->kind == PTAC_VALUE_VIEW ? (char *)plan->values[value->of].view.data +
                                                value->offset * value->n_bytes
                                          : value->view.data;
}

/* Whether a tensor has a value's geometry; and where its data is. */
bool ptac_value_looks_like(const ptac_value *value, at_tensor tensor, void **data);

/* The same, and the value's data is there from now on. */
bool ptac_value_look(ptac_value *value, at_tensor tensor);

/* Let go of what a run has made of it. */
void ptac_value_forget(ptac_value *value);

/* Memory for a value that a step is about to write, where it has none. */
bool ptac_value_make(ptac_plan *plan, int i);

/* What a step has made, taken over: false where it looks otherwise than recorded. */
bool ptac_value_take(ptac_plan *plan, int i, at_tensor made);
bool ptac_value_take_object(ptac_plan *plan, int i, PyObject *made);

/*
 * The plan that a method of _C is given; and the number of a value of it. Both set an
 * exception where it is none: NULL, or -1.
 */
ptac_plan *ptac_plan_of(PyObject *object);
int ptac_value_number(const ptac_plan *plan, PyObject *number);

/* Numbers of n values, a tuple, of which None is -1. False: an exception is set. */
bool ptac_value_numbers(const ptac_plan *plan, PyObject *tuple, int n, int *values);

/*
 * Add a step, which is taken over, with the values that end behind it, a tuple. None;
 * or NULL, and the step is dropped.
 */
PyObject *ptac_plan_add(ptac_plan *plan, ptac_step *step, PyObject *ends);

/* How a run ended. */
typedef enum ptac_plan_outcome {
    PTAC_PLAN_DONE,
    PTAC_PLAN_BUSY,      /* another thread runs it */
    PTAC_PLAN_GAVE_BACK, /* the call has to be made eagerly */
    PTAC_PLAN_RAISED,    /* an exception is set */
} ptac_plan_outcome;

/* Whether its given tensors, which are plain, look as recorded; how many they are. */
bool ptac_plan_fits(PyObject *plan, PyObject *const *tensors);
int ptac_plan_n_given(PyObject *plan);

/* Run a plan on its given tensors, which fit, borrowed; *results becomes a tuple. */
ptac_plan_outcome ptac_plan_run(PyObject *plan, PyObject *const *tensors,
                                PyObject **results, int64_t *t_ns);

/* Have autograd watch this thread, or not. False: an exception is set. */
bool ptac_set_grad(bool on);

/* Run a row's call without the interpreter's lock where that is worth it. */
bool ptac_step_run_row(const ptac_kernel *row, const ptac_call *call);

#endif
