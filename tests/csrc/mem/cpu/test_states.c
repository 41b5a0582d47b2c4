/*
 * test_states.c - the CPU pool: closed, on, draining, and what passes between.
 */
#include "calls.h"
#include "fixture.h"
#include "sanitizers.h"
#include "unit.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

UNIT(it_opens_once_and_shuts_at_once_without_blocks)
{
    bool is_refused = true;

    EXPECT(fixture_draining() == 0);
    EXPECT(!ptac_cpu_pool_alloc(MIB, &is_refused) && !is_refused);
    EXPECT(fixture_open(NULL));
    EXPECT(fixture_draining() == -1);
    EXPECT(fixture_open(NULL));
    EXPECT(fixture_called.n_installed == 1);

    void *memory = fixture_take(MIB);

    EXPECT(memory && (uintptr_t)memory % 64 == 0 && ptac_cpu_pool_owns(memory));
    EXPECT(!ptac_cpu_pool_owns(&is_refused) && !ptac_cpu_pool_owns(NULL));
    EXPECT(!ptac_cpu_pool_owns((char *)ptac_cpu_pool()->arenas[0]->end));
    EXPECT(!ptac_cpu_pool_owns((char *)ptac_cpu_pool()->arenas[0]->base - 1));
    EXPECT(!ptac_cpu_pool_free((char *)memory + 64));
    EXPECT(fixture_give(memory, MIB));
    EXPECT(!ptac_cpu_pool_free(memory));
    fixture_shut();
    EXPECT(fixture_called.n_removed == 1 && fixture_called.n_drained == 1);
    EXPECT(fixture_draining() == 0 && !ptac_cpu_pool_owns(memory));
    fixture_shut();
    EXPECT(fixture_called.n_removed == 1 && fixture_called.n_drained == 1);
    EXPECT(fixture_open(NULL) && fixture_called.n_installed == 1);
    fixture_shut();
}

UNIT(it_drains_while_blocks_are_in_use)
{
    bool is_refused = true;

    EXPECT(fixture_open(NULL));

    void *one = fixture_take(100000), *two = fixture_take(3 * MIB);

    fixture_shut();
    EXPECT(fixture_called.n_removed == 1 && fixture_called.n_drained == 0);
    EXPECT(fixture_draining() == 2);
    EXPECT(!ptac_cpu_pool_alloc(MIB, &is_refused) && !is_refused);
    EXPECT(fixture_give(one, 100000));
    EXPECT(fixture_draining() == 1 && fixture_called.n_drained == 0);
    EXPECT(!fixture_trouble());
    errno = 99;
    EXPECT(fixture_give(two, 3 * MIB));
    EXPECT(errno == 99);
    EXPECT(fixture_draining() == 0 && fixture_called.n_drained == 1);
    EXPECT(!ptac_cpu_pool_owns(two));
}

UNIT(it_comes_on_again_while_it_drains)
{
    EXPECT(fixture_open(NULL));

    void *one = fixture_take(MIB);

    fixture_shut();
    fixture_refuses_install = true;

    ptac_cpu_pool_options others = fixture_options();

    others.policy = ptac_policy_find("first_fit");
    others.cap = 5;
    others.n_history = 10;
    calls_refuse(CALL_mmap, 2, true); /* going back needs no memory of its own */
    EXPECT(!fixture_open(&others));
    calls_allow();
    fixture_refuses_install = false;
    EXPECT(fixture_draining() == 1);
    EXPECT(ptac_cpu_pool()->arenas[0]->policy == ptac_policy_find("exact_fit"));
    EXPECT(ptac_cpu_pool()->budget.cap == SIZE_MAX);
    EXPECT(!ptac_cpu_pool()->history.ring);
    EXPECT(fixture_open(NULL));
    EXPECT(fixture_called.n_installed == 3 && fixture_called.n_drained == 0);

    void *two = fixture_take(MIB);

    EXPECT(two && two != one);
    EXPECT(fixture_give(one, MIB) && fixture_give(two, MIB));
    EXPECT(fixture_draining() == -1);
    fixture_shut();
    EXPECT(fixture_called.n_drained == 1);
}

UNIT(it_stays_closed_when_nothing_can_be_installed)
{
    const int64_t mapped = calls_bytes_mapped();

    fixture_refuses_install = true;
    EXPECT(!fixture_open(NULL));
    fixture_refuses_install = false;
    EXPECT(fixture_draining() == 0);
    EXPECT(calls_bytes_mapped() == mapped);
}

