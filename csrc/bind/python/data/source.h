/*
 * source.h - tables that Python's objects hold: tensors, and arrays by their buffer.
 */
#ifndef PTAC_BIND_PYTHON_DATA_SOURCE_H
#define PTAC_BIND_PYTHON_DATA_SOURCE_H

#include "bind/python/module/pybind.h"
#include "data/rows.h"

enum {
    PTAC_UINT8 = 0, /* torch's code */
    PTAC_BYTE_VALUES = 256,
};

/* A table, and what a tensor of its rows is like; ptac_source_close() gives it back. */
typedef struct ptac_source {
    ptac_table table;
    int32_t dtype; /* torch's code */
    int32_t n_dims;
    int64_t sizes[PTAC_MAX_DIMS]; /* of all rows; sizes[0] is their number */
    Py_buffer buffer;             /* its obj is NULL of a tensor */
} ptac_source;

/*
 * Borrow the rows of a plain tensor that needs no gradient, or of an object with
 * CPython's buffer protocol, in native byte order. False, without an exception, where
 * it is neither or a row's elements do not lie one behind the other.
 */
bool ptac_source_open(PyObject *object, ptac_source *source);
void ptac_source_close(ptac_source *source);

#define PTAC_SOURCE __attribute__((cleanup(ptac_source_close))) ptac_source

/*
 * The indices of a batch, from a list of integers, in PyMem's memory. NULL without an
 * exception where the list has anything else: True is a mask to torch.
 */
int64_t *ptac_indices(PyObject *list, int64_t *n);

/* The data of a contiguous float tensor of so many elements, or NULL. */
const float *ptac_floats_of(PyObject *tensor, int64_t n);

/* Row index[i] of the source as row i of a new tensor; NULL with an exception. */
PyObject *ptac_source_gather(const ptac_source *source, const int64_t *index,
                             int64_t n);

#endif
