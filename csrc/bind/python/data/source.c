/*
 * source.c - tables that Python's objects hold, and rows of them as tensors.
 */
#include "bind/python/data/source.h"

#include <string.h>

enum {
    UNLOCKED_BYTES = 1 << 16,  /* to copy so much takes longer than others may wait, */
    UNLOCKED_VALUES = 1 << 14, /* and so does looking up so many */
};

/* Bytes of an element, by torch's code of the dtype; 0 where rows are not served. */
static int64_t element_bytes(int32_t dtype)
{
    static const char bytes[] = {
        [0] = 1, [1] = 1,   [2] = 2,  [3] = 4,  [4] = 8,  [5] = 2,  [6] = 4,  [7] = 8,
        [9] = 8, [10] = 16, [11] = 1, [15] = 2, [27] = 2, [28] = 4, [29] = 8,
    };

    return dtype >= 0 && dtype < (int32_t)sizeof(bytes) ? bytes[dtype] : 0;
}

/* torch's code of a format of the struct module; -1 where there is none. */
static int32_t dtype_of(const char *format, int64_t bytes)
{
    static const struct {
        const char *formats; /* each a name and a size in bytes, as a digit */
        int32_t dtype;
    } known[] = {{"B1", 0},   {"b1", 1},  {"h2", 2},  {"i4", 3},
                 {"l8q8", 4}, {"e2", 5},  {"f4", 6},  {"d8", 7},
                 {"?1", 11},  {"H2", 27}, {"I4", 28}, {"L8Q8", 29}};

    if (!format || strlen(format) != 1 || bytes > 8)
        return -1;
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        for (const char *f = known[k].formats; *f; f += 2)
            if (f[0] == format[0] && f[1] - '0' == bytes)
                return known[k].dtype;
    return -1;
}

/* The table of elements at strides in bytes; false where rows have gaps. */
static bool describe(ptac_source *source, const char *data, const int64_t *strides,
                     int64_t element)
{
    int64_t bytes = element;

    for (int d = source->n_dims - 1; d > 0; d--) {
        if (source->sizes[d] != 1 && strides[d] != bytes)
            return false;
        bytes *= source->sizes[d];
    }
    source->table = (ptac_table){.data = data,
                                 .n_rows = source->sizes[0],
                                 .row_bytes = bytes,
                                 .stride = strides[0]};
    return data != NULL && bytes > 0 && source->sizes[0] > 0;
}

static bool open_tensor(PyObject *tensor, ptac_source *source)
{
    const at_tensor handle = ptac_borrow(tensor);
    int64_t strides[PTAC_MAX_DIMS];
    int64_t element;
    ptac_view view;

    ptac_view_of(handle, &view);
    T.aoti_torch_get_dtype(handle, &source->dtype);
    element = element_bytes(source->dtype);
    if (!view.data || !element || view.n_dims < 1 || view.n_dims > PTAC_MAX_DIMS)
        return false;
    source->n_dims = view.n_dims;
    for (int d = 0; d < view.n_dims; d++) {
        source->sizes[d] = view.sizes[d];
        strides[d] = view.strides[d] * element;
    }
    return describe(source, view.data, strides, element);
}

