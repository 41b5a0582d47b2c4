/*
 * dispatch_slot.h - where the dispatcher keeps the address of an operator's CPU kernel.
 *
 * A kernel that the C ABI registers is boxed: torch packs each argument on a stack, and
 * a list of ints costs 0.2 us on the way. Beside the boxed kernel the dispatcher has
 * room for the address of a C++ function, which it prefers. We fill it in where we can
 * prove where it is; elsewhere calls come boxed.
 */
#ifndef PTAC_BIND_ABI_DISPATCH_SLOT_H
#define PTAC_BIND_ABI_DISPATCH_SLOT_H

#include "bind/abi/torch_abi.h"

/* What torch knows of an operator, as it was before a registration. */
typedef struct at_entry {
    bool is_on_cpu; /* the registration is for the CPU: set by who registers */
    uint64_t *live;
    uint64_t *before; /* a copy */
    size_t n_words;
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
 * The word of "aten::<name>.<overload>" that holds the address of torch's C++ kernel on
 * the CPU. It lies in each operator's entry where at_entry_set_typed() has proved it to
 * lie in another. NULL: nowhere yet, or the word does not hold a function of torch's.
 */
uint64_t *at_entry_typed_word(const char *name, const char *overload);

/* Whether at_entry_set_typed() has proved that place for the CPU. */
bool at_entry_is_proved(void);

#endif
