/*
 * copy.c - aten::copy_, to which clone(), contiguous(), to() and reshape() come too.
 *
 * It is called everywhere, and mostly for little: a call is described only where it has
 * as many elements as the smallest that tables serve. It also writes where it is told
 * to, so that it does not go by override.c, which makes the outputs.
 */
#include "bind/torch/overrides/override.h"

#include "ops/copy/copy.h"

/* What tables call an element of this dtype of torch's, by its bytes. */
static ptac_dtype dtype_of(int32_t torchs)
{
    switch (torchs) {
    case AT_DTYPE_F32:
    case AT_DTYPE_I32:
        return PTAC_F32;
    case AT_DTYPE_F64:
    case AT_DTYPE_I64:
        return PTAC_F64;
    case AT_DTYPE_F16:
    case AT_DTYPE_BF16:
    case AT_DTYPE_I16:
        return PTAC_BF16;
    default: /* also complex ones, which may be conjugated */
        return PTAC_OTHER_DTYPE;
    }
}

static int bytes_of(ptac_dtype dtype)
{
    return dtype == PTAC_F32 ? 4 : dtype == PTAC_F64 ? 8 : 2;
}

/* Torch does more than to copy, or something else. */
static bool is_special(at_tensor tensor)
{
    return T.native_is_neg(tensor) || ptac_has_names(tensor);
}

static ptac_reason read(at_tensor self, at_tensor src, ptac_call *call, ptac_copy *plan)
{
    ptac_view *to = &call->outputs[0], *from = &call->inputs[0];
    int32_t of_self = -1, of_src = -1;
    ptac_reason why;
    int bytes;

    T.aoti_torch_get_dtype(self, &of_self);
    T.aoti_torch_get_dtype(src, &of_src);
    if (of_self != of_src || dtype_of(of_self) == PTAC_OTHER_DTYPE)
        return PTAC_DTYPE;
    ptac_view_of(self, to);
    ptac_view_of(src, from);
    to->dtype = from->dtype = dtype_of(of_self);
    if (to->n_elements == 0)
        return PTAC_EMPTY;
    if (!from->data || !to->data) /* a tensor of zeros that has no memory */
        return PTAC_ARGUMENT;
    bytes = bytes_of(to->dtype);
    why = ptac_copy_plan(to, from, bytes, plan);
    if (!why && !ptac_views_are_apart(to, bytes, from, bytes))
        why = PTAC_OVERLAP;
    return why;
}

/* A contiguous tensor with the elements that stock copies from there, or NULL. */
static at_tensor copied(at_tensor tensor, const ptac_view *sizes_of, ptac_view *view)
{
    int32_t dtype = -1;
    at_tensor made = NULL;

    T.aoti_torch_get_dtype(tensor, &dtype);
    if (sizes_of->n_dims > PTAC_MAX_DIMS ||
        at_new(dtype, sizes_of->n_dims, sizes_of->sizes, &made))
        return NULL;
    ptac_view_of(made, view);
    view->dtype = sizes_of->dtype;
    T.native_copy_(made, tensor, false);
    return made;
}

/* A shadow check: what stock copies from src is what the row has put into self. */
static bool run_checked(const ptac_kernel *row, const ptac_call *call, at_tensor self,
                        at_tensor src)
{
    const ptac_view *to = &call->outputs[0];
    const int64_t t_start = ptac_now_ns();
    int64_t t_middle, t_end;
    ptac_view views[2];

    if (!ptac_run(row, call))
        return false;
    t_middle = ptac_now_ns();
    AT_OWNED at_tensor expected = copied(src, to, &views[1]);
    t_end = ptac_now_ns();
    AT_OWNED at_tensor ours = copied(self, to, &views[0]);

    if (expected && ours &&
        !ptac_shadow_agrees(row, &views[0], &views[1], 1, t_middle - t_start,
                            t_end - t_middle))
        T.native_copy_(self, src, false);
    return true;
}

/* False: stock has to do it; the reason has been counted. */
static bool serve(at_tensor self, at_tensor src)
{
    int64_t n_elements = 0;
    const ptac_kernel *row;
    ptac_reason why;
    ptac_copy plan;
    ptac_call call;

    if (ptac_is_off(PTAC_OP_COPY))
        return false;
    T.aoti_torch_get_numel(self, &n_elements);
    if (n_elements < ptac_chooser_least_work(PTAC_OP_COPY)) {
        ptac_refuse(PTAC_OP_COPY, PTAC_NOT_FASTER);
        return false;
    }
    call.op = PTAC_OP_COPY;
    call.on = PTAC_ON_CPU;
    call.n_inputs = call.n_outputs = 1;
    call.params = &plan;
    why = read(self, src, &call, &plan);
    row = why ? NULL : ptac_probe(&call, &why);
    if (row && (is_special(self) || is_special(src)))
        why = PTAC_ARGUMENT;
    if (why) {
        ptac_refuse(PTAC_OP_COPY, why);
        return false;
    }
    return ptac_shadow_due(PTAC_OP_COPY) ? run_checked(row, &call, self, src)
                                         : ptac_run(row, &call);
}

static void boxed(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor self = (at_tensor)(uintptr_t)stack[0];
    AT_OWNED at_tensor src = (at_tensor)(uintptr_t)stack[1];

    (void)n_args;
    (void)n_returns;
    if (!serve(self, src))
        T.native_copy_(self, src, stack[2] & 0xff);
    stack[0] = (stable_ivalue)(uintptr_t)at_give(&self);
}

#ifdef __x86_64__
/* A C++ function that returns the reference that it is given. */
static at_tensor typed(void *functor, uint64_t keys, at_tensor self, at_tensor src,
                       bool non_blocking)
{
    PTAC_IN_FLIGHT;

    (void)functor;
    (void)keys;
    return serve(self, src) ? self : T.native_copy_(self, src, non_blocking);
}
#define TYPED ((const void *)(uintptr_t)typed)
#else
#define TYPED NULL
#endif

static ptac_override copy = {
    .schema =
        "copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
    .op = PTAC_OP_COPY,
    .needs = &T.native_is_neg,
    .on = {[PTAC_ON_CPU] = {.symbol = &T.native_copy_, .boxed = boxed, .typed = TYPED}},
};

__attribute__((constructor)) static void announce(void)
{
    ptac_override_announce(&copy);
}
