/*
 * autocast.c - tensors as autocast on CUDA gives them to products.
 */
#include "bind/python/callpath/linear/autocast.h"

#include "bind/python/callpath/lean.h"

/* Why no cast is made, which stock would make again; or an exception is set. */
static ptac_reason why_none(bool for_node)
{
    const int hooked = for_node ? ptac_saving_is_hooked() : 0;

    return hooked > 0 ? PTAC_HOOKS : PTAC_TAKE;
}

static bool wrap_all(at_tensors *made, int n, ptac_casts *casts)
{
    for (int i = 0; i < n; i++) {
        at_tensor *one = &made->at[i];

        casts->of[i] = *one ? ptac_wrap(at_give(one)) : Py_NewRef(Py_None);
        if (!casts->of[i])
            return false;
    }
    return true;
}

bool ptac_cast_all(ptac_op op, PyObject *const *tensors, int n, bool for_node,
                   ptac_casts *casts)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};
    at_tensor given[AT_MAX_TENSORS];
    ptac_reason why = why_none(for_node);

    for (int i = 0; i < n; i++)
        given[i] = ptac_borrow_or_null(tensors[i]);
    if (PyErr_Occurred())
        return false;
    if (!why && PTAC_UNLOCKED(ptac_autocast_cast(given, n, made.at)))
        why = PTAC_MEMORY;
    if (why)
        ptac_refuse(op, why);
    return !why && wrap_all(&made, n, casts);
}
