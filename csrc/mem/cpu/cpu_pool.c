/*
 * cpu_pool.c - the process's CPU pool: open, shut, fork, memory given back.
 *
 * Memory goes back when nothing was asked for a while, when the machine or the control
 * group runs short, when the cap is reached, and when asked; never in steady state.
 * Huge pages are asked for behind regions that many requests have used, since the first
 * touch of one may take milliseconds (arena_memory.c).
 */
#include "mem/cpu/cpu_pool.h"
#include "mem/cpu/memory_limits.h"
#include "mem/cpu/source_cpu.h"
#include "mem/planning/step_plan.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

enum {
    GRANULE_BYTES = 64, /* what torch aligns CPU storages to */
    SHORT_PAUSE_S = 10, /* between two looks at a machine that is short of memory */
    STACK_BYTES = 256 << 10,
};

#define LEAST_RESERVE ((size_t)256 << 20)
#define MOST_RESERVE  ((size_t)16 << 40)

typedef enum reclaimer_state {
    NO_RECLAIMER,
    RUNNING,
    LOST, /* in the child of a fork, until it asks for memory */
} reclaimer_state;

uint64_t ptac_cpu_range;

static ptac_pool pool = {.keeps_spare = true};
static ptac_source_cpu source;
static reclaimer_state reclaimer;
static ptac_cpu_state state;
static ptac_cpu_pool_options options;
static ptac_step_plan plan;
static bool is_plan_wanted;
static void (*drained)(void);
static int64_t seen_uses;       /* when the reclaimer last looked */
static int64_t idle_s, pause_s; /* since the last use; to the next look */

/* A forked child has the forking thread and a copy of everything. */
static void before_fork(void)
{
    ptac_lock_take(&pool.lock);
}

static void after_fork(void)
{
    ptac_lock_give(&pool.lock);
}

static void after_fork_in_child(void)
{
    if (reclaimer == RUNNING)
        reclaimer = LOST;
    ptac_lock_give(&pool.lock);
}

static bool watch_forks(void)
{
    static bool is_watching;

    if (!is_watching)
        is_watching = pthread_atfork(before_fork, after_fork, after_fork_in_child) == 0;
    return is_watching;
}

static size_t in_regions(size_t bytes)
{
    return bytes < LEAST_RESERVE ? LEAST_RESERVE : bytes - bytes % PTAC_REGION_BYTES;
}

static size_t reserve_bytes(void)
{
    const size_t left = ptac_addresses_left(), physical = ptac_physical_memory();
    const size_t bytes = physical < MOST_RESERVE / 4 ? 4 * physical : MOST_RESERVE;

    return in_regions(left != SIZE_MAX && bytes > left / 2 ? left / 2 : bytes);
}

static bool open_arena(const ptac_policy *policy)
{
    const ptac_arena like = {
        .source = &source.source,
        .policy = policy,
        .granule = GRANULE_BYTES,
        .least_bytes = PTAC_CPU_LEAST_BYTES,
    };
    size_t bytes = reserve_bytes();
    const ptac_arena *arena;

    ptac_source_cpu_init(&source);
    pool.budget = (ptac_budget){.cap = SIZE_MAX};
    pool.stats = (ptac_mem_stats){0};
    while (!(arena = ptac_pool_add_arena(&pool, &like, bytes))) {
        if (bytes == LEAST_RESERVE)
            return false;
        bytes = in_regions(bytes / 2);
    }
    __atomic_store_n(&ptac_cpu_range,
                     arena->base / PTAC_REGION_BYTES << PTAC_RANGE_SIZE_BITS |
                         (arena->end - arena->base) / PTAC_REGION_BYTES,
                     __ATOMIC_RELAXED);
    return true;
}

static void close_arena(void)
{
    __atomic_store_n(&ptac_cpu_range, 0, __ATOMIC_RELAXED);
    ptac_pool_close(&pool);
    state = PTAC_CPU_OFF;
}

/* A plan's memory too: of later steps another can be made. */
static size_t trim(void)
{
    ptac_step_plan_give_up(&plan, &pool);
    return ptac_pool_trim(&pool);
}

/* Requests and frees since the pool was opened. */
static int64_t n_uses(void)
{
    const ptac_stat *large = &pool.stats.allocation[PTAC_LARGE];
    const ptac_stat *small = &pool.stats.allocation[PTAC_SMALL];

    return 2 * (large->allocated + small->allocated) -
           (large->current + small->current);
}

