/*
 * arguments.c - reading schemas, and boxed arguments by them.
 */
#include "bind/torch/overrides/override.h"

#include "bind/torch/cuda.h"

#include <stdlib.h>
#include <string.h>

/* A letter for each way that arguments cross the C ABI; upper case: an optional one. */
static const struct {
    const char *name;
    char letter;
} types[] = {
    {"Tensor?", 'T'}, {"Tensor", 't'},      {"SymInt[]?", 'L'},    {"int[]?", 'L'},
    {"int[1]?", 'L'}, {"SymInt[", 'l'},     {"int[", 'l'},         {"bool[3", 'm'},
    {"bool[2", 'p'},  {"ScalarType ", 's'}, {"ScalarType? ", 'S'}, {"SymInt ", 'i'},
    {"int ", 'i'},    {"int? ", 'I'},       {"bool ", 'b'},        {"float ", 'd'},
    {"float? ", 'D'}, {"Scalar ", 'c'},     {"str ", 'x'},
};

static char letter_of(const char *text)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strncmp(text, types[i].name, strlen(types[i].name)) == 0)
            return types[i].letter;
    return '\0';
}

bool ptac_schema_read(ptac_override *override)
{
    const char *at = override->schema, *end = strstr(at, ") -> ");
    const size_t length = strcspn(at, "(");
    int n_reals = 0;

    if (!end || length >= sizeof override->name)
        return false;
    memcpy(override->name, at, length);
    for (at += length; at < end; at++) {
        at += strspn(at, "(, ");
        if (strncmp(at, "*, ", 3) == 0)
            at += 3;
        if (override->n_arguments == PTAC_MAX_ARGUMENTS || !letter_of(at))
            return false;
        n_reals += (letter_of(at) | 0x20) == 'd';
        override->is_only_typed |= letter_of(at) == 'c';
        override->types[override->n_arguments++] = letter_of(at);
        if (strncmp(at, "Tensor(", 7) == 0) /* one that is written */
            at += strcspn(at, ")") + 1;
        at += strcspn(at, ",)");
    }
    override->can_be_typed = n_reals <= PTAC_TYPED_REALS;
    while ((end = strstr(end, "Tensor"))) {
        override->n_outputs++;
        end++;
    }
    return override->n_outputs > 0 && override->n_outputs <= PTAC_MAX_OUTPUTS;
}

static at_tensor unbox(stable_ivalue tensor)
{
    return (at_tensor)(uintptr_t)tensor;
}

/* Room for all of them: more than four are on the heap. */
static int64_t *make_room(ptac_argument *to, size_t n)
{
    int64_t *room = to->ints.values;

    if (n > sizeof to->ints.values / sizeof *room)
        room = malloc(n * sizeof *room);

    at_must(room == NULL, "no memory for a list");
    return room;
}

/* Frees the list. */
static void take_ints(stable_ivalue boxed, char type, ptac_argument *to)
{
    AT_OWNED_LIST at_list list = (at_list)(uintptr_t)boxed;
    ptac_dims *ints = &to->ints;
    int64_t *room;
    size_t n = 0;

    T.torch_list_size(list, &n);
    to->all = room = make_room(to, n);
    ints->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        stable_ivalue element = 0;

        T.torch_list_get_item(list, i, &element);
        room[i] = (int64_t)element & (type == 'l' || type == 'L' ? -1 : 0xff);
        if (i < 4)
            ints->values[i] = room[i];
    }
    if (n == 1)
        ints->values[1] = ints->values[0];
}

/* The text stays in its box. */
static void take_text(stable_ivalue boxed, ptac_argument *to)
{
    to->boxed = (at_text_box)(uintptr_t)boxed;
    to->text = (at_text){0, ""};
    T.torch_string_length(to->boxed, &to->text.length);
    T.torch_string_c_str(to->boxed, &to->text.text);
}

/* Autograd hands on an undefined tensor where there is none. */
static at_tensor if_defined(at_tensor tensor)
{
    bool is_defined = false;

    if (!tensor)
        return NULL;
    T.aoti_torch_is_defined(tensor, &is_defined);
    if (is_defined)
        return tensor;
    T.aoti_torch_delete_tensor_object(tensor);
    return NULL;
}

