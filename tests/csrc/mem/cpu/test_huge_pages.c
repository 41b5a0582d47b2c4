/*
 * test_huge_pages.c - huge pages: never more memory than is held, not for ever, and in
 * few runs.
 */
#include "calls.h"
#include "fixture.h"
#include "unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    REGION = PTAC_REGION_BYTES,
    CHUNK = 64 << 10,
    N_REGIONS = 32,
};

#define WHOLE ((size_t)N_REGIONS * REGION)

/* Bytes of the arena's first regions that are in memory. */
static size_t resident(void)
{
    static unsigned char pages[WHOLE / 4096];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *base = (void *)ptac_cpu_pool()->arenas[0]->base;
    size_t n = 0;

    EXPECT(mincore(base, WHOLE, pages) == 0);
    for (size_t i = 0; i < WHOLE / page; i++)
        n += pages[i] & 1;
    return n * page;
}

static size_t held(void)
{
    return (size_t)fixture_stats().reserved_bytes[PTAC_ALL].current;
}

/* All regions are used so often, and touched; what has been asked for by then. */
static int64_t use(int n_times)
{
    for (int i = 0; i < n_times; i++) {
        void *memory = fixture_take(WHOLE);

        memset(memory, 1, WHOLE);
        EXPECT(ptac_cpu_pool_free(memory)); /* without its marks */
    }
    EXPECT(calls_tick());
    EXPECT(!fixture_trouble());
    return fixture_stats().huge_bytes;
}

static bool open_and_heat(void)
{
    EXPECT(fixture_open(NULL));
    if (use(PTAC_HOT_VISITS) == (int64_t)WHOLE)
        return true;
    unit_skip("this kernel has no transparent huge pages");
    fixture_shut();
    calls_tick();
    return false;
}

static void end(void)
{
    fixture_shut();
    EXPECT(fixture_draining() == 0);
    EXPECT(!calls_tick());
}

/* A chunk in use at the beginning of each region, as fragmentation leaves them. */
UNIT(no_more_is_in_memory_than_is_held)
{
    char *small[N_REGIONS];
    void *large[N_REGIONS];
    bool is_refused;

    if (!open_and_heat())
        return;
    EXPECT(resident() == WHOLE && held() >= WHOLE);
    EXPECT(ptac_cpu_pool_trim() >= WHOLE);
    EXPECT(resident() == 0 && held() == 0);
    for (int i = 0; i < N_REGIONS; i++) {
        small[i] = ptac_cpu_pool_alloc(CHUNK, &is_refused);
        large[i] = ptac_cpu_pool_alloc(REGION - CHUNK, &is_refused);
    }
    for (int i = 0; i < N_REGIONS; i++)
        EXPECT(ptac_cpu_pool_free(large[i]));
    ptac_cpu_pool_trim();
    EXPECT(resident() == 0); /* nobody has touched any of it */
    for (int i = 0; i < N_REGIONS; i++)
        memset(small[i], 1, CHUNK);
    EXPECT(held() == (size_t)N_REGIONS * CHUNK);
    EXPECT(resident() == held());
    EXPECT(calls_tick());
    EXPECT(!fixture_trouble());
    for (int i = 0; i < N_REGIONS; i++)
        EXPECT(ptac_cpu_pool_free(small[i]));
    EXPECT(ptac_cpu_pool_trim() > 0);
    EXPECT(resident() == 0 && held() == 0);
    end();
}

