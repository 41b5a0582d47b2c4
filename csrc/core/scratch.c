/*
 * scratch.c - a cache of mapped memory.
 */
#include "core/scratch.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PLACES = 8,
    LINE = 64,
    HUGE_PAGE = 2 << 20,
    KEPT_A_CPU = 8 << 20, /* bytes that wait, and */
    KEPT_AT_LEAST = 64 << 20,
};

/* In front of the memory that is handed out, a line of its own. */
typedef struct piece {
    size_t n_bytes; /* of the mapping, this header included */
} piece;

static piece *cache[PLACES];
static size_t n_kept; /* bytes of what is in it */
static size_t most_kept = KEPT_AT_LEAST;

/* In a child: another thread may have been between the cache and the count. */
static void count_again(void)
{
    n_kept = 0;
    for (int i = 0; i < PLACES; i++)
        n_kept += cache[i] ? cache[i]->n_bytes : 0;
}

__attribute__((constructor)) static void prepare(void)
{
    const long n_cpus = sysconf(_SC_NPROCESSORS_CONF);

    if (n_cpus > KEPT_AT_LEAST / KEPT_A_CPU)
        most_kept = (size_t)n_cpus * KEPT_A_CPU;
    pthread_atfork(NULL, NULL, count_again);
}

/* 2 MiB and more on huge pages where allowed: the call that asked touches all of it. */
static piece *map(size_t n_bytes)
{
    const size_t unit = n_bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    const size_t whole = (n_bytes + unit - 1) / unit * unit;
    void *memory;
    piece *p;

    if (whole < n_bytes)
        return NULL;
    memory =
        mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (unit == HUGE_PAGE)
        madvise(memory, whole, MADV_HUGEPAGE);
    p = memory;
    p->n_bytes = whole;
    return p;
}

/* What is in a place, which is then empty. */
static piece *take_from(int place)
{
    piece *p = __atomic_exchange_n(&cache[place], NULL, __ATOMIC_ACQ_REL);

    if (p)
        __atomic_fetch_sub(&n_kept, p->n_bytes, __ATOMIC_RELAXED);
    return p;
}

/* Into an empty place, unless too much waits already; what is left is the caller's. */
static piece *put_back(piece *p)
{
    const size_t n_bytes = p->n_bytes;

    if (__atomic_add_fetch(&n_kept, n_bytes, __ATOMIC_RELAXED) <= most_kept)
        for (int i = 0; i < PLACES; i++) {
            piece *empty = NULL;

            if (__atomic_compare_exchange_n(&cache[i], &empty, p, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                return NULL;
        }
    __atomic_fetch_sub(&n_kept, n_bytes, __ATOMIC_RELAXED);
    return p;
}

static void drop(piece *p)
{
    if (p)
        munmap(p, p->n_bytes);
}

/* Where a smaller one waits, which is dropped; else this one is. */
static void replace_one(piece *p)
{
    for (int i = 0; i < PLACES && p; i++) {
        piece *other = take_from(i);

        if (other && other->n_bytes < p->n_bytes) {
            drop(other);
            p = put_back(p);
        } else if (other) {
            drop(put_back(other));
        }
    }
    drop(p);
}

/*
 * Smaller ones stay for those who ask for less: threads do so in between, and mapping
 * anew interrupts all of them.
 */
void *ptac_scratch_take(size_t n_bytes)
{
    const size_t needed = n_bytes + LINE;
    piece *found = NULL;

    if (needed < n_bytes)
        return NULL;
    for (int i = 0; i < PLACES && !found; i++) {
        found = take_from(i);
        if (found && found->n_bytes < needed) {
            drop(put_back(found));
            found = NULL;
        }
    }
    if (!found)
        found = map(needed);
    return found ? (char *)found + LINE : NULL;
}

void ptac_scratch_give(void *scratch)
{
    piece *p = scratch ? put_back((piece *)((char *)scratch - LINE)) : NULL;

    if (p)
        replace_one(p);
}

size_t ptac_scratch_kept(void)
{
    return __atomic_load_n(&n_kept, __ATOMIC_RELAXED);
}

size_t ptac_scratch_clear(void)
{
    size_t n_bytes = 0;

    for (int i = 0; i < PLACES; i++) {
        piece *p = take_from(i);

        if (p) {
            n_bytes += p->n_bytes;
            drop(p);
        }
    }
    return n_bytes;
}
