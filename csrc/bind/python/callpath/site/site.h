/*
 * site.h - places of programs where modules and functions follow each other.
 *
 * A module that is called sees, in the bytecode of the function that calls it, what the
 * program is going to do with its result: out = self.bn(out), self.relu(self.bn(x)).
 * Where that is the work of a chain (chain/chain.h), and what the program would get in
 * between dies unseen, the module that is called first computes all of it, and each of
 * those that follow gives what it is called with: see window.h.
 *
 * The functions are torch's own, of which a module says what they compute.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_SITE_SITE_H
#define PTAC_BIND_PYTHON_CALLPATH_SITE_SITE_H

#include "bind/python/interpreter/frame.h"

enum { PTAC_MOST_STEPS = 6 };

/* What is called, when it is not called yet. */
typedef enum ptac_base {
    PTAC_ON_STACK, /* it lies there already */
    PTAC_IN_LOCAL, /* a variable's attribute, or its attribute's */
    PTAC_IN_GLOBAL,
    PTAC_NUMBER, /* nothing: an operator has a number on its other side */
    PTAC_N_BASES,
} ptac_base;

/* The call of a module, or of a function, of the result of the step before. */
typedef struct ptac_step {
    const ptac_instruction *begin, *end; /* of them one is the frame's meanwhile */
    ptac_base base;
    int slot;         /* in the frame; of an operator its code */
    PyObject *name;   /* of a global; the number */
    PyObject *path;   /* names of attributes, a tuple */
    bool dies;        /* what it is called with, once its own result is there */
    bool has_setting; /* an argument behind it, as F.relu may have */
    bool in_place;    /* what that says */
} ptac_step;

/* Why a site's modules were called one by one. */
typedef enum ptac_site_reason {
    PTAC_SITE_UNKNOWN,  /* a chain has nothing like it */
    PTAC_SITE_SEEN,     /* the program could see what is between */
    PTAC_SITE_UNSERVED, /* the operators leave the call to stock */
    PTAC_SITE_N_REASONS,
} ptac_site_reason;

typedef struct ptac_site {
    const ptac_instruction *call;
    int offset;     /* of it, in bytes */
    PyObject *code; /* kept, so that instructions stay where they are */
    int slot;       /* where the result goes; from there on lies what it is made of */
    bool is_operator;
    int line;
    int n_steps; /* 0: nothing follows that we know */
    ptac_step steps[PTAC_MOST_STEPS];
    int64_t n_hits, n_misses[PTAC_SITE_N_REASONS];
    double saved_ns; /* by hits, as the tables estimate it */
    /* What ran as one at last, or was asked for: kinds of modules; or, where this is
       not NULL, the name of a function, owned, and as many steps. */
    unsigned char kinds[PTAC_MOST_STEPS + 1];
    PyObject *function;
    int n_kinds;
} ptac_site;

/* Calls that compute ahead at the moment, of all threads and of this one. While there
   is one no site goes away. */
extern int ptac_sites_in_use;
extern __thread int ptac_sites_in_use_here;

/* The frame that calls, while sites are open and no function mode looks on; or NULL. */
const ptac_frame *ptac_site_frame(void);

/* Likewise, asked again after Python may have run. */
bool ptac_sites_are_open(void);

/*
 * The site of the call that the frame is in, planned if it is new; NULL: none, or with
 * an exception set, which something else has raised meanwhile.
 */
ptac_site *ptac_site_of(const ptac_frame *frame);

/*
 * What a module that is called, and what the site has behind it, make of x as one.
 * None where the module alone is to be called.
 */
PyObject *ptac_site_call(PyObject *module, PyObject *x);

/*
 * The module that a step calls, or that does what the function does that it calls,
 * borrowed; NULL: none. *in_place: it writes to what it is called with.
 */
PyObject *ptac_site_module(const ptac_step *step, const ptac_frame *frame,
                           bool *in_place);

/* Whether this is the code of torch.nn.functional.relu. */
bool ptac_site_is_f_relu(PyObject *code);

/* What has been seen of classes. */
void ptac_site_forget_classes(void);

/* See fork.c. */
void ptac_sites_after_fork(void);

#endif