/* One chunk of a region that is in use else goes: the rest is a huge page no more. */
UNIT(a_region_that_loses_a_chunk_cools_down)
{
    char *below, *hole, *above;

    if (!open_and_heat())
        return;
    below = fixture_take(4 * REGION);
    hole = fixture_take(CHUNK);
    above = fixture_take(4 * REGION - CHUNK);
    EXPECT(calls_tick());
    EXPECT(ptac_cpu_pool_trim() >= WHOLE - 8 * REGION);
    EXPECT(ptac_cpu_pool()->arenas[0]->n_hot_runs == 1);
    EXPECT(fixture_give(hole, CHUNK));
    EXPECT(ptac_cpu_pool_trim() == CHUNK);
    EXPECT(ptac_cpu_pool()->arenas[0]->n_hot_runs == 2);
    EXPECT(ptac_cpu_pool()->arenas[0]->heat[4] != PTAC_REGION_HUGE);
    EXPECT(resident() == held());
    EXPECT(!fixture_trouble());
    hole = fixture_take(CHUNK);
    EXPECT(resident() <= held());
    EXPECT(fixture_give(hole, CHUNK) && fixture_give(below, 4 * REGION));
    EXPECT(fixture_give(above, 4 * REGION - CHUNK));
    end();
}

UNIT(what_was_given_back_has_to_get_hot_anew)
{
    if (!open_and_heat())
        return;
    EXPECT(use(10) == (int64_t)WHOLE);
    EXPECT(ptac_cpu_pool_trim() >= WHOLE);
    EXPECT(use(PTAC_HOT_VISITS / 2) == (int64_t)WHOLE);
    EXPECT(use(PTAC_HOT_VISITS) == (int64_t)(2 * WHOLE));
    EXPECT(use(1) == (int64_t)(2 * WHOLE));
    end();
}

/* What keeps its huge pages keeps its memory: else more would come back than goes. */
UNIT(without_the_system_s_leave_nothing_goes)
{
    if (!open_and_heat())
        return;
    calls_refuse(CALL_madvise, 1, true);
    EXPECT(ptac_cpu_pool_trim() == 0);
    calls_allow();
    EXPECT(held() >= WHOLE);
    EXPECT(!fixture_trouble());
    EXPECT(ptac_cpu_pool_trim() >= WHOLE);
    EXPECT(!fixture_trouble());
    end();
}

/* By the flag "nh" of the mapping, as /proc/self/smaps has it. */
static bool may_be_huge(uintptr_t address)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    bool is_it = false, may = true;
    uintptr_t from, to;
    char line[1024];

    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            is_it = from <= address && address < to;
        if (is_it && strncmp(line, "VmFlags:", 8) == 0)
            may = !strstr(line, " nh");
    }
    if (file)
        fclose(file);
    return may;
}

/* Else, where the system's setting is "always", one chunk's touch would bring in 32. */
UNIT(memory_that_is_not_hot_is_no_huge_page)
{
    const ptac_arena *arena;

    if (!open_and_heat())
        return;
    arena = ptac_cpu_pool()->arenas[0];
    EXPECT(may_be_huge(arena->base) && may_be_huge(arena->base + WHOLE - 1));
    EXPECT(!may_be_huge(arena->base + WHOLE) && !may_be_huge(arena->end - 1));
    EXPECT(ptac_cpu_pool_trim() >= WHOLE);
    EXPECT(!may_be_huge(arena->base) && !may_be_huge(arena->base + WHOLE - 1));
    end();
}

/* --- without memory, as many regions as are needed ------------------------------- */

static int n_asked_small;

static uintptr_t reserve(ptac_source *source, size_t bytes)
{
    (void)source;
    (void)bytes;
    return (uintptr_t)1 << 40;
}

static void unreserve(ptac_source *source, uintptr_t base, size_t bytes)
{
    (void)source;
    (void)base;
    (void)bytes;
}

static bool agree(ptac_source *source, uintptr_t at, size_t bytes)
{
    (void)source;
    (void)at;
    (void)bytes;
    return true;
}

static bool count_small(ptac_source *source, uintptr_t at, size_t bytes)
{
    n_asked_small++;
    return agree(source, at, bytes);
}

static ptac_source none = {
    .chunk_bytes = CHUNK,
    .reserve = reserve,
    .unreserve = unreserve,
    .commit = agree,
    .release = agree,
    .want_huge = agree,
    .want_small = count_small,
    .is_touched = agree,
};

