/*
 * pool_chain.c - a ReLU and the MaxPool2d behind it, run as one relu_max_pool2d.
 *
 * In place, torch's ReLU would write to its input. Ours does not, so that nobody may
 * see that input afterwards.
 */
#include "bind/python/callpath/chain/chain.h"
#include "bind/python/callpath/lean.h"

/* Both as torch made them; *window is the pool's. */
static bool read_pair_of_modules(const ptac_chain_start *start, PyObject *pool,
                                 ptac_window2d *window)
{
    PTAC_OWNED PyObject *relu_attributes = ptac_module_attributes(
        PyList_GetItem(start->modules, start->at), PTAC_MODULE_RELU);
    PTAC_OWNED PyObject *pool_attributes =
        relu_attributes ? ptac_module_attributes(pool, PTAC_MODULE_MAX_POOL2D) : NULL;
    PyObject *in_place;

    if (!pool_attributes || !ptac_module_window(pool_attributes, window))
        return false;
    in_place = PyDict_GetItemWithError(relu_attributes, ptac_names.inplace);
    return in_place == Py_False || (in_place == Py_True && start->is_x_unseen);
}

PyObject *ptac_relu_pool_chain(const ptac_chain_start *start, Py_ssize_t *n)
{
    PyObject *pool;
    ptac_window2d window;
    bool are_known;

    if (start->at + 1 == PyList_Size(start->modules))
        Py_RETURN_NONE;
    pool = PyList_GetItem(start->modules, start->at + 1);
    if (ptac_module_kind_of(pool) != PTAC_MODULE_MAX_POOL2D ||
        ptac_chooser_gate(PTAC_OP_RELU_MAX_POOL2D) == PTAC_OFF ||
        !ptac_is_plain_on_cuda(start->x))
        Py_RETURN_NONE;
    are_known = read_pair_of_modules(start, pool, &window);
    PyErr_Clear();
    if (!are_known)
        Py_RETURN_NONE;
    *n = 2;
    return ptac_try_relu_max_pool2d(start->x, &window);
}
