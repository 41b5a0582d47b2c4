/*
 * source_cpu.c - anonymous pages: reserved without access, opened from below, dropped.
 *
 * Pages without access count against no limit but that of addresses. Opening some is
 * what the kernel accounts, as it does for malloc, so that a request beyond all memory
 * fails at once instead of bringing in the OOM killer. Pages come at first touch, from
 * the node of the thread that touches them.
 */
#include "mem/cpu/source_cpu.h"

#include "mem/engine/block.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    CHUNK_BYTES = 64 << 10,
    /* Opened at a time at least, so that not every high water calls the kernel. */
    STEP_BYTES = 32 << 20,
    HUGE_PAGE_BYTES = 2 << 20,
};

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static ptac_source_cpu *cpu_of(ptac_source *source)
{
    return (ptac_source_cpu *)source;
}

static bool want_small(ptac_source *source, uintptr_t at, size_t bytes)
{
    return madvise((void *)at, bytes, MADV_NOHUGEPAGE) == 0;
}

/*
 * Where the system uses huge pages everywhere ("always"), the touch of one chunk brings
 * in all of its region. That is welcome while memory is new and fills from below: first
 * touches take a tenth of the time. From the first release on there are holes, and what
 * would come into them is more than is held and than the cap allows. A kernel without
 * huge pages refuses, and has none to be kept away.
 */
static void keep_small(ptac_source_cpu *cpu)
{
    if (!cpu->is_small)
        want_small(&cpu->source, cpu->base, cpu->end - cpu->base);
    cpu->is_small = true;
}

/* At a multiple of a huge page: more is reserved, and what sticks out given back. */
static uintptr_t reserve(ptac_source *source, size_t bytes)
{
    ptac_source_cpu *cpu = cpu_of(source);
    const size_t more = bytes + HUGE_PAGE_BYTES;
    void *found = more < bytes
                      ? MAP_FAILED
                      : mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (found == MAP_FAILED)
        return 0;

    const uintptr_t start = (uintptr_t)found;
    const uintptr_t base = ptac_round_up(start, HUGE_PAGE_BYTES);

    if (base > start)
        munmap(found, base - start);
    if (start + more > base + bytes)
        munmap((void *)(base + bytes), start + more - (base + bytes));
    cpu->base = cpu->accessible_end = base;
    cpu->end = base + bytes;
    cpu->is_small = false;
    return base;
}

static void unreserve(ptac_source *source, uintptr_t base, size_t bytes)
{
    munmap((void *)base, bytes);
    cpu_of(source)->base = cpu_of(source)->accessible_end = cpu_of(source)->end = 0;
}

static bool open_until(ptac_source_cpu *cpu, uintptr_t end)
{
    const uintptr_t from = cpu->accessible_end;

    if (mprotect((void *)from, end - from, PROT_READ | PROT_WRITE) != 0)
        return false;
    cpu->accessible_end = end;
    return true;
}

static bool commit(ptac_source *source, uintptr_t at, size_t bytes)
{
    ptac_source_cpu *cpu = cpu_of(source);
    const uintptr_t end = at + bytes;
    uintptr_t far = cpu->accessible_end + STEP_BYTES;

    if (end <= cpu->accessible_end)
        return true;
    if (far > cpu->end)
        far = cpu->end;
    return (far > end && open_until(cpu, far)) || open_until(cpu, end);
}

static bool release(ptac_source *source, uintptr_t at, size_t bytes)
{
    keep_small(cpu_of(source));
    return madvise((void *)at, bytes, MADV_DONTNEED) == 0;
}

static bool want_huge(ptac_source *source, uintptr_t at, size_t bytes)
{
    keep_small(cpu_of(source));
    return madvise((void *)at, bytes, MADV_HUGEPAGE) == 0;
}

/* All but a sixteenth; what the system does not tell is not. */
static bool is_touched(ptac_source *source, uintptr_t at, size_t bytes)
{
    const size_t n = bytes / (size_t)sysconf(_SC_PAGESIZE);
    unsigned char pages[HUGE_PAGE_BYTES / 4096];
    size_t n_touched = 0;

    if (n > sizeof pages || mincore((void *)at, bytes, pages) != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        n_touched += pages[i] & 1;
    return n_touched >= n - n / 16;
}

/* Before Linux 5.14 the kernel does not know the word: pages are touched instead. */
static bool populate(ptac_source *source, uintptr_t at, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (madvise((void *)at, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL)
        return false;
    for (size_t i = 0; i < bytes; i += page)
        *(volatile char *)(at + i) = 0;
    return true;
}

void ptac_source_cpu_init(ptac_source_cpu *cpu)
{
    *cpu =
        (ptac_source_cpu){.source = {CHUNK_BYTES, reserve, unreserve, commit, release,
                                     want_huge, want_small, is_touched, populate}};
}
