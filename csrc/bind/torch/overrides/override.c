/*
 * override.c - a call of a described operator, and overrides in and out.
 *
 * Each operator has a library object of its own in the dispatcher, so that it can come
 * and go alone.
 */
#include "bind/torch/overrides/override.h"

#include "bind/abi/dispatch_slot.h"
#include "bind/torch/rows/bf16.h"

#include <stdalign.h>
#include <string.h>

enum {
    MAX_OVERRIDES = 64,
};

static const ptac_override *announced[MAX_OVERRIDES];
static at_library libraries[MAX_OVERRIDES];
static bool is_typed[MAX_OVERRIDES];
static int n_announced;

void ptac_override_announce(ptac_override *override)
{
    if (n_announced == MAX_OVERRIDES || !ptac_schema_read(override))
        __builtin_trap();
    announced[n_announced++] = override;
}

/* Whether this torch has a function, by where T keeps its address. */
static bool is_there(const void *member)
{
    void *address;

    memcpy(&address, member, sizeof address);
    return address;
}

void ptac_override_stock(const void *context, at_tensor *out)
{
    const ptac_arguments *args = context;

    if (is_there(args->of->symbol))
        at_adopt_all(args->of->kernel(args), args->of->n_outputs, out);
    else
        ptac_arguments_call_out(args, out);
}

/* Inputs without gaps, in the layout of the output. */
static void make_dense(const ptac_arguments *args, const ptac_output *output,
                       ptac_call *call, at_tensors *owned)
{
    for (int i = 0; i < call->n_inputs; i++) {
        ptac_view *view = &call->inputs[i];

        if (!(output->dense >> i & 1) ||
            (output->channels_last ? ptac_view_is_channels_last(view)
                                   : ptac_view_is_contiguous(view)))
            continue;
        owned->at[i] =
            at_dense(args->at[args->of->inputs[i]].tensor, view, output->channels_last);
        ptac_view_of(owned->at[i], view);
    }
}

