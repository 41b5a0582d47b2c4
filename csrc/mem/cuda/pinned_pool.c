/*
 * pinned_pool.c - one arena over the CPU's pages, registered as a whole.
 */
#include "mem/cuda/pinned_pool.h"

#include "device/cuda/driver.h"
#include "mem/cpu/source_cpu.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    REGION_BYTES = 2 << 20,
    MAX_THREADS = 64,
    PAGE_BYTES = 4096,
};

static ptac_pool pool;
static ptac_source_cpu source;
static ptac_cuda_device device;
static size_t bytes;
static pid_t owner; /* its children do not have the memory */

typedef struct part {
    volatile char *from, *to;
} part;

static void *touch(void *argument)
{
    for (part *p = argument; p->from < p->to; p->from += PAGE_BYTES)
        *p->from = 0;
    return NULL;
}

/* Whatever a thread does not take, the caller does. */
static void touch_all(char *base, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    bool is_running[MAX_THREADS];
    part parts[MAX_THREADS];
    size_t step;

    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    step = bytes / PAGE_BYTES / (size_t)n_threads * PAGE_BYTES;
    for (int i = 0; i < n_threads; i++) {
        parts[i].from = base + (size_t)i * step;
        parts[i].to = i + 1 < n_threads ? base + (size_t)(i + 1) * step : base + bytes;
        is_running[i] =
            i > 0 && pthread_create(&threads[i], NULL, touch, &parts[i]) == 0;
    }
    for (int i = 0; i < n_threads; i++)
        if (!is_running[i])
            touch(&parts[i]);
    for (int i = 0; i < n_threads; i++)
        if (is_running[i])
            pthread_join(threads[i], NULL);
}

/* Registers all of it with the driver, or ends that. */
static bool set_registered(char *base, bool is_wanted)
{
    return PTAC_CUDA_WITHIN(&device,
                            is_wanted ? ptac_cuda.host_register(
                                            base, bytes, PTAC_CU_HOST_REGISTER_PORTABLE)
                                      : ptac_cuda.host_unregister(base)) == PTAC_CU_OK;
}

/* All of it is held from the start: the arena neither commits nor releases later. */
static const char *open_arena(int n_threads)
{
    const ptac_arena like = {
        .source = &source.source,
        .policy = ptac_policy_find("best_fit"),
        .granule = PTAC_PINNED_GRANULE,
        .least_bytes = PTAC_PINNED_GRANULE,
    };
    const char *trouble = NULL;
    ptac_block *all;
    ptac_arena *arena;

    ptac_source_cpu_init(&source);
    pool.budget = (ptac_budget){.cap = SIZE_MAX};
    arena = ptac_pool_add_arena(&pool, &like, bytes);
    if (!arena)
        return "the system gives no addresses for the pinned pool";
    all = ptac_arena_alloc(arena, bytes);
    if (!all) {
        trouble = "the system gives no memory for the pinned pool";
    } else {
        /* A child's copy-on-write would leave the device with the other's pages. */
        madvise((void *)arena->base, bytes, MADV_DONTFORK);
        touch_all((char *)arena->base, n_threads);
        ptac_arena_free(arena, all);
        if (!set_registered((char *)arena->base, true))
            trouble = "the driver does not register host memory of this size";
    }
    if (trouble)
        ptac_pool_close(&pool);
    return trouble;
}

const char *ptac_pinned_open(size_t wanted, int n_threads)
{
    const char *trouble;

    if (wanted == 0 || wanted > SIZE_MAX / 2)
        return "a pinned pool has at least one byte";

    PTAC_LOCKED(&pool.lock);
    if (pool.n_arenas > 0)
        return "there is a pinned pool already";
    owner = getpid();
    bytes = ptac_round_up(wanted, REGION_BYTES);
    trouble = ptac_cuda_device_open(&device, 0);
    return trouble ? trouble : open_arena(n_threads < 1 ? 1 : n_threads);
}

bool ptac_pinned_close(void)
{
    PTAC_LOCKED(&pool.lock);
    if (pool.n_arenas > 0 && (pool.used.n_blocks > 0 || owner != getpid() ||
                              !set_registered((char *)pool.arenas[0]->base, false)))
        return false;
    ptac_pool_close(&pool);
    return true;
}

void *ptac_pinned_alloc(size_t wanted)
{
    PTAC_LOCKED(&pool.lock);
    ptac_block *block = NULL;

    if (pool.n_arenas > 0 && wanted > 0 && owner == getpid())
        block = ptac_pool_take(&pool, pool.arenas[0], wanted);
    return block ? (void *)block->address : NULL;
}

bool ptac_pinned_free(void *memory)
{
    PTAC_LOCKED(&pool.lock);
    ptac_block *block = ptac_pool_part(&pool, (uintptr_t)memory);

    if (block)
        ptac_pool_give(&pool, block);
    return block != NULL;
}
