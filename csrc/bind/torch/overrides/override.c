/*
 * override.c - a call of a described operator.
 */
#include "bind/torch/overrides/override.h"

#include "bind/torch/cuda.h"
#include "bind/torch/rows/bf16.h"

#include <stdalign.h>

void ptac_override_stock(const void *context, at_tensor *out)
{
    const ptac_arguments *args = context;
    const ptac_override_side *own = ptac_torchs_own(args);

    if (own)
        at_adopt_all(own->kernel(args), args->of->n_outputs, out);
    else
        ptac_arguments_call_out(args, out);
}

/* Inputs without gaps, in the layout of the outputs. */
static void make_dense(const ptac_arguments *args, const ptac_outputs *outputs,
                       ptac_call *call, at_tensors *owned)
{
    for (int i = 0; i < call->n_inputs; i++) {
        ptac_view *view = &call->inputs[i];

        if (!(outputs->dense >> i & 1) ||
            (outputs->channels_last ? ptac_view_is_channels_last(view)
                                    : ptac_view_is_contiguous(view)))
            continue;
        owned->at[i] = at_dense(args->at[args->of->inputs[i]].tensor, view,
                                outputs->channels_last);
        ptac_view_on(call->on, owned->at[i], view);
    }
}

at_error ptac_override_output(const ptac_outputs *outputs, int i, ptac_call *call,
                              at_tensor *made)
{
    const ptac_output *output = &outputs->at[i];
    const at_device device = {call->on, call->device};
    const int64_t *strides = output->strides;
    int64_t of_images[PTAC_MAX_DIMS];
    at_error error;

    if (output->n_dims < 0)
        return T.aoti_torch_new_uninitialized_tensor(made);
    if (outputs->channels_last && !strides) {
        ptac_image_strides(output->n_dims, output->sizes, true, of_images);
        strides = of_images;
    }
    error =
        at_new_on(device, output->dtype, output->n_dims, output->sizes, strides, made);
    if (!error)
        ptac_view_on(call->on, *made, &call->outputs[output->place]);
    return error;
}

/*
 * Those of the schema go to outputs->made, others to work. Without memory stock is
 * called, which raises torch's own error.
 */
static at_error make_outputs(const ptac_outputs *outputs, int n_made,
                             const ptac_kernel *row, ptac_call *call, at_tensors *work)
{
    const bool makes_none = outputs->bf16_makes && row->in_bf16;
    at_error error = 0;

    call->n_outputs = outputs->n;
    for (int i = 0; i < PTAC_MAX_OUTPUTS; i++)
        call->outputs[i] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    for (int i = 0; i < outputs->n && !makes_none && !error; i++)
        error = ptac_override_output(outputs, i, call,
                                     i < n_made ? &outputs->made[i] : &work->at[i]);
    return error;
}

static void drop_outputs(at_tensor **unfinished)
{
    for (int i = 0; *unfinished && i < PTAC_MAX_OUTPUTS; i++)
        at_drop_tensor(&(*unfinished)[i]);
}

static void mark(const ptac_arguments *args, const ptac_kernel *row)
{
    const int n = args->of->n_inputs;
    at_tensor inputs[AT_MAX_TENSORS];

    if (ptac_chooser_is_quarantined(row)) /* by a shadow check */
        return;
    for (int i = 0; i < n; i++)
        inputs[i] = args->at[args->of->inputs[i]].tensor;
    ptac_bf16_mark(inputs, n);
}

static bool run(const ptac_arguments *args, const ptac_kernel *row, ptac_call *call,
                const ptac_outputs *outputs)
{
    const int n_made = args->of->n_outputs;
    __attribute__((cleanup(drop_outputs))) at_tensor *unfinished = outputs->made;
    AT_OWNED_ALL at_tensors dense = {{NULL}}, work = {{NULL}};
    PTAC_CUDA_SCOPE scope = {false};

    if (!ptac_cuda_begin(call, &scope)) {
        ptac_refuse(call->op, PTAC_DEVICE);
        return false;
    }
    make_dense(args, outputs, call, &dense);
    if (make_outputs(outputs, n_made, row, call, &work)) {
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    if (!ptac_run_checked(row, call, n_made, outputs->made, ptac_override_stock, args))
        return false;
    if (row->in_bf16 && args->of->marks)
        mark(args, row);
    unfinished = NULL;
    return true;
}

/* The CUDA device that all tensors of a call lie on, or why stock has to see to it. */
static ptac_reason place_of(const ptac_arguments *args, int *device)
{
    *device = -1;
    for (int i = 0; i < args->of->n_arguments; i++) {
        const ptac_argument *argument = &args->at[i];

        if ((args->of->types[i] | 0x20) != 't' || !argument->is_given)
            continue;
        if (*device < 0)
            *device = argument->view.device;
        if (argument->view.device < 0 || argument->view.device != *device)
            return PTAC_DEVICE;
    }
    return PTAC_TAKE;
}

void ptac_override_inputs(const ptac_arguments *args, ptac_call *call)
{
    call->n_inputs = 0;
    for (int i = 0; i < args->of->n_inputs; i++) {
        const int from = args->of->inputs[i];

        call->inputs[i] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (from == PTAC_NO_ARGUMENT || !args->at[from].is_given)
            continue;
        call->inputs[i] = args->at[from].view;
        call->n_inputs = i + 1;
    }
}

void ptac_override_expect(const ptac_call *call, int n, ptac_outputs *outputs)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    outputs->n = n;
    outputs->bf16_makes = outputs->channels_last = false;
    outputs->dense = ~0u;
    for (int i = 0; i < n; i++)
        outputs->at[i] = (ptac_output){
            .dtype = i > 0 || dtype == PTAC_OTHER_DTYPE ? AT_DTYPE_I64
                                                        : ptac_torch_dtype(dtype),
            .place = i,
        };
}

