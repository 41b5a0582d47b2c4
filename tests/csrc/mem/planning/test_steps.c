/*
 * test_steps.c - steps that repeat, more or less: plans, and what becomes of them.
 */
#include "mem/planning/plan.h"
#include "calls.h"
#include "fixture.h"
#include "random.h"
#include "unit.h"

#include <string.h>

enum {
    N_SCRIPT = 60,
    MOST_LIVE = 4 * N_SCRIPT,
    N_STEPS = 400,
};

typedef struct live_block {
    unsigned char *memory;
    size_t bytes;
    unsigned char mark;
} live_block;

/* A request, and after how many further ones, of the next step too, it is freed. */
typedef struct script_row {
    size_t bytes;
    int lasts;
} script_row;

typedef struct trainer {
    rng r;
    script_row script[N_SCRIPT];
    live_block live[MOST_LIVE];
    int frees_at[MOST_LIVE]; /* requests from now on; < 0: nobody */
    int n_wrong;
} trainer;

static void mark(live_block *b, unsigned char value)
{
    b->mark = value;
    memset(b->memory, value, 64);
    memset(b->memory + b->bytes - 64, value, 64);
    b->memory[b->bytes / 2] = value;
}

static bool is_marked(const live_block *b)
{
    for (size_t i = 0; i < 64; i++)
        if (b->memory[i] != b->mark || b->memory[b->bytes - 1 - i] != b->mark)
            return false;
    return b->memory[b->bytes / 2] == b->mark;
}

static bool overlap_somewhere(const trainer *t, const live_block *b)
{
    for (int i = 0; i < MOST_LIVE; i++) {
        const live_block *other = &t->live[i];

        if (other != b && other->memory && other->memory < b->memory + b->bytes &&
            b->memory < other->memory + other->bytes)
            return true;
    }
    return false;
}

static void release(trainer *t, int i)
{
    t->n_wrong += !is_marked(&t->live[i]);
    ptac_cpu_pool_free(t->live[i].memory);
    t->live[i].memory = NULL;
}

static void request(trainer *t, size_t bytes, int lasts)
{
    bool is_refused;
    int i = 0;

    for (int j = 0; j < MOST_LIVE; j++)
        if (t->live[j].memory && --t->frees_at[j] < 0)
            release(t, j);
    while (i < MOST_LIVE && t->live[i].memory)
        i++;
    if (i == MOST_LIVE)
        return;
    t->live[i].memory = ptac_cpu_pool_alloc(bytes, &is_refused);
    if (!t->live[i].memory) {
        t->n_wrong++;
        return;
    }
    t->live[i].bytes = bytes;
    t->frees_at[i] = lasts;
    t->n_wrong += overlap_somewhere(t, &t->live[i]);
    mark(&t->live[i], (unsigned char)(1 + rng_below(&t->r, 255)));
}

/* Every so many steps one differs: in a size, a lifetime, its length, or its order. */
static void step(trainer *t, int one_in)
{
    const bool differs = one_in && rng_below(&t->r, one_in) == 0;
    const int at = (int)rng_below(&t->r, N_SCRIPT), how = (int)rng_below(&t->r, 4);
    const int n = differs && how == 2 ? at : N_SCRIPT;

    for (int i = 0; i < n; i++) {
        script_row row = t->script[differs && how == 3 ? N_SCRIPT - 1 - i : i];

        if (differs && i == at && how == 0)
            row.bytes += 64;
        if (differs && i == at && how == 1)
            row.lasts += 3;
        request(t, row.bytes, row.lasts);
    }
    ptac_cpu_pool_end_step();
}

static trainer new_trainer(uint64_t seed, int longest)
{
    trainer t = {.r = {seed}};

    for (int i = 0; i < N_SCRIPT; i++)
        t.script[i] = (script_row){
            .bytes = PTAC_CPU_LEAST_BYTES + 64 * (size_t)rng_below(&t.r, 20000),
            .lasts = (int)rng_below(&t.r, longest),
        };
    return t;
}

