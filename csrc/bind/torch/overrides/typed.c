/*
 * typed.c - reading the arguments of a C++ call by the types of a schema.
 *
 * What C++ passes by value goes as C passes it: System V's ABI for x86-64. An argument
 * of two words is in two registers, or wholly on the stack where two are not left. One
 * of three words is always on the stack.
 */
#include "bind/torch/overrides/override.h"

#include <string.h>

/* How far a call's arguments have been read. */
typedef struct reader {
    const ptac_typed_call *call;
    const uint64_t *stack;
    int n_registers, n_reals;
} reader;

/* The next one, two or three words. */
static const uint64_t *next(reader *r, int n_words)
{
    const uint64_t *at = r->call->registers + r->n_registers;

    if (n_words <= 2 && r->n_registers + n_words <= PTAC_TYPED_REGISTERS) {
        r->n_registers += n_words;
        return at;
    }
    at = r->stack;
    r->stack += n_words;
    return at;
}

/* An optional double: its number and its flag are of different kinds. */
static void read_optional_real(reader *r, ptac_argument *to)
{
    if (r->n_registers < PTAC_TYPED_REGISTERS) {
        to->real = r->call->reals[r->n_reals++];
        to->is_given = *next(r, 1) & 1;
        return;
    }
    memcpy(&to->real, r->stack, sizeof to->real);
    to->is_given = r->stack[1] & 1;
    r->stack += 2;
}

/* An ArrayRef. */
static void read_ints(const uint64_t *words, ptac_argument *to)
{
    ptac_dims *ints = &to->ints;

    to->all = (const int64_t *)(uintptr_t)words[0];
    ints->n = (int)words[1];
    for (int i = 0; i < ints->n && i < 4; i++)
        ints->values[i] = to->all[i];
    if (ints->n == 1)
        ints->values[1] = to->all[0];
}

/* A tensor's address is a handle; an optional tensor's flag is in its second word. */
static void read_tensor(uint64_t word, bool is_optional, ptac_argument *to)
{
    at_tensor tensor = (at_tensor)(uintptr_t)word;
    const uint64_t *words = (const uint64_t *)(uintptr_t)word;

    if (is_optional) {
        to->is_given = words[1] & 1;
        if (to->is_given)
            T.aoti_torch_is_defined(tensor, &to->is_given);
    }
    to->tensor = to->is_given ? tensor : NULL;
}

/* std::array<bool, n>. */
static void read_mask(uint64_t word, int n, ptac_argument *to)
{
    to->ints.n = n;
    to->all = to->ints.values;
    for (int i = 0; i < n; i++)
        to->ints.values[i] = word >> 8 * i & 0xff;
}

static void read_scalar(const at_scalar *scalar, ptac_argument *to)
{
    to->scalar = scalar;
    to->is_given = ptac_scalar_read(scalar, &to->value);
}

static void read_one(reader *r, char type, ptac_argument *to)
{
    const uint64_t *words;

    to->is_given = true;
    switch (type) {
    case 't':
    case 'T':
        read_tensor(*next(r, 1), type == 'T', to);
        break;
    case 'l':
        read_ints(next(r, 2), to);
        break;
    case 'L':
        words = next(r, 3);
        to->is_given = words[2] & 1;
        to->ints.n = 0;
        to->all = to->ints.values;
        if (to->is_given)
            read_ints(words, to);
        break;
    case 'm':
    case 'p':
        read_mask(*next(r, 1), type == 'm' ? 3 : 2, to);
        break;
    case 'x':
        words = next(r, 2);
        to->text = (at_text){words[0], (const char *)(uintptr_t)words[1]};
        break;
    case 'b':
        to->truth = *next(r, 1) & 0xff;
        break;
    case 's':
        to->number = (int8_t)*next(r, 1);
        break;
    case 'S': /* a byte, and its flag */
        words = next(r, 1);
        to->number = (int8_t)*words;
        to->is_given = *words >> 8 & 1;
        break;
    case 'd':
        to->real = r->call->reals[r->n_reals++];
        break;
    case 'D':
        read_optional_real(r, to);
        break;
    case 'c':
        read_scalar((const at_scalar *)(uintptr_t)*next(r, 1), to);
        break;
    case 'I':
        words = next(r, 2);
        to->number = (int64_t)words[0];
        to->is_given = words[1] & 1;
        break;
    default: /* an int */
        to->number = (int64_t)*next(r, 1);
    }
}

void ptac_arguments_borrow(const ptac_typed_call *call, ptac_arguments *args)
{
    reader r = {call, call->stack, 0, 0};

    for (int i = 0; i < args->of->n_arguments; i++)
        read_one(&r, args->of->types[i], &args->at[i]);
}
