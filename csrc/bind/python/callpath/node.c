/*
 * node.c - nodes of ours in autograd's graph.
 *
 * While tensors are saved through hooks there are none. Hooks such as those of
 * torch.utils.checkpoint match what forward saves with what its repetition saves, one
 * by one; our nodes save other tensors than torch's, so that neither a switch in
 * between nor a quarantine may decide which nodes there are.
 */
#include "bind/python/callpath/lean.h"

#include "bind/torch/rows/bf16.h"

PTAC_LENT(top_hooks) /* torch._C._autograd._top_saved_tensors_default_hooks */

int ptac_saving_is_hooked(void)
{
    PTAC_OWNED PyObject *hooks = PyObject_CallFunctionObjArgs(top_hooks, Py_True, NULL);
    int hooked = hooks ? hooks != Py_None : -1;

    if (hooked > 0 && PyTuple_Check(hooks) && PyTuple_Size(hooks) > 0)
        hooked = !ptac_saved_is_pack(PyTuple_GetItem(hooks, 0));
    return hooked;
}

PyObject *ptac_node_apply(ptac_op op, PyObject *apply, PyObject *args)
{
    const int hooked = args && apply ? ptac_saving_is_hooked() : -1;
    PyObject *result = NULL, *first;

    if (hooked > 0) {
        ptac_refuse(op, PTAC_HOOKS);
        Py_RETURN_NONE;
    }
    if (hooked == 0)
        result = PyObject_CallObject(apply, args);
    if (!result || !PyTuple_Check(result))
        return result;
    first = Py_XNewRef(PyTuple_GetItem(result, 0));
    Py_DECREF(result);
    return first;
}

/* saving_is_hooked() -> whether hooks of the program see what autograd saves. */
PTAC_NOARGS(saving_is_hooked)
{
    const int hooked = ptac_saving_is_hooked();

    return hooked < 0 ? NULL : PyBool_FromLong(hooked);
}

/*
 * node_learn(((node, number), (node, number), (node, number))): torch's own nodes,
 * which this thread has just made, and their sequence numbers -> whether we can read
 * them.
 */
PTAC_O(node_learn, samples)
{
    PyObject *objects[3];
    void *nodes[3];
    unsigned long long found[3];
    uint64_t numbers[3];

    if (!PyArg_ParseTuple(samples, "(OK)(OK)(OK)", &objects[0], &found[0], &objects[1],
                          &found[1], &objects[2], &found[2]))
        return NULL;
    for (int i = 0; i < 3; i++) {
        nodes[i] = *(void *const *)(objects[i] + 1); /* what the object holds first */
        numbers[i] = found[i];
        if (!nodes[i] || (uintptr_t)nodes[i] % sizeof(void *))
            Py_RETURN_FALSE;
    }
    return PyBool_FromLong(ptac_bf16_learn_nodes(nodes, numbers));
}