static void train(trainer *t, int n_steps, int one_in)
{
    for (int i = 0; i < n_steps; i++) {
        step(t, one_in);
        t->n_wrong += i % 16 == 0 && fixture_trouble();
    }
}

static void end(trainer *t)
{
    for (int i = 0; i < MOST_LIVE; i++)
        if (t->live[i].memory)
            release(t, i);
    EXPECT(t->n_wrong == 0);
}

UNIT(steps_that_repeat_are_planned)
{
    EXPECT(fixture_open(NULL));
    ptac_cpu_pool_plan_steps(true);
    for (uint64_t seed = 1; seed < 20; seed++) {
        trainer t = new_trainer(seed, 30);
        const int64_t hits = fixture_stats().plan_hits;

        ptac_cpu_pool_plan_steps(false);
        ptac_cpu_pool_plan_steps(true);
        train(&t, 20, 0);
        if (fixture_stats().plan_hits > hits) {
            ptac_cpu_pool_trim();
            train(&t, 3, 0);
            EXPECT(fixture_stats().plan_hits >= hits + 10 * N_SCRIPT / 2);
        }
        end(&t);
    }
    EXPECT(fixture_stats().plan_hits > 1000);
    ptac_cpu_pool_plan_steps(false);
    fixture_shut();
}

/* A slow malloc, or one that calls a hook of ours, would hold up all other threads. */
UNIT(nothing_is_allocated_under_the_lock)
{
    trainer t = new_trainer(1, 30);
    int n_before;

    EXPECT(fixture_open(NULL));
    n_before = calls_under_lock();
    ptac_cpu_pool_plan_steps(true);
    train(&t, 20, 0);
    EXPECT(fixture_stats().plan_hits > 0);
    ptac_cpu_pool_trim(); /* in the midst of a step, with planned blocks in use */
    request(&t, t.script[0].bytes, 1);
    train(&t, 20, 3);
    ptac_cpu_pool_plan_steps(false);
    end(&t);
    fixture_shut();
    EXPECT(calls_under_lock() == n_before);
}

UNIT(steps_that_differ_now_and_then)
{
    EXPECT(fixture_open(NULL));
    ptac_cpu_pool_plan_steps(true);
    for (uint64_t seed = 1; seed <= unit_amount(12, 40); seed++) {
        trainer t = new_trainer(seed, seed % 2 ? 30 : 3 * N_SCRIPT / 2);

        train(&t, N_STEPS, 2 + (int)seed);
        end(&t);
    }
    EXPECT(fixture_stats().plan_hits > 0);
    EXPECT(fixture_stats().plan_misses > 0);
    EXPECT(fixture_stats().allocation[PTAC_ALL].current == 0);
    ptac_cpu_pool_plan_steps(false);
    fixture_shut();
}

UNIT(planning_is_switched_while_planned_blocks_are_in_use)
{
    EXPECT(fixture_open(NULL));
    for (uint64_t seed = 1; seed <= unit_amount(6, 20); seed++) {
        trainer t = new_trainer(seed, 50);

        for (int i = 0; i < 30; i++) {
            ptac_cpu_pool_plan_steps(true);
            train(&t, 8, 0);
            for (int j = 0; j < 7; j++)
                request(&t, t.script[j].bytes, t.script[j].lasts);
            ptac_cpu_pool_plan_steps(false);
            train(&t, 1, 0);
        }
        end(&t);
    }
    fixture_shut();
}

UNIT(a_pool_drains_from_the_midst_of_a_planned_step)
{
    for (uint64_t seed = 1; seed < 10; seed++) {
        trainer t = new_trainer(seed, 50);

        EXPECT(fixture_open(NULL));
        ptac_cpu_pool_plan_steps(true);
        train(&t, 10, 0);
        for (int j = 0; j < 20; j++)
            request(&t, t.script[j].bytes, t.script[j].lasts);
        fixture_shut();
        end(&t);
        EXPECT(fixture_draining() == 0);
        EXPECT(ptac_cpu_pool()->n_arenas == 0);
    }
    ptac_cpu_pool_plan_steps(false);
}

