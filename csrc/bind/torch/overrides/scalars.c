/*
 * scalars.c - overrides of operators that have a Scalar among their arguments.
 *
 * No Scalar passes torch's C ABI, so that these have no registration of ours: torch's
 * own C++ function gives way to ours in the dispatcher, as long as nobody else changes
 * it. Ours reads a Scalar as c10 lays it out; a probe has shown that it does so here.
 */
#include "bind/torch/overrides/override.h"

#include "bind/abi/dispatch_slot.h"

static bool are_known;

bool ptac_scalars_are_known(void)
{
    return are_known;
}

#ifdef __x86_64__
enum {
    MAX_EXCHANGED = 32,
};

/* An exchange that has not been taken back. */
typedef struct exchange {
    const ptac_override *override;
    uint64_t *slot;
    const void *torchs;
} exchange;

static exchange exchanges[MAX_EXCHANGED];

static exchange *exchange_of(const ptac_override *override)
{
    for (int i = 0; i < MAX_EXCHANGED; i++)
        if (exchanges[i].override == override)
            return &exchanges[i];
    return NULL;
}

const char *ptac_scalars_install(const ptac_override *override, size_t place)
{
    exchange *free_one = exchange_of(NULL);
    uint64_t *slot = at_slot_of(override->name, place);

    if (!are_known || !slot || !free_one)
        return "has its kernel elsewhere";
    free_one->torchs = (const void *)(uintptr_t)*slot;
    free_one->slot = slot;
    if (!at_slot_exchange(slot, free_one->torchs, override->on[PTAC_ON_CPU].typed))
        return "is being changed by others";
    free_one->override = override;
    return NULL;
}

void ptac_scalars_remove(const ptac_override *override)
{
    exchange *done = exchange_of(override);

    /* Where it is not there any more, torch has made its table anew without us. */
    if (done)
        at_slot_exchange(done->slot, override->on[PTAC_ON_CPU].typed, done->torchs);
    if (done)
        done->override = NULL;
}

/* addmm's C++ function: its result's address comes first, and is what it returns. */
typedef void *(*addmm_fn)(void **result, void *functor, uint64_t keys, at_tensor self,
                          at_tensor a, at_tensor b, const at_scalar *beta,
                          const at_scalar *alpha);

static addmm_fn torchs_addmm;
static __thread at_scalar *seen; /* by the thread that proves */

static void *probe(void **result, void *functor, uint64_t keys, at_tensor self,
                   at_tensor a, at_tensor b, const at_scalar *beta,
                   const at_scalar *alpha)
{
    if (seen) {
        seen[0] = *beta;
        seen[1] = *alpha;
    }
    return torchs_addmm(result, functor, keys, self, a, b, beta, alpha);
}

void ptac_scalars_prove(size_t place, bool (*call)(void *), void *context)
{
    at_scalar found[2] = {{.tag = -1}, {.tag = -1}};
    uint64_t *slot = at_slot_of("addmm", place);
    const void *torchs = slot ? (const void *)(uintptr_t)*slot : NULL;
    const void *ours = (const void *)(uintptr_t)probe;
    bool is_done;

    if (!slot || are_known)
        return;
    torchs_addmm = (addmm_fn)(uintptr_t)torchs;
    if (!at_slot_exchange(slot, torchs, ours))
        return;
    seen = found;
    is_done = call(context);
    seen = NULL;
    are_known = at_slot_exchange(slot, ours, torchs) && is_done &&
                found[0].tag == AT_SCALAR_REAL && found[0].real == 2.5 &&
                found[1].tag == AT_SCALAR_INT && found[1].integer == -3;
}
#else
const char *ptac_scalars_install(const ptac_override *override, size_t place)
{
    (void) override;
    (void)place;
    return "has a Scalar, which is not read on this machine";
}

void ptac_scalars_remove(const ptac_override *override)
{
    (void) override;
}

void ptac_scalars_prove(size_t place, bool (*call)(void *), void *context)
{
    (void)place;
    (void)call;
    (void)context;
}
#endif
