/*
 * dispatch_slot.h - where the dispatcher keeps the address of an operator's CPU kernel.
 *
 * A kernel that the C ABI registers is boxed: torch packs each argument on a stack, and
 * a list of ints costs 0.2 us on the way. Beside the boxed kernel the dispatcher has
 * room for the address of a C++ function, which it prefers. We fill it in where we can
 * prove where it is; elsewhere calls come boxed.
 *
 * Operators with a Scalar cannot be registered so: no Scalar passes the C ABI. Of these
 * we exchange torch's C++ function alone, and call it for what we do not serve. Calls
 * that come boxed, which programs in Python do not make, stay torch's.
 */
#ifndef PTAC_BIND_ABI_DISPATCH_SLOT_H
#define PTAC_BIND_ABI_DISPATCH_SLOT_H

#include "bind/abi/torch_abi.h"

/* What torch knows of an operator, as it was before a registration. */
typedef struct at_entry {
    uint64_t *live;
    uint64_t *before; /* a copy */
    size_t n_words;
    size_t place; /* of the kernel, in words from its beginning; 0: not known */
} at_entry;

/* Remember the operator "aten::<name>" before its kernel is registered. */
void at_entry_remember(const char *name, at_entry *entry);

void at_entry_forget(at_entry *entry);

/*
 * After the registration of boxed: have the dispatcher call typed, a C++ function
 * (functor, keys, arguments...). False where the place is not proved; then calls stay
 * boxed. Frees what was remembered. Torch itself forgets typed with the registration.
 */
bool at_entry_set_typed(at_entry *entry, at_boxed_fn boxed, const void *typed);

/*
 * Where the dispatcher keeps the address of torch's own C++ function for an operator
 * "aten::<name>", whose entry has its kernel at this place. NULL where it does not look
 * so.
 */
uint64_t *at_slot_of(const char *name, size_t place);

/* Have the dispatcher call a function in place of another; false: it is not there. */
bool at_slot_exchange(uint64_t *slot, const void *expected, const void *function);

#endif
