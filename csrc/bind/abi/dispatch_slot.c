/*
 * dispatch_slot.c - finding a kernel's address by what its registration has changed.
 *
 * c10::KernelFunction begins with four words: the functor, the boxed function, the
 * unboxed function, and the one that takes symbolic sizes. Of an operator's entry we
 * compare all words from before and after. In the CPU's kernel torch's own functions
 * have given way to a boxed one of torch's library, without unboxed ones, and the
 * functor holds the address that we have registered. Nothing else looks like that.
 *
 * The dispatcher makes an entry's kernels of those that are registered. Before it says
 * that an operator has none for some device it compares them: both get the address.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "bind/abi/dispatch_slot.h"

#include <link.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum {
    FUNCTOR,
    BOXED,
    UNBOXED,
    SYMBOLIC,
    SLOT_WORDS,
};

typedef struct operator_name {
    at_string name, overload;
} operator_name;

/* In the CPU's entries the first of SLOT_WORDS; 0: not known. */
static size_t cpu_slot;

/* The words of an operator's entry, of which there are *n; NULL: not found. */
static uint64_t *find_entry(const char *name, const char *overload, size_t *n)
{
    char full[80] = "aten::";
    const size_t length = strlen(overload);
    operator_name key = {{.text = full}, {.text = overload, .length = length}};
    at_result found; /* the operator, its node in a list, and whether there is one */

    if (!T.c10_dispatcher || !T.c10_find_operator)
        return NULL;
    strncat(full, name, sizeof full - strlen(full) - 1);
    key.name.length = strlen(full);
    found = T.c10_find_operator(T.c10_dispatcher(), &key);
    if (!((uintptr_t)found.words[2] & 1) ||
        (char *)found.words[0] != (char *)found.words[1] + 2 * sizeof(void *))
        return NULL;
    *n = malloc_usable_size(found.words[1]) / sizeof(uint64_t) - 2;
    return found.words[0];
}

void at_entry_remember(const char *name, at_entry *entry)
{
    const char *dot = strchr(name, '.');
    char base[80] = "";

    *entry = (at_entry){.is_on_cpu = entry->is_on_cpu};
    strncat(base, name, dot ? (size_t)(dot - name) : sizeof base - 1);
    entry->live = find_entry(base, dot ? dot + 1 : "", &entry->n_words);
    if (!entry->live)
        return;
    entry->before = malloc(entry->n_words * sizeof(uint64_t));
    if (entry->before)
        memcpy(entry->before, entry->live, entry->n_words * sizeof(uint64_t));
}

void at_entry_forget(at_entry *entry)
{
    free(entry->before);
    entry->before = NULL;
}

typedef struct place {
    uintptr_t address;
    bool is_torchs;
} place;

static int look_in(struct dl_phdr_info *library, size_t unused, void *looked_for)
{
    place *p = looked_for;

    (void)unused;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];

        if (part->p_type == PT_LOAD &&
            p->address - library->dlpi_addr - part->p_vaddr < part->p_memsz) {
            p->is_torchs = strstr(library->dlpi_name, "libtorch");
            return 1;
        }
    }
    return 0;
}

/* By segments: dladdr() would read all symbols of a library, megabytes of torch's. */
static bool is_torchs_function(uint64_t word)
{
    place found = {(uintptr_t)word, false};

    dl_iterate_phdr(look_in, &found);
    return found.is_torchs;
}

static bool holds(uint64_t functor, at_boxed_fn boxed)
{
    const uint64_t *words = (const uint64_t *)(uintptr_t)functor;
    const size_t n = malloc_usable_size((void *)(uintptr_t)functor) / sizeof *words;
    bool found = false;

    for (size_t i = 0; i < n && i < 8; i++)
        found |= words[i] == (uint64_t)(uintptr_t)boxed;
    return found;
}

static bool is_slot(const uint64_t *before, const uint64_t *now, at_boxed_fn boxed)
{
    return now[BOXED] != before[BOXED] && !now[UNBOXED] && !now[SYMBOLIC] &&
           (before[UNBOXED] || before[SYMBOLIC]) && is_torchs_function(now[BOXED]) &&
           is_torchs_function(before[BOXED]) &&
           is_torchs_function(before[UNBOXED] ? before[UNBOXED] : before[SYMBOLIC]) &&
           now[FUNCTOR] && now[FUNCTOR] % sizeof(void *) == 0 &&
           holds(now[FUNCTOR], boxed);
}

/* The words of what is registered for the CPU, if it is the kernel in slot. */
static uint64_t *find_registered(const void *entry, const uint64_t *slot)
{
    const at_string cpu = {.text = "CPU", .length = 3};
    uint64_t *kernel;

    if (!T.c10_registered_kernel || !T.c10_dispatch_key)
        return NULL;
    kernel = T.c10_registered_kernel(entry, T.c10_dispatch_key(&cpu));
    return kernel && !memcmp(kernel, slot, SLOT_WORDS * sizeof *slot) ? kernel : NULL;
}

bool at_entry_set_typed(at_entry *entry, at_boxed_fn boxed, const void *typed)
{
    uint64_t *slot = NULL;
    uint64_t *registered = NULL;
    int n_found = 0;

    for (size_t i = 0; entry->before && i + SLOT_WORDS <= entry->n_words; i++) {
        if (is_slot(entry->before + i, entry->live + i, boxed)) {
            slot = entry->live + i;
            n_found++;
        }
    }
    at_entry_forget(entry);
    if (n_found != 1)
        return false;
    if (entry->is_on_cpu) {
        cpu_slot = (size_t)(slot - entry->live);
        registered = find_registered(entry->live, slot);
    }
    if (registered)
        registered[UNBOXED] = (uint64_t)(uintptr_t)typed;
    __atomic_store_n(&slot[UNBOXED], (uint64_t)(uintptr_t)typed, __ATOMIC_RELEASE);
    return true;
}

bool at_entry_is_proved(void)
{
    return cpu_slot;
}

at_typed_words at_entry_typed_words(const char *name, const char *overload)
{
    size_t n = 0;
    uint64_t *entry = cpu_slot ? find_entry(name, overload, &n) : NULL;
    at_typed_words words = {0};
    uint64_t *slot, *registered;
    int typed;

    if (!entry || cpu_slot + SLOT_WORDS > n)
        return words;
    slot = entry + cpu_slot;
    typed = slot[UNBOXED] ? UNBOXED : SYMBOLIC;
    if (!slot[typed] || !slot[BOXED] || !is_torchs_function(slot[typed]) ||
        !is_torchs_function(slot[BOXED]))
        return words;
    registered = find_registered(entry, slot);
    words.called = &slot[typed];
    words.registered = registered ? &registered[typed] : NULL;
    return words;
}

at_kernel at_kernel_of(const char *name, const char *overload)
{
    size_t n = 0;
    const uint64_t *entry = cpu_slot ? find_entry(name, overload, &n) : NULL;
    const uint64_t *slot =
        entry && cpu_slot + SLOT_WORDS <= n ? entry + cpu_slot : NULL;

    if (!slot || !slot[BOXED])
        return (at_kernel){NULL, 0, 0, 0};
    return (at_kernel){slot, slot[FUNCTOR], slot[BOXED], slot[UNBOXED]};
}

bool at_kernel_is(const at_kernel *kernel)
{
    const uint64_t *now = kernel->words;

    return now && now[FUNCTOR] == kernel->functor && now[BOXED] == kernel->boxed &&
           __atomic_load_n(&now[UNBOXED], __ATOMIC_RELAXED) == kernel->unboxed;
}