/* False: stock has to do it; the reason has been counted. */
static bool serve(const ptac_arguments *args, at_tensor *out)
{
    const ptac_override *override = args->of;
    alignas(max_align_t) char params[PTAC_PARAMS_BYTES];
    const ptac_kernel *row;
    ptac_outputs outputs;
    ptac_call call;
    ptac_reason why;

    call.op = override->op_of ? override->op_of(args) : override->op;
    call.on = args->on;
    call.device = 0;
    call.kept = NULL;
    call.params = params;
    ptac_override_inputs(args, &call);
    ptac_override_expect(&call, override->n_outputs, &outputs);
    outputs.made = out;
    why = args->on == PTAC_ON_CUDA ? place_of(args, &call.device) : PTAC_TAKE;
    if (!why)
        why = override->read(args, &call, params, &outputs);
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    row = override->admit ? override->admit(&call) : ptac_admit(&call);
    return row && run(args, row, &call, &outputs);
}

/* Torch's kernels of some operators give names to their outputs, or complain. */
static bool is_named(const ptac_arguments *args)
{
    for (int i = 0; i < args->of->n_arguments; i++)
        if ((args->of->types[i] | 0x20) == 't' && args->at[i].is_given &&
            ptac_has_names(args->at[i].tensor))
            return true;
    return false;
}

static bool try_serve(ptac_arguments *args, at_tensor *out)
{
    const ptac_override *override = args->of;

    if (ptac_is_off(override->op))
        return false;
    if (override->is_small && args->on == PTAC_ON_CPU && override->is_small(args)) {
        ptac_refuse(override->op, PTAC_NOT_FASTER);
        return false;
    }
    if (T.has_names && is_named(args)) {
        ptac_refuse(override->op, PTAC_ARGUMENT);
        return false;
    }
    ptac_arguments_view(args);
    return (override->serve ? override->serve : serve)(args, out);
}

void ptac_override_call_typed(const ptac_override *override, ptac_device on,
                              const ptac_typed_call *call, void **result)
{
    PTAC_IN_FLIGHT;
    const int n = override->n_outputs;
    at_tensor out[PTAC_MAX_OUTPUTS] = {NULL};
    ptac_arguments args;

    args.of = override;
    args.on = on;
    ptac_arguments_borrow(call, &args);
    if (!try_serve(&args, out)) {
        const ptac_override_side *own = ptac_torchs_own(&args);

        if (own) {
            const at_result made = own->kernel(&args);

            result[0] = made.words[0]; /* memcpy would be a call */
            if (n > 1)
                result[1] = made.words[1];
            if (n > 2)
                result[2] = made.words[2];
            if (n > 3)
                result[3] = made.words[3];
            return;
        }
        ptac_override_stock(&args, out);
    }
    for (int i = 0; i < n; i++)
        result[n - 1 - i] = at_release(&out[i]);
}

void ptac_override_call(const ptac_override *override, ptac_device on,
                        stable_ivalue *stack)
{
    PTAC_IN_FLIGHT;
    __attribute__((cleanup(ptac_arguments_drop))) ptac_arguments args;
    at_tensor out[PTAC_MAX_OUTPUTS] = {NULL};

    args.of = override;
    args.on = on;
    ptac_arguments_take(stack, &args);
    if (!try_serve(&args, out))
        ptac_override_stock(&args, out);
    for (int i = 0; i < override->n_outputs; i++)
        stack[i] = (stable_ivalue)(uintptr_t)out[i];
}