void ptac_arguments_take(const stable_ivalue *stack, ptac_arguments *args)
{
    /* What is dropped where a list finds no memory: nothing, behind it. */
    for (int i = 0; i < args->of->n_arguments; i++) {
        args->at[i].is_given = false;
        args->at[i].all = args->at[i].ints.values;
    }
    for (int i = 0; i < args->of->n_arguments; i++) {
        ptac_argument *to = &args->at[i];
        const char type = args->of->types[i];
        stable_ivalue value = stack[i];

        to->is_given = true;
        if (type < 'a')
            value = at_open_optional(value, &to->is_given);
        switch (type) {
        case 't':
            to->tensor = unbox(value);
            break;
        case 'T':
            to->tensor = if_defined(unbox(value));
            to->is_given = to->tensor;
            break;
        case 'l':
        case 'L':
        case 'm':
        case 'p':
            to->ints.n = 0;
            to->all = to->ints.values;
            if (to->is_given)
                take_ints(value, type, to);
            break;
        case 'b':
            to->truth = value & 0xff;
            break;
        case 'x':
            take_text(value, to);
            break;
        case 's':
        case 'S':
            to->number = (int32_t)value;
            break;
        default: /* an int, or the bits of a double */
            to->number = (int64_t)value;
        }
    }
}

void ptac_arguments_view(ptac_arguments *args)
{
    for (int i = 0; i < args->of->n_arguments; i++)
        if ((args->of->types[i] | 0x20) == 't' && args->at[i].is_given)
            ptac_view_on(args->on, args->at[i].tensor, &args->at[i].view);
}

void ptac_arguments_drop(ptac_arguments *args)
{
    for (int i = 0; i < args->of->n_arguments; i++) {
        ptac_argument *argument = &args->at[i];
        const char type = args->of->types[i] | 0x20;

        if (type == 't' && argument->is_given)
            T.aoti_torch_delete_tensor_object(argument->tensor);
        if (type == 'x' && argument->is_given)
            T.torch_delete_string(argument->boxed);
        if (type == 'l' && argument->all != argument->ints.values)
            free((void *)(uintptr_t)argument->all);
    }
}

static stable_ivalue box_tensor(at_tensor tensor)
{
    return (stable_ivalue)(uintptr_t)at_share(tensor);
}

static stable_ivalue box_ints(const ptac_argument *from)
{
    const int n = from->ints.n;
    at_list list = NULL;

    at_must(T.torch_new_list_reserve_size((size_t)n, &list), "no memory for a list");
    for (int i = 0; i < n; i++)
        T.torch_list_push_back(list, (stable_ivalue)from->all[i]);
    return (stable_ivalue)(uintptr_t)list;
}

static stable_ivalue box_text(at_text text)
{
    at_text_box boxed = NULL;

    at_must(T.torch_new_string_handle(text.text, text.length, &boxed),
            "no memory for a string");
    return (stable_ivalue)(uintptr_t)boxed;
}

static stable_ivalue box(const ptac_argument *from, char type)
{
    stable_ivalue value = (stable_ivalue)from->number;

    if (!from->is_given)
        return 0;
    if (type == 't' || type == 'T')
        value = box_tensor(from->tensor);
    else if (type == 'l' || type == 'L' || type == 'm' || type == 'p')
        value = box_ints(from);
    else if (type == 'x')
        value = box_text(from->text);
    else if (type == 'b')
        value = from->truth;
    return type < 'a' ? at_box_optional(value) : value;
}

static at_tensor empty(int32_t dtype, at_device device)
{
    static const int64_t zero = 0;
    at_tensor made = NULL;

    at_must(at_new_on(device, dtype, 1, &zero, NULL, &made),
            "could not allocate an output");
    return made;
}

void ptac_arguments_call_out(const ptac_arguments *args, at_tensor *out)
{
    const ptac_override *override = args->of;
    const int n_args = override->n_arguments, n_outputs = override->n_outputs;
    const char *overload = strchr(override->out, '.') + 1;
    stable_ivalue stack[PTAC_MAX_ARGUMENTS + PTAC_MAX_OUTPUTS];
    const at_tensor self = args->at[override->self].tensor;
    const at_device device = {args->on, ptac_cuda_device_of(args->on, self)};
    int32_t dtype = -1;
    char op[80] = "";

    strncat(op, override->out, (size_t)(overload - 1 - override->out));
    T.aoti_torch_get_dtype(self, &dtype);
    for (int i = 0; i < n_args; i++) {
        stack[i] = box(&args->at[i], override->types[i]);
        if ((override->types[i] | 0x20) == 's' && args->at[i].is_given)
            dtype = (int32_t)args->at[i].number;
    }
    for (int i = 0; i < n_outputs; i++) {
        out[i] = empty(i == 0 ? dtype : AT_DTYPE_I64, device);
        /*
         * The second handle keeps the tensor alive: torch 2.11 returns dangling
         * tensors from boxed calls with several outputs.
         */
        stack[n_args + i] = box_tensor(out[i]);
    }
    if (T.torch_call_dispatcher(op, overload, stack, PTAC_TORCH_ABI_VERSION)) {
        for (int i = 0; i < n_outputs; i++)
            at_drop_tensor(&out[i]);
        at_throw_last("torch's own kernel failed (its message is on stderr)");
    }
    for (int i = 0; i < n_outputs; i++)
        T.aoti_torch_delete_tensor_object(unbox(stack[i]));
}
