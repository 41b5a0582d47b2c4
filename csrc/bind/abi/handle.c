/*
 * handle.c - making handles, and turning shim failures into exceptions.
 */
#include "bind/abi/handle.h"

void at_throw_last(const char *otherwise)
{
    const char *text = NULL;

    if (T.torch_exception_get_what_without_backtrace)
        text = T.torch_exception_get_what_without_backtrace();
    T.aoti_torch_check(false, "", "pai_torchacc", 0, text && *text ? text : otherwise);
    __builtin_unreachable();
}

at_tensor at_adopt(void *impl)
{
    at_tensor handle;

    at_must(T.aoti_torch_new_uninitialized_tensor(&handle), "no memory for a handle");
    /* The fresh handle holds the undefined tensor, which is not counted. */
    *(void **)handle = impl;
    return handle;
}

void at_adopt_all(at_result tuple, int n, at_tensor *made)
{
    for (int i = 0; i < n; i++)
        made[i] = at_adopt(tuple.words[n - 1 - i]);
}

/* The undefined tensor, which a fresh handle holds and nobody counts. */
static void *undefined_impl(void)
{
    static void *impl;
    at_tensor fresh;

    if (!__atomic_load_n(&impl, __ATOMIC_RELAXED)) {
        at_must(T.aoti_torch_new_uninitialized_tensor(&fresh),
                "no memory for a handle");
        __atomic_store_n(&impl, *(void **)fresh, __ATOMIC_RELAXED);
        T.aoti_torch_delete_tensor_object(fresh);
    }
    return impl;
}

void *at_release(at_tensor *owned)
{
    void *impl = *(void **)*owned;

    *(void **)*owned = undefined_impl();
    at_drop_tensor(owned);
    return impl;
}

stable_ivalue at_open_optional(stable_ivalue boxed, bool *has_value)
{
    stable_ivalue *box = (stable_ivalue *)(uintptr_t)boxed;

    *has_value = box != NULL;
    if (!box)
        return 0;

    const stable_ivalue value = *box;

    if (T.torch_delete_stable_ivalue)
        T.torch_delete_stable_ivalue(box);
    else
        T.cxx_delete(box);
    return value;
}

stable_ivalue at_box_optional(stable_ivalue value)
{
    stable_ivalue *box = NULL;

    if (T.torch_new_stable_ivalue)
        at_must(T.torch_new_stable_ivalue(&box), "no memory for an optional");
    else
        box = T.cxx_new(sizeof *box);
    *box = value;
    return (stable_ivalue)(uintptr_t)box;
}
