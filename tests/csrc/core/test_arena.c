/*
 * test_arena.c - that the arena notices what the tests of rows rest on.
 */
#include "arena.h"
#include "sanitizers.h"
#include "unit.h"

#include <signal.h>
#include <string.h>

enum {
    N_PLACES = 60,
};

static rng placer;
static unsigned char *data;
static size_t n_bytes;

static void place(uint64_t seed)
{
    placer.state = seed;
    n_bytes = (size_t)rng_below(&placer, 40) * 4;
    data = arena_place(&placer, 1, n_bytes, 4);
    memset(data, 7, n_bytes);
}

static bool write_behind_is_noticed(void)
{
    *(volatile unsigned char *)(data + n_bytes) ^= 1;
    return arena_damage(1) != NULL;
}

static bool write_before_is_noticed(void)
{
    *(volatile unsigned char *)(data - 1) ^= 1;
    return arena_damage(1) != NULL;
}

/* In guard bytes, or at once by a signal that ends the child. */
static void expect_noticed(bool (*stray)(void), int *n_in_guards, int *n_faults)
{
    if (unit_in_child(stray))
        ++*n_in_guards;
    else if (unit_child_dies(stray, SIGSEGV))
        ++*n_faults;
    else
        EXPECT(!"a stray write went unnoticed");
}

UNIT(stray_writes_are_noticed)
{
    int n_guards_behind = 0, n_faults_behind = 0;
    int n_guards_before = 0, n_faults_before = 0;

#if defined(UNDER_ADDRESS_SANITIZER)
    unit_skip("AddressSanitizer stops at the write itself");
    return;
#endif
    arena_prepare();
    for (uint64_t seed = 0; seed < N_PLACES; seed++) {
        place(seed);
        EXPECT((uintptr_t)data % 4 == 0);
        EXPECT(arena_damage(1) == NULL);
        expect_noticed(write_behind_is_noticed, &n_guards_behind, &n_faults_behind);
        expect_noticed(write_before_is_noticed, &n_guards_before, &n_faults_before);
    }
    EXPECT(n_guards_behind > 0 && n_faults_behind > 0);
    EXPECT(n_guards_before > 0 && n_faults_before > 0);
}

UNIT(addresses_are_told_apart)
{
    int slot = -1;
    int64_t distance = 0;
    int on_the_stack;

    arena_prepare();
    place(3);
    EXPECT(arena_locate(data - 5, &slot, &distance) && slot == 1 && distance == -5);
    EXPECT(arena_locate(data + n_bytes + 9, &slot, &distance) && slot == 1);
    EXPECT(distance == 9);
    EXPECT(!arena_locate(&on_the_stack, &slot, &distance));
}