/* Without memory stock is called, which raises torch's own error. */
static at_error make_outputs(const ptac_output *output, ptac_call *call)
{
    int64_t strides[PTAC_MAX_DIMS];
    at_error error = 0;

    if (output->n_dims < 0)
        return 0;
    if (output->channels_last)
        ptac_image_strides(output->n_dims, output->sizes, true, strides);
    for (int i = 0; i < call->n_outputs && !error; i++)
        error = ptac_new(i == 0 ? call->inputs[0].dtype : PTAC_I64, output->n_dims,
                         output->sizes, output->channels_last ? strides : NULL,
                         &output->made[i], &call->outputs[i]);
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
                const ptac_output *output)
{
    __attribute__((cleanup(drop_outputs))) at_tensor *unfinished = output->made;
    AT_OWNED_ALL at_tensors dense = {{NULL}};

    make_dense(args, output, call, &dense);
    if (make_outputs(output, call)) {
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    if (!ptac_run_checked(row, call, output->made, ptac_override_stock, args))
        return false;
    if (row->in_bf16 && args->of->marks)
        mark(args, row);
    unfinished = NULL;
    return true;
}

/* False: stock has to do it; the reason has been counted. */
static bool serve(const ptac_arguments *args, at_tensor *out)
{
    const ptac_override *override = args->of;
    alignas(max_align_t) char params[PTAC_PARAMS_BYTES];
    const ptac_kernel *row;
    ptac_output output;
    ptac_call call;
    ptac_reason why;

    call.op = override->op;
    call.params = params;
    call.n_inputs = 0;
    call.n_outputs = override->n_outputs;
    for (int i = 0; i < override->n_inputs; i++)
        if (args->at[override->inputs[i]].is_given)
            call.inputs[call.n_inputs++] = args->at[override->inputs[i]].view;
    output.made = out;
    output.sizes = output.own_sizes;
    output.channels_last = false;
    output.dense = ~0u;
    why = override->read(args, &call, params, &output);
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    row = override->admit ? override->admit(&call) : ptac_admit(&call);
    return row && run(args, row, &call, &output);
}

static bool try_serve(ptac_arguments *args, at_tensor *out)
{
    const ptac_override *override = args->of;

    if (ptac_is_off(override->op))
        return false;
    ptac_arguments_view(args);
    return (override->serve ? override->serve : serve)(args, out);
}

void ptac_override_call_typed(const ptac_override *override,
                              const ptac_typed_call *call, void **result)
{
    PTAC_IN_FLIGHT;
    const int n = override->n_outputs;
    at_tensor out[PTAC_MAX_OUTPUTS] = {NULL};
    ptac_arguments args;

    args.of = override;
    ptac_arguments_borrow(call, &args);
    if (!try_serve(&args, out)) {
        if (is_there(override->symbol)) {
            const at_result made = override->kernel(&args);

            result[0] = made.words[0]; /* memcpy would be a call */
            if (n > 1)
                result[1] = made.words[1];
            if (n > 2)
                result[2] = made.words[2];
            return;
        }
        ptac_override_stock(&args, out);
    }
    for (int i = 0; i < n; i++)
        result[n - 1 - i] = at_release(&out[i]);
}

void ptac_override_call(const ptac_override *override, stable_ivalue *stack)
{
    PTAC_IN_FLIGHT;
    __attribute__((cleanup(ptac_arguments_drop))) ptac_arguments args;
    at_tensor out[PTAC_MAX_OUTPUTS] = {NULL};

    args.of = override;
    ptac_arguments_take(stack, &args);
    if (!try_serve(&args, out))
        ptac_override_stock(&args, out);
    for (int i = 0; i < override->n_outputs; i++)
        stack[i] = (stable_ivalue)(uintptr_t)out[i];
}

const ptac_override *ptac_override_at(int i)
{
    return i < n_announced ? announced[i] : NULL;
}

static bool is_possible(const ptac_override *override)
{
    return (override->out || is_there(override->symbol)) &&
           (!override->needs || is_there(override->needs));
}

static void remove_one(int i)
{
    if (libraries[i])
        T.aoti_torch_delete_library_object(libraries[i]);
    libraries[i] = NULL;
}

static const char *install_one(int i)
{
    const ptac_override *override = announced[i];
    at_library library = NULL;
    at_entry entry = {NULL};

    if (T.aoti_torch_library_init_impl("aten", "CPU", "pai_torchacc", 0, &library))
        return "could not open a dispatcher library";
    if (override->typed && override->can_be_typed)
        at_entry_remember(override->name, &entry);
    if (T.torch_library_impl(library, override->name, override->boxed,
                             PTAC_TORCH_ABI_VERSION)) {
        at_entry_forget(&entry);
        T.aoti_torch_delete_library_object(library);
        return "could not register a kernel";
    }
    is_typed[i] = at_entry_set_typed(&entry, override->boxed, override->typed);
    libraries[i] = library;
    return NULL;
}

const char *ptac_override_install(uint64_t ops)
{
    const uint64_t before = ptac_override_installed(false);

    for (int i = 0; i < n_announced; i++) {
        const uint64_t bit = UINT64_C(1) << announced[i]->op;
        const char *trouble = NULL;

        if (!(ops & bit) || libraries[i] || !is_possible(announced[i]))
            continue;
        trouble = install_one(i);
        if (trouble) {
            for (int j = 0; j < i; j++)
                if (!(before & UINT64_C(1) << announced[j]->op))
                    remove_one(j);
            return trouble;
        }
    }
    return NULL;
}

uint64_t ptac_override_installed(bool only_typed)
{
    uint64_t ops = 0;

    for (int i = 0; i < n_announced; i++)
        if (libraries[i] && (is_typed[i] || !only_typed))
            ops |= UINT64_C(1) << announced[i]->op;
    return ops;
}

void ptac_override_remove(uint64_t ops)
{
    /* Torch restores the kernel that each registration had covered. */
    for (int i = n_announced - 1; i >= 0; i--)
        if (ops & UINT64_C(1) << announced[i]->op)
            remove_one(i);
}