UNIT(options_change_while_it_is_on)
{
    ptac_cpu_pool_options o = fixture_options();
    ptac_event event;
    void *blocks[10];

    o.n_history = 7;
    EXPECT(fixture_open(&o));
    for (int i = 0; i < 10; i++)
        blocks[i] = fixture_take(MIB);
    for (int i = 0; i < 9; i += 2)
        EXPECT(fixture_give(blocks[i], MIB));
    for (int i = 0; ptac_policy_at(i); i++) {
        o.policy = ptac_policy_at(i);
        EXPECT(fixture_open(&o));
        EXPECT(!fixture_trouble());
        EXPECT(fixture_give(fixture_take(MIB), MIB));
    }
    EXPECT(ptac_history_copy(&ptac_cpu_pool()->history, &event, 1) == 1);
    EXPECT(event.kind == PTAC_EVENT_FREE_COMPLETED && event.bytes == MIB);
    o.cap = 6 * MIB; /* what is held above it goes at once */
    EXPECT(fixture_open(&o));
    EXPECT(fixture_stats().reserved_bytes[PTAC_ALL].current <= (int64_t)(6 * MIB));
    for (int i = 1; i < 10; i += 2)
        EXPECT(fixture_give(blocks[i], MIB));
    fixture_shut();
    EXPECT(fixture_draining() == 0);
}

UNIT(a_cap_refuses_and_is_kept)
{
    ptac_cpu_pool_options o = fixture_options();
    bool is_refused = false;

    o.cap = 8 * MIB;
    EXPECT(fixture_open(&o));

    void *five = fixture_take(5 * MIB);

    EXPECT(five);
    EXPECT(!ptac_cpu_pool_alloc(5 * MIB, &is_refused) && is_refused);
    EXPECT(!ptac_cpu_pool_alloc(SIZE_MAX, &is_refused) && is_refused);

    void *two = fixture_take(2 * MIB);

    EXPECT(two);
    EXPECT(fixture_give(five, 5 * MIB));

    void *six = fixture_take(6 * MIB - 65536); /* needs what the five held given back */

    EXPECT(six);

    const ptac_mem_stats stats = fixture_stats();

    EXPECT(stats.num_ooms == 0 && stats.num_alloc_retries >= 1);
    EXPECT(stats.reserved_bytes[PTAC_ALL].peak <= (int64_t)o.cap);
    EXPECT(!fixture_trouble());
    EXPECT(fixture_give(six, 6 * MIB - 65536) && fixture_give(two, 2 * MIB));
    fixture_shut();
}

/* Giving memory back does not make addresses: a full arena would fault for ever. */
UNIT(what_can_never_fit_takes_no_memory_from_others)
{
    bool is_refused = true;

    EXPECT(fixture_open(NULL));

    void *memory = fixture_take(4 * MIB), *above = fixture_take(MIB);

    EXPECT(fixture_give(memory, 4 * MIB));
    for (size_t k = 0; k < 200; k++)
        EXPECT(!ptac_cpu_pool_alloc(SIZE_MAX - k, &is_refused) && !is_refused);
    EXPECT(!ptac_cpu_pool_alloc(SIZE_MAX / 2, &is_refused));
    EXPECT(fixture_stats().purged_bytes == 0);
    ptac_cpu_pool_note_oom(MIB); /* nobody else had memory either */
    EXPECT(fixture_stats().num_ooms == 1);
    EXPECT(fixture_give(above, MIB));
    fixture_shut();
}

/* Whoever is refused must not be served by others, whatever the cap's last digits. */
UNIT(a_cap_counts_whole_chunks)
{
    const size_t chunk = 64 << 10, rest = 40000;
    ptac_cpu_pool_options o = fixture_options();
    bool is_refused = false;

    o.cap = 10 * chunk + rest;
    EXPECT(fixture_open(&o));

    void *most = fixture_take(9 * chunk);

    EXPECT(most);
    EXPECT(!ptac_cpu_pool_alloc(chunk + rest - 64, &is_refused) && is_refused);

    void *last = fixture_take(chunk);

    EXPECT(last);
    EXPECT(fixture_give(last, chunk) && fixture_give(most, 9 * chunk));
    fixture_shut();
}

/* Peaks are read when all is over. */
UNIT(a_pool_that_has_closed_keeps_its_statistics)
{
    EXPECT(fixture_open(NULL));

    void *memory = fixture_take(2 * MIB);

    EXPECT(memory);
    fixture_shut();
    EXPECT(fixture_give(memory, 2 * MIB));
    EXPECT(fixture_draining() == 0);

    const ptac_mem_stats s = fixture_stats();

    EXPECT(s.arena_bytes.peak == (int64_t)(2 * MIB) && s.arena_bytes.current == 0);
    EXPECT(s.reserved_bytes[PTAC_LARGE].peak == s.reserved_bytes[PTAC_ALL].peak);
    EXPECT(s.reserved_bytes[PTAC_ALL].current == 0);
    EXPECT(s.segment[PTAC_ALL].current == 0 && s.segment[PTAC_ALL].peak == 1);
    ptac_pool_reset_peaks(ptac_cpu_pool());

    const ptac_mem_stats r = fixture_stats();

    EXPECT(r.arena_bytes.peak == 0 && r.segment[PTAC_ALL].peak == 0);
    EXPECT(r.reserved_bytes[PTAC_ALL].peak == 0 &&
           r.reserved_bytes[PTAC_LARGE].peak == 0);
    EXPECT(r.inactive_split_bytes[PTAC_ALL].peak == 0);
}

