/*
 * in_place.c - activations that write to their argument: tanh_, sigmoid_, silu_, mish_,
 * hardswish_, hardsigmoid_, and elu_, which selu_ and celu_ call as well.
 *
 * Only C++ calls come here; what is boxed is torch's. The tensor's version has been
 * raised before, by the key above ours.
 */
#ifdef __x86_64__
#include "bind/torch/overrides/direct.h"

#include "ops/activation/activation.h"

static ptac_reason read(ptac_op op, at_tensor self, ptac_view *view)
{
    int64_t n = 0;

    /* Fewer than any row takes, and nothing else sends them to stock. */
    T.aoti_torch_get_numel(self, &n);
    if (!ptac_chooser_gate(op) && !ptac_thread_is_disabled() &&
        n < ptac_chooser_least_work(op))
        return PTAC_NOT_FASTER;
    ptac_view_of(self, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_elements == 0)
        return PTAC_EMPTY;
    return ptac_view_is_dense(view) ? PTAC_TAKE : PTAC_LAYOUT;
}

/* False: stock has to do the call; the reason has been counted. */
static bool serve(ptac_op op, at_tensor self, void *params, ptac_stock_in_place stock,
                  const void *context)
{
    ptac_call call = {.op = op, .n_inputs = 1, .n_outputs = 1, .params = params};
    const ptac_reason why = read(op, self, &call.inputs[0]);
    const ptac_kernel *row = NULL;

    call.outputs[0] = call.inputs[0];
    if (why)
        ptac_refuse(op, why);
    else
        row = ptac_admit(&call);
    return row && ptac_run_in_place(row, &call, self, stock, context);
}

#define IN_PLACE(in_c, id)                                                             \
    static ptac_direct direct_##in_c = {                                               \
        .name = #in_c,                                                                 \
        .overload = "",                                                                \
        .op = PTAC_OP_##id,                                                            \
        .symbol = &T.cpu_##in_c,                                                       \
        .typed = (const void *)(uintptr_t)typed_##in_c,                                \
    };                                                                                 \
    PTAC_DIRECT(direct_##in_c)

/* name_(self), the dispatcher's call. */
#define CURVE(in_c, id)                                                                \
    static void stock_##in_c(at_tensor self, const void *context)                      \
    {                                                                                  \
        (void)context;                                                                 \
        T.cpu_##in_c(self);                                                            \
    }                                                                                  \
                                                                                       \
    static at_tensor typed_##in_c(void *functor, uint64_t keys, at_tensor self)        \
    {                                                                                  \
        PTAC_IN_FLIGHT;                                                                \
                                                                                       \
        (void)functor;                                                                 \
        (void)keys;                                                                    \
        if (ptac_is_off(PTAC_OP_##id) ||                                               \
            !serve(PTAC_OP_##id, self, NULL, stock_##in_c, NULL))                      \
            T.cpu_##in_c(self);                                                        \
        return self;                                                                   \
    }                                                                                  \
    IN_PLACE(in_c, id)

CURVE(tanh_, TANH)
CURVE(sigmoid_, SIGMOID)
CURVE(silu_, SILU)
CURVE(mish_, MISH)
CURVE(hardswish_, HARDSWISH)
CURVE(hardsigmoid_, HARDSIGMOID)

/* alpha, scale and input_scale */
typedef struct elu_args {
    const at_scalar *numbers[3];
} elu_args;

static void stock_elu_(at_tensor self, const void *context)
{
    const elu_args *a = context;

    T.cpu_elu_(self, a->numbers[0], a->numbers[1], a->numbers[2]);
}

static bool serve_elu_(at_tensor self, const elu_args *a)
{
    double values[3];
    ptac_elu params;

    for (int i = 0; i < 3; i++)
        if (!ptac_scalar_read(a->numbers[i], &values[i])) {
            ptac_refuse(PTAC_OP_ELU, PTAC_ARGUMENT);
            return false;
        }
    params = ptac_elu_of(values[0], values[1], values[2]);
    if (params.input_scale < 0) { /* what is below 0 may overflow */
        ptac_refuse(PTAC_OP_ELU, PTAC_ARGUMENT);
        return false;
    }
    return serve(PTAC_OP_ELU, self, &params, stock_elu_, a);
}

static at_tensor typed_elu_(void *functor, uint64_t keys, at_tensor self,
                            const at_scalar *alpha, const at_scalar *scale,
                            const at_scalar *input_scale)
{
    PTAC_IN_FLIGHT;
    const elu_args args = {{alpha, scale, input_scale}};

    (void)functor;
    (void)keys;
    if (ptac_is_off(PTAC_OP_ELU) || !serve_elu_(self, &args))
        stock_elu_(self, &args);
    return self;
}
IN_PLACE(elu_, ELU)
#endif