/* A block of every step is kept until the same step of the time after next. */
UNIT(blocks_kept_from_before_a_switch_are_no_part_of_a_plan)
{
    enum { N = 10 };
    void *kept[N] = {NULL}, *hole, *below;

    EXPECT(fixture_open(NULL));
    hole = fixture_take(64 * MIB);
    below = fixture_take(MIB);
    EXPECT(fixture_give(hole, 64 * MIB));
    for (int round = 0; round < 3; round++) {
        ptac_cpu_pool_plan_steps(true);
        for (int i = 0; i < N; i++) {
            unsigned char *result = fixture_take(4 * MIB), *x, *y;

            EXPECT(!kept[i] || fixture_give(kept[i], 4 * MIB));
            kept[i] = result;
            result[64] = 1;
            x = fixture_take(4 * MIB);
            y = fixture_take(4 * MIB);
            x[64] = y[64] = 2;
            EXPECT(result[64] == 1);
            EXPECT(fixture_trouble() == NULL);
            EXPECT(fixture_give(x, 4 * MIB) && fixture_give(y, 4 * MIB));
            ptac_cpu_pool_end_step();
        }
        ptac_cpu_pool_plan_steps(false);
    }
    for (int i = 0; i < N; i++)
        EXPECT(fixture_give(kept[i], 4 * MIB));
    EXPECT(fixture_give(below, MIB));
    fixture_shut();
}

UNIT(blocks_of_longer_steps_before_a_switch_are_out_of_no_bounds)
{
    enum { N = 8, N_REQUESTS = 60000 };
    const size_t bytes = PTAC_CPU_LEAST_BYTES;
    void *kept[N];

    EXPECT(fixture_open(NULL));
    ptac_cpu_pool_plan_steps(true);
    for (int i = 0; i < N; i++) {
        ptac_cpu_pool_end_step();
        for (int j = 1; j < N_REQUESTS; j++)
            EXPECT(fixture_give(fixture_take(bytes), bytes));
        kept[i] = fixture_take(bytes);
    }
    ptac_cpu_pool_plan_steps(false);
    ptac_cpu_pool_plan_steps(true);
    for (int i = 0; i < N; i++) {
        void *x, *y;

        ptac_cpu_pool_end_step();
        x = fixture_take(bytes);
        y = fixture_take(4 * bytes);
        EXPECT(fixture_give(kept[i], bytes));
        EXPECT(fixture_give(x, bytes) && fixture_give(y, 4 * bytes));
    }
    ptac_cpu_pool_plan_steps(false);
    fixture_shut();
}

/* Steps that the engine needs 500 MiB for and a plan 450; one block lives on. */
static void fragment(int n_steps, void **carried)
{
    for (int i = 0; i < n_steps; i++) {
        void *a = fixture_take(100 * MIB), *b = fixture_take(200 * MIB), *c, *d, *e;

        EXPECT(fixture_give(a, 100 * MIB));
        c = fixture_take(150 * MIB);
        d = fixture_take(100 * MIB);
        EXPECT(fixture_give(b, 200 * MIB));
        e = fixture_take(300 * MIB);
        EXPECT(fixture_give(c, 150 * MIB) && fixture_give(d, 100 * MIB));
        if (carried) {
            EXPECT(!*carried || fixture_give(*carried, MIB));
            *carried = fixture_take(MIB);
        }
        EXPECT(fixture_give(e, 300 * MIB));
        EXPECT(fixture_trouble() == NULL);
        ptac_cpu_pool_end_step();
    }
}