UNIT(reserved_bytes_are_in_memory)
{
    ptac_cpu_pool_options o = fixture_options();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    o.reserve_bytes = 3 * MIB + 1;
    for (int i = 0; i < 2; i++) {
        if (i) /* as on kernels that cannot do it in one call */
            calls_refuse(CALL_madvise, 1, false);
        EXPECT(fixture_open(&o));
        EXPECT(!i || calls_were_refused());
        calls_allow();

        char *memory = (char *)ptac_cpu_pool()->arenas[0]->base;
        unsigned char is_there[3 * 256 + 16] = {0};

        EXPECT(mincore(memory, 3 * MIB + page, is_there) == 0);
        EXPECT(!memchr(is_there, 0, 3 * MIB / page));
        EXPECT(!fixture_trouble());
        EXPECT(fixture_stats().reserved_bytes[PTAC_ALL].current >=
               (int64_t)(3 * MIB + 1));
        EXPECT(fixture_give(fixture_take(MIB), MIB));
        fixture_shut();
    }
    o.reserve_bytes = SIZE_MAX;
    EXPECT(!fixture_open(&o));
    EXPECT(fixture_draining() == 0);
}

/* Held blocks that nobody uses lie below what is to be reserved. */
UNIT(memory_to_reserve_is_made_room_for)
{
    ptac_cpu_pool_options o = fixture_options();
    void *blocks[30];

    o.cap = 300 * MIB;
    EXPECT(fixture_open(&o));
    for (int i = 0; i < 30; i++)
        blocks[i] = fixture_take(8 * MIB);
    for (int i = 0; i < 29; i++)
        EXPECT(fixture_give(blocks[i], 8 * MIB));
    EXPECT(fixture_stats().reserved_bytes[PTAC_ALL].current == (int64_t)(240 * MIB));
    o.reserve_bytes = 293 * MIB;
    EXPECT(!fixture_open(&o)); /* with what is used that is above the cap */
    o.reserve_bytes = 292 * MIB;
    EXPECT(fixture_open(&o));
    EXPECT(fixture_stats().reserved_bytes[PTAC_ALL].current == (int64_t)o.cap);
    EXPECT(!fixture_trouble());
    EXPECT(fixture_give(blocks[29], 8 * MIB));
    fixture_shut();
    EXPECT(fixture_open(&o));
    EXPECT(fixture_give(fixture_take(MIB), MIB)); /* kept until the next request */
    o.cap = o.reserve_bytes = 32 * MIB;
    EXPECT(fixture_open(&o));
    EXPECT(!fixture_trouble());
    fixture_shut();
}

/* What the user has locked stays, all else goes. */
UNIT(locked_pages_are_not_given_back)
{
    const size_t bytes = 8 * MIB;

#if defined(UNDER_ADDRESS_SANITIZER) || defined(UNDER_THREAD_SANITIZER)
    unit_skip("sanitizers make mlock do nothing");
    return;
#endif
    EXPECT(fixture_open(NULL));

    char *memory = fixture_take(bytes), *above = fixture_take(MIB);

    if (mlock(memory + 2 * MIB, 100000) != 0) {
        unit_skip("this process may not lock pages");
    } else {
        EXPECT(fixture_give(memory, bytes));

        const size_t released = ptac_cpu_pool_trim();

        EXPECT(released >= bytes - 4 * 65536 && released < bytes);
        EXPECT(!fixture_trouble());
        EXPECT(munlock(memory + 2 * MIB, 100000) == 0);
        EXPECT(ptac_cpu_pool_trim() >= 65536);
        EXPECT(!fixture_trouble());
        memory = fixture_take(bytes);
    }
    EXPECT(fixture_give(memory, bytes) && fixture_give(above, MIB));
    fixture_shut();
}

UNIT(a_thousand_times_on_and_off)
{
    ptac_cpu_pool_options o = fixture_options();
    int64_t mapped = 0;
    size_t rss = 0;

    for (int i = 0; i < 1000; i++) {
        o.n_history = (size_t)i % 3 * 10;
        EXPECT(fixture_open(&o));

        void *one = fixture_take(MIB), *two = fixture_take(100000);

        EXPECT(fixture_give(one, MIB));
        fixture_shut();
        EXPECT(fixture_give(two, 100000));
        EXPECT(fixture_called.n_drained == 1);
        if (i == 99) {
            mapped = calls_bytes_mapped();
            rss = fixture_rss();
        }
    }
    EXPECT(calls_bytes_mapped() == mapped);
#if defined(UNDER_ADDRESS_SANITIZER)
    rss += 256 * MIB; /* it keeps what was freed for a while, and finds leaks itself */
#endif
    EXPECT(fixture_rss() < rss + MIB);
    EXPECT(calls_n_threads() <= 1);
}