/* Once a second, in the reclaimer's thread; false ends that. */
static bool look_after(void)
{
    const bool is_short = --pause_s <= 0 && ptac_memory_is_short();

    if (is_short || pause_s < 0)
        pause_s = is_short ? SHORT_PAUSE_S : 0;

    PTAC_LOCKED(&pool.lock);
    if (state == PTAC_CPU_OFF) {
        reclaimer = NO_RECLAIMER;
        return false;
    }
    idle_s = n_uses() == seen_uses ? idle_s + 1 : 0;
    seen_uses = n_uses();
    if (is_short || idle_s == options.idle_s)
        trim();
    pool.stats.huge_bytes += (int64_t)ptac_arena_promote(pool.arenas[0]);
    return true;
}

static void *reclaim(void *unused)
{
    const struct timespec second = {.tv_sec = 1};

    do {
        nanosleep(&second, NULL);
    } while (look_after());
    return NULL;
}

/* Detached, and all signals blocked; an error number where there can be no thread. */
static int start_thread(void)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);

    if (error)
        return error;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = pthread_create(&thread, &attributes, reclaim, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/*
 * Where none runs. Nothing is given back by itself without one. Without the lock: the
 * thread's stack may come from the heap.
 */
static void start_reclaimer(void)
{
    bool starts;

    ptac_lock_take(&pool.lock);
    starts = reclaimer != RUNNING && state != PTAC_CPU_OFF;
    if (starts)
        reclaimer = RUNNING;
    ptac_lock_give(&pool.lock);
    if (starts && start_thread() != 0) {
        PTAC_LOCKED(&pool.lock);
        reclaimer = NO_RECLAIMER;
    }
}

/* Whole chunks, as memory is held: what is within the cap can be had then. */
static size_t in_chunks(size_t cap)
{
    return cap == SIZE_MAX ? cap : cap - cap % source.source.chunk_bytes;
}

/* Under a cap there may be room for it once what nobody uses has been given back. */
static bool populate(size_t bytes)
{
    ptac_arena *arena = pool.arenas[0];

    ptac_pool_settle(&pool);
    return ptac_arena_populate(arena, bytes) ||
           (trim() > 0 && ptac_arena_populate(arena, bytes));
}

/* Of an arena that is there; all or nothing, but for memory that was reserved. */
static const char *take_options(const ptac_cpu_pool_options *wanted,
                                bool (*install)(ptac_cpu_state before))
{
    const size_t cap = pool.budget.cap;
    const bool keeps_ring =
        state != PTAC_CPU_OFF && wanted->n_history == options.n_history;
    ptac_history ring = keeps_ring ? pool.history : (ptac_history){0};
    const char *trouble = NULL;

    pool.budget.cap = in_chunks(wanted->cap);
    if (wanted->reserve_bytes != options.reserve_bytes &&
        !populate(wanted->reserve_bytes))
        trouble = "the bytes to reserve cannot be had";
    else if (!ptac_history_open(&ring, wanted->n_history))
        trouble = "no memory for the history";
    else if (state != PTAC_CPU_ON && !install(state))
        trouble = "torch's allocator could not be hooked";
    if (!keeps_ring)
        ptac_history_close(trouble ? &ring : &pool.history);
    if (trouble) {
        pool.budget.cap = cap;
        return trouble;
    }
    pool.history = ring;
    if (wanted->policy != pool.arenas[0]->policy)
        ptac_arena_use_policy(pool.arenas[0], wanted->policy);
    if ((size_t)pool.budget.held.current > pool.budget.cap)
        trim();
    ptac_pool_check(&pool);
    options = *wanted;
    idle_s = 0;
    state = PTAC_CPU_ON;
    return NULL;
}

/* Out of line: every free() passes here. */
__attribute__((noinline)) static void close_when_drained(void)
{
    if (state != PTAC_CPU_DRAINING || pool.used.n_blocks > 0)
        return;

    const int error = errno; /* free() keeps it */

    close_arena();
    drained();
    errno = error;
}

const char *ptac_cpu_pool_open(const ptac_cpu_pool_options *wanted,
                               bool (*install)(ptac_cpu_state before))
{
    const char *trouble;

    ptac_lock_take(&pool.lock);
    if (!watch_forks())
        trouble = "no handler for forks can be registered";
    else if (state == PTAC_CPU_OFF && !open_arena(wanted->policy))
        trouble = "the system gives no addresses for an arena";
    else
        trouble = take_options(wanted, install);
    if (!trouble)
        ptac_step_plan_switch(&plan, &pool, is_plan_wanted);
    else if (state == PTAC_CPU_OFF && pool.n_arenas)
        close_arena();
    ptac_lock_give(&pool.lock);
    if (!trouble)
        start_reclaimer();
    return trouble;
}

void ptac_cpu_pool_shut(void (*remove)(void), void (*when_drained)(void))
{
    PTAC_LOCKED(&pool.lock);
    if (state != PTAC_CPU_ON)
        return;
    remove();
    ptac_step_plan_switch(&plan, &pool, false);
    drained = when_drained;
    state = PTAC_CPU_DRAINING;
    options.reserve_bytes = 0;
    close_when_drained();
}

ptac_cpu_state ptac_cpu_pool_state(int64_t *n_blocks)
{
    PTAC_LOCKED(&pool.lock);
    *n_blocks = (int64_t)pool.used.n_blocks;
    return state;
}

static ptac_block *take(size_t bytes)
{
    return plan.is_on ? ptac_step_plan_take(&plan, &pool, bytes)
                      : ptac_pool_take(&pool, pool.arenas[0], bytes);
}

static void give(ptac_block *block)
{
    if (plan.is_on || plan.n_live > 0)
        ptac_step_plan_give(&plan, &pool, block);
    else
        ptac_pool_give(&pool, block);
}

/*
 * Memory there may be enough of after some was given back; addresses are no more, but
 * for those of a plan.
 */
static ptac_block *take_after_trim(size_t bytes)
{
    ptac_block *block = NULL;
    const bool had_plan = ptac_step_plan_give_up(&plan, &pool);

    if (ptac_arena_has_room(pool.arenas[0], bytes) &&
        (ptac_pool_trim(&pool) || had_plan)) {
        pool.stats.num_alloc_retries++;
        block = take(bytes);
    }
    return block;
}

void *ptac_cpu_pool_alloc(size_t bytes, bool *is_refused)
{
    ptac_block *block;
    void *memory = NULL;
    bool is_lost = false;

    *is_refused = false;
    ptac_lock_take(&pool.lock);
    if (state == PTAC_CPU_ON) {
        block = take(bytes);
        if (__builtin_expect(!block, 0))
            block = take_after_trim(bytes);
        if (__builtin_expect(!block, 0)) {
            *is_refused =
                pool.budget.cap != SIZE_MAX && !ptac_budget_allows(&pool.budget, bytes);
        } else {
            memory = (void *)block->address;
            ptac_history_note(&pool.history, PTAC_EVENT_ALLOC, block->address,
                              block->bytes, 0);
        }
        is_lost = reclaimer == LOST;
    }
    ptac_lock_give(&pool.lock);
    if (__builtin_expect(is_lost, 0))
        start_reclaimer();
    return memory;
}

void ptac_cpu_pool_note_oom(size_t bytes)
{
    PTAC_LOCKED(&pool.lock);
    if (state != PTAC_CPU_ON)
        return;
    pool.stats.num_ooms++;
    ptac_history_note(&pool.history, PTAC_EVENT_OOM, 0, bytes, 0);
}

bool ptac_cpu_pool_free(void *memory)
{
    ptac_block *block;

    ptac_lock_take(&pool.lock);
    block = ptac_pool_part(&pool, (uintptr_t)memory);
    if (block) {
        ptac_history_note(&pool.history, PTAC_EVENT_FREE_COMPLETED, block->address,
                          block->bytes, 0);
        give(block);
        close_when_drained();
    }
    ptac_lock_give(&pool.lock);
    return block != NULL;
}

void ptac_cpu_pool_plan_steps(bool is_wanted)
{
    PTAC_LOCKED(&pool.lock);
    is_plan_wanted = is_wanted;
    if (state == PTAC_CPU_ON)
        ptac_step_plan_switch(&plan, &pool, is_wanted);
}

void ptac_cpu_pool_end_step(void)
{
    PTAC_LOCKED(&pool.lock);
    if (state == PTAC_CPU_ON)
        ptac_step_plan_boundary(&plan, &pool);
}

size_t ptac_cpu_pool_trim(void)
{
    PTAC_LOCKED(&pool.lock);
    return trim();
}

ptac_pool *ptac_cpu_pool(void)
{
    return &pool;
}
