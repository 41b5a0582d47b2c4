/*
 * images.c - batches of images, for Python.
 */
#include "bind/python/data/source.h"
#include "data/images.h"
#include "data/mt19937.h"

#include <string.h>

/* The moves of a list of (kind, four numbers, probability); false with an exception. */
static bool read_moves(PyObject *list, ptac_move *moves, int32_t *n_moves)
{
    const Py_ssize_t n = PyList_Size(list);

    if (n < 0 || n > PTAC_MAX_MOVES) {
        PyErr_Format(PyExc_ValueError, "0 to %d moves are expected", PTAC_MAX_MOVES);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        ptac_move *move = &moves[i];
        int32_t *numbers = move->numbers;
        int kind;

        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "i(iiii)f", &kind, &numbers[0],
                              &numbers[1], &numbers[2], &numbers[3],
                              &move->probability))
            return false;
        move->kind = (ptac_move_kind)kind;
    }
    *n_moves = (int32_t)n;
    return true;
}

/* What the source's rows are as images; false where they are none. */
static bool read_images(const ptac_source *source, ptac_images *images)
{
    const bool has_channels = source->n_dims == 4;

    if (source->dtype != PTAC_UINT8 || (source->n_dims != 3 && !has_channels))
        return false;
    for (int d = 1; d < source->n_dims; d++)
        if (source->sizes[d] > PTAC_MAX_IMAGE_EXTENT)
            return false;
    images->table = source->table;
    images->height = (int32_t)source->sizes[1];
    images->width = (int32_t)source->sizes[2];
    images->channels = has_channels ? (int32_t)source->sizes[3] : 1;
    return true;
}

/* Draw from a generator's state, a tensor of bytes; false where it is none. */
static bool draw(PyObject *state, uint32_t *drawn, int64_t n)
{
    ptac_mt19937 generator;
    ptac_source bytes;
    const bool is_one = ptac_source_open(state, &bytes) && bytes.dtype == PTAC_UINT8 &&
                        bytes.n_dims == 1 && bytes.table.stride == 1 &&
                        bytes.sizes[0] >= (int64_t)sizeof(generator);

    if (is_one) {
        memcpy(&generator, bytes.table.data, sizeof(generator));
        if (ptac_mt19937_is_sound(&generator)) {
            ptac_mt19937_draw(&generator, drawn, n);
            memcpy((char *)bytes.table.data, &generator, sizeof(generator));
        } else {
            n = -1;
        }
    }
    ptac_source_close(&bytes);
    return is_one && n >= 0;
}

/* data_draw(state, n): n numbers of 32 bits, which leave the state as torch would. */
PTAC_VARARGS(data_draw)
{
    PyObject *state, *numbers;
    int n;

    if (!PyArg_ParseTuple(args, "Oi", &state, &n))
        return NULL;

    PTAC_FREED uint32_t *drawn = PyMem_Malloc((size_t)(n > 0 ? n : 1) * sizeof(*drawn));

    if (!drawn)
        return PyErr_NoMemory();
    if (n < 0 || !draw(state, drawn, n))
        return PyErr_Format(PyExc_ValueError, "this is no state of a generator");
    numbers = PyList_New(0);
    for (int i = 0; numbers && i < n; i++)
        ptac_append(&numbers, PyLong_FromUnsignedLong(drawn[i]));
    return numbers;
}

/* data_images_extent(images, moves): (height, width, draws an image), or None. */
PTAC_VARARGS(data_images_extent)
{
    PyObject *object, *list;
    ptac_move moves[PTAC_MAX_MOVES];
    ptac_images images = {.moves = moves};
    int32_t height, width, n_draws;

    if (!PyArg_ParseTuple(args, "OO!", &object, &PyList_Type, &list) ||
        !read_moves(list, moves, &images.n_moves))
        return NULL;

    PTAC_SOURCE source;

    if (!ptac_source_open(object, &source) || !read_images(&source, &images) ||
        ptac_images_extent(&images, &height, &width, &n_draws) != PTAC_OK)
        Py_RETURN_NONE;
    return Py_BuildValue("iii", height, width, n_draws);
}

/* A batch of the images that index names; NULL with an exception. */
static PyObject *batch_of(const ptac_images *images, const int64_t *index, int64_t n,
                          const uint32_t *drawn, int32_t height, int32_t width)
{
    at_tensor made = NULL;

    if (at_new(AT_DTYPE_F32, 4, (int64_t[]){n, images->channels, height, width}, &made))
        return PyErr_NoMemory();
    PTAC_UNLOCKED((ptac_images_batch(images, index, n, drawn, at_data(made)), 0));
    return ptac_wrap(made);
}

/*
 * Draw from a torch.Generator. No other thread of Python's comes in between: what it
 * drew would be drawn again.
 */
static bool draw_from(PyObject *generator, uint32_t *drawn, int64_t n)
{
    PTAC_OWNED PyObject *state = PyObject_CallMethod(generator, "get_state", NULL);
    PTAC_OWNED PyObject *done = NULL;

    if (state && draw(state, drawn, n))
        done = PyObject_CallMethod(generator, "set_state", "O", state);
    return done != NULL;
}

/*
 * data_images(images, index, moves, values, fill, generator): a tensor of floats, n x
 * channels x height x width. values is channels x 256, fill is one a channel; the
 * generator is drawn from where a move draws. None where the images, or an index, are
 * not served; the generator is then as before.
 */
PTAC_VARARGS(data_images)
{
    PyObject *object, *list, *values, *fill, *generator;
    PyObject *index_list;
    ptac_move moves[PTAC_MAX_MOVES];
    ptac_images images = {.moves = moves};
    int32_t height, width, n_draws;
    int64_t n = 0;

    if (!PyArg_ParseTuple(args, "OOO!OOO", &object, &index_list, &PyList_Type, &list,
                          &values, &fill, &generator) ||
        !read_moves(list, moves, &images.n_moves))
        return NULL;

    PTAC_SOURCE source;
    PTAC_FREED int64_t *index = NULL;
    PTAC_FREED uint32_t *drawn = NULL;

    if (!ptac_source_open(object, &source) || !read_images(&source, &images) ||
        ptac_images_extent(&images, &height, &width, &n_draws) != PTAC_OK)
        Py_RETURN_NONE;
    images.values = ptac_floats_of(values, (int64_t)images.channels * PTAC_BYTE_VALUES);
    images.fill = ptac_floats_of(fill, images.channels);
    index = ptac_indices(index_list, &n);
    if (!images.values || !images.fill || !index ||
        !ptac_rows_resolve(&images.table, 1, index, n))
        Py_RETURN_NONE;
    drawn = PyMem_Malloc((size_t)(n * n_draws + 1) * sizeof(*drawn));
    if (!drawn)
        return PyErr_NoMemory();
    if (n_draws > 0 && !draw_from(generator, drawn, n * n_draws))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return batch_of(&images, index, n, drawn, height, width);
}
