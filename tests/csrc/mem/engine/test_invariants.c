/*
 * test_invariants.c - debug builds end where a pool's structure has been broken.
 */
#include "fixture.h"
#include "unit.h"

#include <signal.h>

static ptac_block *used, *listed;

static bool look(void)
{
    ptac_cpu_pool_trim();
    return true;
}

/* One that leaves a gap, one that overlaps, and so on. */
static bool shrink_a_block(void)
{
    used->bytes -= 64;
    return look();
}

static bool move_a_block(void)
{
    used->address += 64;
    return look();
}

static bool cut_a_link(void)
{
    used->below->above = NULL;
    return look();
}

static bool forget_that_it_is_listed(void)
{
    listed->flags &= ~(uint32_t)PTAC_BLOCK_LISTED;
    return look();
}

static bool turn_a_list_into_a_circle(void)
{
    listed->next = listed;
    return look();
}

static bool free_what_is_used(void)
{
    used->flags |= PTAC_BLOCK_FREE;
    return look();
}

static bool give_back_what_is_used(void)
{
    ptac_arena *arena = ptac_cpu_pool()->arenas[0];

    arena->is_held[(used->address - arena->base) / arena->source->chunk_bytes] = 0;
    return look();
}

static bool plan_beyond_the_region(void)
{
    used->flags |= PTAC_BLOCK_PLANNED;
    return look();
}

UNIT(broken_invariants_end_debug_builds)
{
    static bool (*const breaks[])(void) = {
        shrink_a_block,
        move_a_block,
        cut_a_link,
        free_what_is_used,
        give_back_what_is_used,
        forget_that_it_is_listed,
        plan_beyond_the_region,
        turn_a_list_into_a_circle,
    };
    void *memory[4];

    EXPECT(fixture_open(NULL));
    for (int i = 0; i < 4; i++)
        memory[i] = fixture_take(MIB);
    used = ptac_table_find(&ptac_cpu_pool()->used, (uintptr_t)memory[2]);
    EXPECT(fixture_give(memory[1], MIB));
    ptac_cpu_pool_trim(); /* no spare is left */
    listed = used->below;
    EXPECT(listed->flags & PTAC_BLOCK_LISTED);
    EXPECT(unit_in_child(look));
#ifdef PTAC_DEBUG
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++)
        EXPECT(unit_child_dies(breaks[i], SIGABRT));
#else
    (void)breaks;
#endif
    for (int i = 0; i < 4; i++)
        EXPECT(i == 1 || fixture_give(memory[i], MIB));
    fixture_shut();
}
