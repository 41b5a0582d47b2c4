/*
 * arguments.c - reading schemas, and boxed arguments by them.
 */
#include "bind/torch/overrides/arguments.h"

#include <string.h>

/* A letter for each way that arguments cross the C ABI; upper case: an optional one. */
static const struct {
    const char *name;
    char letter;
} types[] = {
    {"Tensor?", 'T'}, {"Tensor", 't'},  {"SymInt[]?", 'L'}, {"int[]?", 'L'},
    {"SymInt[", 'l'}, {"int[", 'l'},    {"bool[", 'm'},     {"ScalarType ", 's'},
    {"SymInt ", 'i'}, {"int ", 'i'},    {"int? ", 'I'},     {"bool ", 'b'},
    {"float ", 'd'},  {"float? ", 'D'},
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
        override->types[override->n_arguments++] = letter_of(at);
        at += strcspn(at, ",)");
    }
    override->can_be_typed = n_reals <= PTAC_TYPED_REALS;
    while ((end = strstr(end, "Tensor"))) {
        override->n_outputs++;
        end++;
    }
    return override->n_outputs > 0 && override->n_outputs <= PTAC_MAX_OUTPUTS;
}

static void take_ints(stable_ivalue boxed, char type, ptac_dims *ints)
{
    ints->n = at_take_ints(boxed, ints->values);
    for (int i = 0; type == 'm' && i < 4; i++)
        ints->values[i] &= 0xff;
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
    for (int i = 0; i < args->of->n_arguments; i++) {
        ptac_argument *to = &args->at[i];
        const char type = args->of->types[i];
        stable_ivalue value = stack[i];

        to->is_given = true;
        if (type < 'a')
            value = at_open_optional(value, &to->is_given);
        switch (type) {
        case 't':
            to->tensor = (at_tensor)(uintptr_t)value;
            break;
        case 'T':
            to->tensor = if_defined((at_tensor)(uintptr_t)value);
            to->is_given = to->tensor;
            break;
        case 'l':
        case 'L':
        case 'm':
            to->ints.n = 0;
            if (to->is_given)
                take_ints(value, type, &to->ints);
            break;
        case 'b':
            to->truth = value & 0xff;
            break;
        case 's':
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
            ptac_view_of(args->at[i].tensor, &args->at[i].view);
}

void ptac_arguments_drop(ptac_arguments *args)
{
    for (int i = 0; i < args->of->n_arguments; i++)
        if ((args->of->types[i] | 0x20) == 't' && args->at[i].is_given)
            T.aoti_torch_delete_tensor_object(args->at[i].tensor);
}

void ptac_arguments_box(const ptac_arguments *args, stable_ivalue *stack)
{
    for (int i = 0; i < args->of->n_arguments; i++) {
        const ptac_argument *from = &args->at[i];
        const char type = args->of->types[i];
        stable_ivalue value = (stable_ivalue)from->number;

        if (!from->is_given) {
            stack[i] = 0;
            continue;
        }
        if (type == 't' || type == 'T')
            value = at_box_tensor(from->tensor);
        else if (type == 'l' || type == 'L' || type == 'm')
            value =
                at_make_ints(from->ints.values, from->ints.n > 4 ? 4 : from->ints.n);
        else if (type == 'b')
            value = from->truth;
        stack[i] = type < 'a' ? at_box_optional(value) : value;
    }
}