static ptac_arena arena_of_none(ptac_records *records, ptac_budget *budget)
{
    return (ptac_arena){.source = &none,
                        .policy = ptac_policy_find("first_fit"),
                        .records = records,
                        .budget = budget,
                        .granule = 64,
                        .least_bytes = 65536};
}

static size_t count_runs(const ptac_arena *arena, size_t n_regions)
{
    size_t n = 0;

    for (size_t i = 0; i < n_regions; i++)
        n += arena->heat[i] == PTAC_REGION_HUGE &&
             (i == 0 || arena->heat[i - 1] != PTAC_REGION_HUGE);
    return n;
}

static void heat(ptac_arena *arena, size_t from, size_t to, size_t step)
{
    ptac_block b = {.bytes = 64};

    for (size_t i = from; i < to; i += step) {
        b.address = arena->base + i * REGION;
        for (int k = 0; k < PTAC_HOT_VISITS; k++)
            ptac_arena_note_visit(arena, &b);
    }
    ptac_arena_promote(arena);
}

/* From high to low, from low to high, and then what lies between. */
UNIT(hot_runs_are_few_in_whatever_order)
{
    enum { N_PASSES = 8, A_PASS = 2000, N = N_PASSES * A_PASS };
    for (int is_upward = 0; is_upward < 2; is_upward++) {
        ptac_records records = {0};
        ptac_budget budget = {.cap = SIZE_MAX};
        ptac_arena arena = arena_of_none(&records, &budget);
        ptac_block *block;

        EXPECT(ptac_arena_open(&arena, (size_t)(N + 1) * REGION));
        block = ptac_arena_alloc(&arena, (size_t)N * REGION);
        EXPECT(block);
        for (size_t p = 0; p < N_PASSES; p++) {
            const size_t from = (is_upward ? p : N_PASSES - 1 - p) * A_PASS;

            heat(&arena, from, from + A_PASS, 2);
            EXPECT(count_runs(&arena, N) == PTAC_MOST_HOT_RUNS);
            EXPECT(arena.n_hot_runs == PTAC_MOST_HOT_RUNS);
        }
        heat(&arena, 0, N, 1); /* what is between runs joins them */
        EXPECT(count_runs(&arena, N) == arena.n_hot_runs);
        EXPECT(arena.n_hot_runs <= PTAC_MOST_HOT_RUNS);
        ptac_arena_free(&arena, block);
        ptac_arena_close(&arena);
        EXPECT(arena.n_hot_runs == 0);
        ptac_records_close(&records);
    }
}

/* One run falls apart, a chunk here and a chunk there, into as many as may be. */
UNIT(cooling_makes_no_more_runs_than_may_be)
{
    enum { N = 3 * PTAC_MOST_HOT_RUNS };
    ptac_records records = {0};
    ptac_budget budget = {.cap = SIZE_MAX};
    ptac_arena arena = arena_of_none(&records, &budget);
    ptac_block **blocks = calloc(2 * N, sizeof *blocks);

    EXPECT(ptac_arena_open(&arena, (size_t)(N + 1) * REGION));
    for (size_t i = 0; i < 2 * N; i++)
        blocks[i] = ptac_arena_alloc(&arena, i % 2 ? CHUNK : REGION - CHUNK);
    heat(&arena, 0, N, 1);
    EXPECT(arena.n_hot_runs == 1);
    n_asked_small = 0;
    for (size_t i = 3; i < 2 * N; i += 4) {
        ptac_arena_free(&arena, blocks[i]);
        ptac_arena_trim(&arena);
        EXPECT(arena.n_hot_runs <= PTAC_MOST_HOT_RUNS);
    }
    EXPECT(arena.n_hot_runs == count_runs(&arena, N) && arena.n_hot_runs > 900);
    EXPECT(n_asked_small > 900 && n_asked_small <= N / 2);
    for (size_t i = 0; i < 2 * N; i++)
        if (i % 4 != 3)
            ptac_arena_free(&arena, blocks[i]);
    ptac_arena_close(&arena);
    EXPECT(arena.n_hot_runs == 0);
    ptac_records_close(&records);
    free(blocks);
}
