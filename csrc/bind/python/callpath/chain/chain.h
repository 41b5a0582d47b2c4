/*
 * chain.h - a layer in nn.Sequential together with what follows it.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_CHAIN_CHAIN_H
#define PTAC_BIND_PYTHON_CALLPATH_CHAIN_CHAIN_H

#include "bind/python/callpath/module_guards.h"
#include "ops/linear/bias_act.h"
#include "ops/pool/window2d.h"

enum {
    PTAC_NORM_WEIGHT, /* or None */
    PTAC_NORM_BIAS,   /* or None */
    PTAC_NORM_MEAN,
    PTAC_NORM_VARIANCE,
    PTAC_NORM_TENSORS,
};

/*
 * What has been read of the modules. Nothing of it asks for a gradient, but in a norm
 * by the batch, whose running statistics are None where it has none.
 */
typedef struct ptac_chain {
    PyObject *layer;                   /* borrowed */
    PyObject *attributes;              /* the layer's dictionary, owned */
    PyObject *norm[PTAC_NORM_TENSORS]; /* of the norm, plain tensors, owned */
    PyObject *n_batches;               /* that it has seen, or None; by_batch, owned */
    double eps, momentum;              /* NAN: the mean of all batches so far */
    ptac_module_kind norm_kind;        /* of a chain that begins with its norm */
    bool with_norm, with_pool, by_batch;
    ptac_act activation;
    Py_ssize_t n; /* modules, the layer included */
} ptac_chain;

/* Where a chain may begin, all borrowed. */
typedef struct ptac_chain_start {
    PyObject *modules; /* a list */
    Py_ssize_t at;
    PyObject *x;
    /* x comes from the module before, a known convolution or norm: nobody has it. */
    bool is_x_unseen;
} ptac_chain_start;

enum { PTAC_LONGEST_CHAIN = 4 }; /* a layer, its norm, its activation, a pool */

/* What a known module of these attributes computes; PTAC_ACT_NONE: nothing known. */
ptac_act ptac_module_activation(ptac_module_kind kind, PyObject *attributes);

/* Kinds of modules as a set. */
#define PTAC_KIND_BIT(kind) ((uint64_t)1 << PTAC_MODULE_##kind)

/*
 * Read the chain that begins at a place of the list: the layer and, behind it and in
 * this order, a BatchNorm2d in eval mode, an activation and a 2x2 MaxPool2d, as far as
 * they are there and among followers. False where there are less than two modules.
 * ptac_chain_drop() in either case.
 */
bool ptac_chain_read(PyObject *modules, Py_ssize_t at, uint64_t followers,
                     ptac_chain *chain);
void ptac_chain_drop(ptac_chain *chain);

/*
 * The same of a chain that begins with its BatchNorm, in either mode, of which it may
 * be all; n is then the norm, the activation, and a Dropout that drops nothing.
 */
bool ptac_chain_read_norm(const ptac_chain_start *start, uint64_t followers,
                          ptac_chain *chain);

/*
 * What a known layer at start and some modules behind it make of x in one; *n is how
 * many these are. None where they have to be called. The caller has seen that no hook
 * and no function mode listens, and that the layer may begin a chain.
 */
bool ptac_chain_may_begin(PyObject *module);
PyObject *ptac_chain_run(const ptac_chain_start *start, Py_ssize_t *n);

/*
 * What a chain makes of x. None where the modules have to be called. chain->n may be
 * lowered to the number of modules that the result stands for.
 */
PyObject *ptac_conv_chain(ptac_chain *chain, PyObject *x);
PyObject *ptac_int8_linear_chain(ptac_chain *chain, PyObject *x);
PyObject *ptac_int8_conv2d_chain(ptac_chain *chain, PyObject *x);
PyObject *ptac_fp8_linear_chain(ptac_chain *chain, PyObject *x);

/*
 * Max pooling of the ReLU at start and of the MaxPool2d that may be behind it; *n is
 * how many modules these are. None where they have to be called.
 */
PyObject *ptac_relu_pool_chain(const ptac_chain_start *start, Py_ssize_t *n);

/*
 * batch_norm_act of the BatchNorm at start and of the activation that may be behind it,
 * in eval mode on x itself where nobody has that; *n is how many these are. None where
 * they have to be called.
 */
PyObject *ptac_norm_chain(const ptac_chain_start *start, Py_ssize_t *n);

/*
 * A glance: whether a row of ours would take the call of a Conv2d without a gradient,
 * so that all that it goes through is worth a look.
 */
bool ptac_conv_may_be_ours(PyObject *module, PyObject *x);

/*
 * A plain tensor, or None where that may be, that asks for no gradient; -1 with an
 * exception set.
 */
int ptac_is_constant(PyObject *tensor, bool may_be_none);

/* Whether a Dropout of these attributes hands on what it gets. */
bool ptac_dropout_is_idle(PyObject *attributes);

/* Attributes that are an int, or an int or a pair of them; false for anything else. */
bool ptac_module_int(PyObject *attributes, PyObject *name, int64_t *value);
bool ptac_module_pair(PyObject *attributes, PyObject *name, int64_t pair[2]);
/* The window of a MaxPool2d that gives no indices. */
bool ptac_module_window(PyObject *attributes, ptac_window2d *window);
/* Both are this number. */
bool ptac_module_pair_is(PyObject *attributes, PyObject *name, int64_t value);

#endif