static bool open_buffer(PyObject *object, ptac_source *source)
{
    Py_buffer *buffer = &source->buffer;
    int64_t strides[PTAC_MAX_DIMS];

    if (PyObject_GetBuffer(object, buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return false;
    }
    source->dtype = dtype_of(buffer->format, buffer->itemsize);
    source->n_dims = buffer->ndim;
    if (source->dtype < 0 || buffer->ndim < 1 || buffer->ndim > PTAC_MAX_DIMS)
        return false;
    for (int d = 0; d < buffer->ndim; d++) {
        source->sizes[d] = buffer->shape[d];
        strides[d] = buffer->strides[d];
    }
    return describe(source, buffer->buf, strides, buffer->itemsize);
}

bool ptac_source_open(PyObject *object, ptac_source *source)
{
    *source = (ptac_source){.dtype = -1};
    if (!ptac_is_tensor(object))
        return PyObject_CheckBuffer(object) && open_buffer(object, source);
    return ptac_is_plain(object) &&
           !(T.aoti_torch_grad_mode_is_enabled() && ptac_requires_grad(object) != 0) &&
           open_tensor(object, source);
}

void ptac_source_close(ptac_source *source)
{
    if (source->buffer.obj)
        PyBuffer_Release(&source->buffer);
}

int64_t *ptac_indices(PyObject *list, int64_t *n)
{
    const Py_ssize_t length = PyList_CheckExact(list) ? PyList_Size(list) : 0;
    int64_t *indices =
        length > 0 ? PyMem_Malloc((size_t)length * sizeof(*indices)) : NULL;

    for (Py_ssize_t i = 0; indices && i < length; i++) {
        PyObject *item = PyList_GetItem(list, i);
        const bool is_int = item && PyLong_CheckExact(item);

        indices[i] = is_int ? PyLong_AsLongLong(item) : 0;
        if (!is_int || (indices[i] == -1 && PyErr_Occurred())) {
            PyErr_Clear();
            PyMem_Free(indices);
            return NULL;
        }
    }
    *n = length;
    return indices;
}

const float *ptac_floats_of(PyObject *tensor, int64_t n)
{
    ptac_view view;

    if (!ptac_is_plain(tensor))
        return NULL;
    ptac_view_of(ptac_borrow(tensor), &view);
    if (view.dtype != PTAC_F32 || view.n_elements != n ||
        !ptac_view_is_contiguous(&view))
        return NULL;
    return view.data;
}

/* A new tensor for n of the source's rows; NULL with an exception. */
static at_tensor new_rows(const ptac_source *source, int32_t dtype, int64_t n)
{
    int64_t sizes[PTAC_MAX_DIMS];
    at_tensor made = NULL;

    memcpy(sizes, source->sizes, sizeof(sizes));
    sizes[0] = n;
    if (at_new(dtype, source->n_dims, sizes, &made)) {
        PyErr_NoMemory();
        return NULL;
    }
    return made;
}

PyObject *ptac_source_gather(const ptac_source *source, const int64_t *index, int64_t n)
{
    const at_tensor made = new_rows(source, source->dtype, n);

    if (!made)
        return NULL;
    if (n * source->table.row_bytes < UNLOCKED_BYTES)
        ptac_rows_gather(&source->table, index, n, at_data(made));
    else
        PTAC_UNLOCKED((ptac_rows_gather(&source->table, index, n, at_data(made)), 0));
    return ptac_wrap(made);
}

/*
 * data_rows(tables, index): for each table of a tuple, a new tensor of the rows that
 * the list names. None where any of them is not served, or an index is no row.
 */
PTAC_ARGS(data_rows, 2)
{
    enum { MAX_TABLES = 16 };
    const Py_ssize_t n_tables = PyTuple_CheckExact(args[0]) ? PyTuple_Size(args[0]) : 0;
    ptac_source sources[MAX_TABLES];
    ptac_table tables[MAX_TABLES];
    Py_ssize_t n_open = 0;
    PyObject *rows = NULL;
    int64_t n = 0;
    PTAC_FREED int64_t *index = ptac_indices(args[1], &n);
    bool is_served = index && n_tables > 0 && n_tables <= MAX_TABLES;

    while (is_served && n_open < n_tables) {
        PyObject *table = PyTuple_GetItem(args[0], n_open);

        is_served = ptac_source_open(table, &sources[n_open]);
        tables[n_open] = sources[n_open].table;
        n_open++;
    }
    if (is_served && ptac_rows_resolve(tables, (int)n_tables, index, n)) {
        rows = PyList_New(0);
        for (Py_ssize_t i = 0; rows && i < n_tables; i++)
            ptac_append(&rows, ptac_source_gather(&sources[i], index, n));
    } else {
        rows = Py_NewRef(Py_None);
    }
    while (n_open > 0)
        ptac_source_close(&sources[--n_open]);
    return rows;
}

/*
 * data_look_up(bytes, index, values): the rows that the list names, with values[b], one
 * of 256 floats, in place of each byte b. None where they are not served.
 */
PTAC_ARGS(data_look_up, 3)
{
    const float *values = ptac_floats_of(args[2], PTAC_BYTE_VALUES);
    int64_t n = 0;
    PTAC_FREED int64_t *index = ptac_indices(args[1], &n);
    PTAC_SOURCE source;
    at_tensor made;

    if (!ptac_source_open(args[0], &source) || source.dtype != PTAC_UINT8 || !values ||
        !index || !ptac_rows_resolve(&source.table, 1, index, n))
        Py_RETURN_NONE;
    made = new_rows(&source, AT_DTYPE_F32, n);
    if (!made)
        return NULL;
    if (n * source.table.row_bytes < UNLOCKED_VALUES)
        ptac_rows_look_up(&source.table, index, n, values, at_data(made));
    else
        PTAC_UNLOCKED(
            (ptac_rows_look_up(&source.table, index, n, values, at_data(made)), 0));
    return ptac_wrap(made);
}
