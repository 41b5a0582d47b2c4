/*
 * optimizer_args.h - a parameter group of torch.optim, taken apart for one kernel call.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_OPTIM_OPTIMIZER_ARGS_H
#define PTAC_BIND_PYTHON_CALLPATH_OPTIM_OPTIMIZER_ARGS_H

#include "bind/python/module/names.h"
#include "bind/torch/cuda.h"
#include "ops/optim/step.h"

/* A tensor that a kernel writes, owned, and where; NULL where it has no elements. */
typedef struct ptac_written {
    PyObject *tensor;
    const void *data;
} ptac_written;

/* Whose an item is. */
typedef struct ptac_item_owner {
    PyObject *param;   /* borrowed from written */
    PyObject *grad;    /* owned */
    bool said_none;    /* its state's momentum buffer was None before this step */
    double mu_product; /* NAdam: what that is after this step */
} ptac_item_owner;

/* The class of an optimizer; Python names it as torch does its module. */
typedef enum ptac_optim_kind {
    PTAC_OPTIM_SGD = 0,
    PTAC_OPTIM_ADAM, /* and AdamW */
    PTAC_OPTIM_ADADELTA,
    PTAC_OPTIM_RMSPROP,
    PTAC_OPTIM_ADAGRAD,
    PTAC_OPTIM_NADAM,
    PTAC_OPTIM_KINDS,
} ptac_optim_kind;

/* What a group gathers. */
typedef struct ptac_optimizer_args {
    ptac_op op;
    ptac_optim_kind kind;
    ptac_step step;
    ptac_step_item *items;
    ptac_item_owner *owners; /* of the items */
    ptac_written *written;
    Py_ssize_t n_written, n_items, capacity;
    Py_ssize_t n_new;   /* momentum buffers that this step makes, last in written */
    ptac_device device; /* of all its tensors, but for counts of steps */
    int32_t number;     /* of a CUDA device */
    ptac_dtype dtype;
    int64_t n_elements;
    double beta1, beta2, lr_decay, momentum_decay;
    double lr;              /* Adam, Adagrad, NAdam: as the step is to use it */
    PyObject *lr_tensor;    /* capturable Adam: owned, or NULL where it is a number */
    bool has_begun;         /* on CUDA: something may have been written */
    const ptac_kernel *row; /* NULL while there is none */
    ptac_call call;         /* undefined without a row */
} ptac_optimizer_args;

/* Whether a group is stepped: PTAC_TAKE, why stock has to do it, or one of these. */
typedef int ptac_verdict;
enum {
    PTAC_RAISED = -1,      /* a Python exception is set */
    PTAC_NEEDS_STATE = -2, /* torch has to make the states first */
};

/* The kind of that name; else an exception is set. */
bool ptac_optim_kind_of(PyObject *name, ptac_optim_kind *kind);

/* The operator that a step of this group is counted as, whatever the group is. */
ptac_op ptac_optim_op(PyObject *group, ptac_optim_kind kind);

/*
 * The ways of torch's, bits 1 << ptac_step_way, whose numbers an operator's rows are
 * known to give on this machine; the loop's go without saying. Groups that ask for
 * others are stock's.
 */
extern unsigned ptac_optim_ways[PTAC_N_OPS];

/*
 * Look at every parameter of the group and write nothing. What is found stays alive
 * whatever other threads do to the group and the states; ptac_optimizer_args_release()
 * gives it back, to be called in any case. The group's rate is multiplied by
 * multiplier, but for decoupled weight decay, which goes by the rate as it is.
 */
ptac_verdict ptac_optimizer_args_read(ptac_optimizer_args *g, PyObject *group,
                                      PyObject *states, ptac_optim_kind kind,
                                      double multiplier);
void ptac_optimizer_args_release(ptac_optimizer_args *g);

/* Its first part: hyperparameters, and options that are for other implementations. */
ptac_verdict ptac_optimizer_options_read(ptac_optimizer_args *g, PyObject *group,
                                         double multiplier);

/* Look at a tensor that lies where the group's do, and may be written. */
bool ptac_optimizer_args_look(const ptac_optimizer_args *g, PyObject *tensor,
                              ptac_view *view);

/* Among what the next item writes; for each item there is room for five. */
void ptac_optimizer_args_write(ptac_optimizer_args *g, PyObject *tensor,
                               const void *data);

/*
 * What the states keep of a parameter, for the item that is to be the group's next. The
 * position walks along, since states usually stand in the order of the parameters.
 */
ptac_verdict ptac_optimizer_args_state(ptac_optimizer_args *g, PyObject *states,
                                       PyObject *param, Py_ssize_t *position,
                                       const ptac_view *view, ptac_step_item *item);

/* Its last: parameters that share memory would race, where threads share the work. */
ptac_verdict ptac_optimizer_args_overlap(const ptac_optimizer_args *g);

/*
 * Refuses groups that would write one tensor twice, a parameter that is listed twice or
 * a state that several share, or that would read as a gradient what they write: stock
 * goes over it again for each operation. Tensors are told apart by where they begin.
 */
ptac_verdict ptac_optimizer_args_repeat(const ptac_optimizer_args *gathered, int n);

/*
 * The buffers that a first SGD step needs; all of them, or a Python exception is set.
 */
bool ptac_sgd_state_create(ptac_optimizer_args *g, PyObject *states);

/* Leave the states as before ptac_sgd_state_create(), whatever exception is set. */
void ptac_sgd_state_forget(const ptac_optimizer_args *g, PyObject *states);

#endif
