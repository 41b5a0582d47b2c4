/*
 * handle.h - who owns a tensor handle, written down where it is declared.
 *
 *   AT_OWNED at_tensor x = ...;    released when x goes out of scope, also while a C++
 *                                  exception passes through (-fexceptions)
 *   AT_OWNED_ALL at_tensors x      likewise, of several
 *   at_give(&x)                    hands x on and forgets it
 *
 * A handle is a heap at::Tensor, that is one word holding a TensorImpl pointer. So the
 * address of any such word is a borrowed handle.
 */
#ifndef PTAC_BIND_ABI_HANDLE_H
#define PTAC_BIND_ABI_HANDLE_H

#include "bind/abi/torch_abi.h"

static inline void at_drop_tensor(at_tensor *owned)
{
    if (*owned)
        T.aoti_torch_delete_tensor_object(*owned);
    *owned = NULL;
}

enum {
    AT_MAX_TENSORS = 7,
};

/* The inputs or outputs of a call. */
typedef struct at_tensors {
    at_tensor at[AT_MAX_TENSORS];
} at_tensors;

static inline void at_drop_tensors(at_tensors *owned)
{
    for (int i = 0; i < AT_MAX_TENSORS; i++)
        at_drop_tensor(&owned->at[i]);
}

static inline void at_drop_list(at_list *owned)
{
    if (*owned)
        T.torch_delete_list(*owned);
}

#define AT_OWNED      __attribute__((cleanup(at_drop_tensor)))
#define AT_OWNED_ALL  __attribute__((cleanup(at_drop_tensors)))
#define AT_OWNED_LIST __attribute__((cleanup(at_drop_list)))

static inline at_tensor at_give(at_tensor *owned)
{
    at_tensor given = *owned;

    *owned = NULL;
    return given;
}

/*
 * Throw RuntimeError through the dispatcher, with what the failing shim left behind or
 * the given text where torch forgot it.
 */
__attribute__((noreturn)) void at_throw_last(const char *otherwise);

static inline void at_must(at_error error, const char *what)
{
    if (__builtin_expect(error != 0, 0))
        at_throw_last(what);
}

/* A new handle for the TensorImpl that a C++ function returned. */
at_tensor at_adopt(void *impl);

/* Likewise of a tuple, whose last member comes first. */
void at_adopt_all(at_result tuple, int n, at_tensor *made);

/* The reverse: free the handle, and hand its TensorImpl on. */
void *at_release(at_tensor *owned);

/* Boxed optionals: 0, or a pointer to the value. Both free or make the box. */
stable_ivalue at_open_optional(stable_ivalue boxed, bool *has_value);
stable_ivalue at_box_optional(stable_ivalue value);

#endif
