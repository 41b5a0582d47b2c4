/*
 * stack.c - aten::stack along a new last dimension.
 *
 * A list of tensors comes as C++ has it: only C++ calls come here, boxed ones are
 * torch's.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/direct.h"

#include "ops/copy/stack.h"

#include <string.h>

static at_tensor tensor_at(const at_tensor_span *list, int i)
{
    return (at_tensor)(uintptr_t)&list->data[i];
}

static ptac_reason read(const at_tensor_span *list, int64_t dim, ptac_call *call)
{
    ptac_view *first = &call->inputs[0];

    if (list->size < 2 || list->size > PTAC_MAX_INPUTS)
        return PTAC_ARGUMENT;
    ptac_view_of(tensor_at(list, 0), first);
    if (dim != -1 && dim != first->n_dims)
        return PTAC_ARGUMENT;
    if (first->n_dims >= PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    call->n_inputs = (int)list->size;
    for (int i = 0; i < call->n_inputs; i++) {
        ptac_view *view = &call->inputs[i];

        ptac_view_of(tensor_at(list, i), view);
        if (view->dtype != PTAC_F32)
            return PTAC_DTYPE;
        if (!ptac_view_has_sizes(view, first->n_dims, first->sizes))
            return PTAC_SHAPE;
        if (view->n_elements == 0)
            return PTAC_EMPTY;
        if (!ptac_view_is_contiguous(view))
            return PTAC_LAYOUT;
    }
    return PTAC_TAKE;
}

typedef struct stack_args {
    at_tensor_span list;
    int64_t dim;
} stack_args;

static void stock(const void *context, at_tensor *out)
{
    PTAC_MUTED;
    const stack_args *a = context;

    out[0] = at_adopt(T.stack(a->list, a->dim).words[0]);
}

/* False: stock has to do the call; the reason has been counted. */
static bool serve(const stack_args *a, at_tensor *made)
{
    ptac_call call = {.op = PTAC_OP_STACK, .n_outputs = 1};
    const ptac_view *first = &call.inputs[0];
    const ptac_reason why = read(&a->list, a->dim, &call);
    const ptac_kernel *row = NULL;
    int64_t sizes[PTAC_MAX_DIMS];

    if (why)
        ptac_refuse(call.op, why);
    else
        row = ptac_admit(&call);
    if (!row)
        return false;
    for (int i = 0; i < first->n_dims; i++)
        sizes[i] = first->sizes[i];
    sizes[first->n_dims] = call.n_inputs;
    if (ptac_new(PTAC_F32, first->n_dims + 1, sizes, NULL, made, &call.outputs[0])) {
        ptac_refuse(call.op, PTAC_MEMORY);
        return false;
    }
    return ptac_run_checked(row, &call, 1, made, stock, a);
}

/* The dispatcher's call. */
static void *typed(void **result, void *functor, uint64_t keys, at_tensor_span list,
                   int64_t dim)
{
    PTAC_IN_FLIGHT;
    const stack_args args = {list, dim};
    AT_OWNED at_tensor made = NULL;

    (void)functor;
    (void)keys;
    if (!ptac_is_off(PTAC_OP_STACK) && serve(&args, &made))
        *result = at_release(&made);
    else
        *result = T.stack(list, dim).words[0];
    return result;
}

static ptac_direct stack = {
    .name = "stack",
    .overload = "",
    .op = PTAC_OP_STACK,
    .symbol = &T.stack,
    .typed = (const void *)(uintptr_t)typed,
};
PTAC_DIRECT(stack)
#endif
