/*
 * override.h - aten operators whose CPU kernel we replace while a switch is on.
 *
 * A bound operator announces itself with PTAC_OVERRIDE; these announcements are the
 * whitelist. An override sits at the CPU key, below autograd, autocast and functorch,
 * which therefore stay torch's own. Its schema must have no Scalar argument: such an
 * operator registers without complaint and breaks at its first call.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_OVERRIDE_H
#define PTAC_BIND_TORCH_OVERRIDES_OVERRIDE_H

#include "bind/torch/dispatch.h"

typedef struct ptac_override {
    const char *name; /* in namespace aten, without overload */
    ptac_op op;
    at_boxed_fn boxed;
    bool (*is_possible)(void); /* NULL, or whether this torch has what boxed needs */
} ptac_override;

#define PTAC_OVERRIDE(override)                                                        \
    __attribute__((constructor)) static void announce_##override(void)                 \
    {                                                                                  \
        ptac_override_announce(&override);                                             \
    }

void ptac_override_announce(const ptac_override *override);

/* All announced overrides, *n of them. */
const ptac_override *const *ptac_overrides(int *n);

/*
 * Put the overrides of these operators (a bit each, by ptac_op) into the dispatcher, in
 * addition to those already there, leaving out those that are not possible. NULL, or
 * what went wrong; then none was added.
 */
const char *ptac_override_install(uint64_t ops);

/* Operators whose overrides are in the dispatcher now. */
uint64_t ptac_override_installed(void);

/*
 * Take the overrides of these operators out of the dispatcher again. The caller knows
 * that no call of ours is in flight and that no other thread is about to make one.
 */
void ptac_override_remove(uint64_t ops);

#endif