UNIT(a_plan_is_given_back_with_the_memory_of_it)
{
    ptac_cpu_pool_options options = fixture_options();

    options.cap = 1500 * MIB;
    for (int carries = 0; carries < 2; carries++) {
        void *carried = NULL, *large;
        int64_t hits, misses;

        EXPECT(fixture_open(&options));
        ptac_cpu_pool_plan_steps(true);
        fragment(9, carries ? &carried : NULL);
        hits = fixture_stats().plan_hits;
        misses = fixture_stats().plan_misses;
        EXPECT(hits > 0);
        EXPECT(ptac_cpu_pool_trim() > 0);
        EXPECT(fixture_trouble() == NULL);
        EXPECT(fixture_stats().reserved_bytes[PTAC_ALL].current <=
               (int64_t)(carries ? 4 * MIB : 0));

        fragment(6, carries ? &carried : NULL); /* planned once more */
        EXPECT(fixture_stats().plan_hits > hits);
        EXPECT(fixture_stats().plan_misses == misses);
        large = fixture_take(1200 * MIB);
        EXPECT(large);
        EXPECT(fixture_trouble() == NULL);
        EXPECT(fixture_give(large, 1200 * MIB));

        fragment(6, carries ? &carried : NULL);
        ptac_cpu_pool_plan_steps(false);
        EXPECT(fixture_trouble() == NULL);
        EXPECT(!carried || fixture_give(carried, MIB));
        EXPECT(fixture_stats().arena_bytes.current == 0);
        fixture_shut();
    }
}

UNIT(a_plan_that_steps_no_longer_follow_keeps_nothing)
{
    void *carried = NULL;

    EXPECT(fixture_open(NULL));
    ptac_cpu_pool_plan_steps(true);
    fragment(9, &carried);
    EXPECT(fixture_stats().plan_hits > 0);
    for (int i = 0; i < 5; i++) {
        EXPECT(fixture_give(fixture_take(MIB), MIB));
        ptac_cpu_pool_end_step();
    }
    EXPECT(fixture_trouble() == NULL);
    EXPECT(ptac_cpu_pool()->used.n_blocks == 1);
    EXPECT(ptac_table_find(&ptac_cpu_pool()->used, (uintptr_t)carried)->flags ==
           PTAC_BLOCK_SMALL);
    EXPECT(fixture_give(carried, MIB));
    ptac_cpu_pool_plan_steps(false);
    EXPECT(fixture_stats().arena_bytes.current == 0);
    fixture_shut();
}

UNIT(steps_of_too_many_blocks_are_not_planned)
{
    void *kept;

    EXPECT(fixture_open(NULL));
    ptac_cpu_pool_plan_steps(true);
    kept = fixture_take(MIB);
    for (int i = 0; i < 5; i++) {
        fragment(1, NULL);
        for (int j = 0; j < 5000; j++) {
            void *x = fixture_take(PTAC_CPU_LEAST_BYTES);

            EXPECT(fixture_give(x, PTAC_CPU_LEAST_BYTES));
        }
    }
    EXPECT(fixture_stats().plan_hits == 0);
    EXPECT(fixture_give(kept, MIB));
    ptac_cpu_pool_plan_steps(false);
    fixture_shut();
}

UNIT(plans_never_overlap)
{
    enum { N = 80 };
    ptac_lifetime blocks[N];
    ptac_plan_word work[PTAC_PLAN_WORDS * N + 2 * N + 1];
    rng r = {7};

    for (int round = 0; round < 200; round++) {
        size_t height;

        for (int i = 0; i < N; i++) {
            const uint32_t from = (uint32_t)rng_below(&r, 2 * N);
            uint32_t to = (uint32_t)rng_below(&r, 2 * N);

            to += to == from;
            blocks[i] = (ptac_lifetime){
                .bytes = 1 + (size_t)rng_below(&r, 5000), .from = from, .to = to};
        }
        height = ptac_plan_place(blocks, N, 64, 2 * N + 1, work);
        for (uint32_t at = 0; at < 2 * N; at++) {
            for (int i = 0; i < N; i++) {
                const ptac_lifetime *a = &blocks[i];

                EXPECT(a->offset % 64 == 0 && a->offset + a->bytes <= height);
                for (int j = 0; j < i; j++) {
                    const ptac_lifetime *b = &blocks[j];
                    const bool a_lives = a->to < a->from ? at >= a->from || at < a->to
                                                         : at >= a->from && at < a->to;
                    const bool b_lives = b->to < b->from ? at >= b->from || at < b->to
                                                         : at >= b->from && at < b->to;

                    if (a_lives && b_lives && a->offset < b->offset + b->bytes &&
                        b->offset < a->offset + a->bytes)
                        EXPECT(!"two blocks that live at once share memory");
                }
            }
        }
    }
}
