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

/*
 * Remember the operator "aten::<name>" before its kernel is registered; an overload is
 * behind a dot.
 */
void at_entry_remember(const char *name, at_entry *entry);

void at_entry_forget(at_entry *entry);

/*
 * After the registration of boxed: have the dispatcher call typed, a C++ function
 * (functor, keys, arguments...). False where the place is not proved; then calls stay
 * boxed. Frees what was remembered. Torch itself forgets typed with the registration.
 */
bool at_entry_set_typed(at_entry *entry, at_boxed_fn boxed, const void *typed);

/* The words that hold the address of torch's C++ kernel of an operator on the CPU. */
typedef struct at_typed_words {
    uint64_t *called;     /* the one that calls go by; NULL: none */
    uint64_t *registered; /* that of the registration, from which torch makes it anew */
} at_typed_words;

/*
 * Those of "aten::<name>.<overload>". The first lies in each operator's entry where
 * at_entry_set_typed() has proved it to lie in another. There is none as long as that
 * has proved nothing, and where it does not hold a function of torch's. The second is
 * NULL where the kernel is one that torch has registered for all devices. In lists of
 * integers that may be symbols these are numbers far below zero.
 */
at_typed_words at_entry_typed_words(const char *name, const char *overload);

/*
 * The kernel that an operator's calls on the CPU go by, whosoever's, and whether they
 * still do. NULL words where nothing is proved, or there is none.
 */
typedef struct at_kernel {
    const uint64_t *words;
    uint64_t functor, boxed, unboxed;
} at_kernel;

at_kernel at_kernel_of(const char *name, const char *overload);
bool at_kernel_is(const at_kernel *kernel);

/* Whether at_entry_set_typed() has proved that place for the CPU. */
bool at_entry_is_proved(void);

#endif
