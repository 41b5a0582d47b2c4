/*
 * test_scratch.c - memory that kernels work in.
 */
#include "core/scratch.h"

#include "unit.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

UNIT(scratch_is_kept_for_the_next_call)
{
    ptac_scratch_clear();

    void *first = ptac_scratch_take(100000);

    EXPECT(first && (uintptr_t)first % 64 == 0);
    memset(first, 1, 100000);
    EXPECT(ptac_scratch_kept() == 0);
    ptac_scratch_give(first);
    EXPECT(ptac_scratch_kept() >= 100000);
    EXPECT(ptac_scratch_take(90000) == first);
    ptac_scratch_give(first);
    EXPECT(ptac_scratch_clear() >= 100000);
    EXPECT(ptac_scratch_kept() == 0 && ptac_scratch_clear() == 0);
}

UNIT(smaller_scratch_waits_for_those_who_ask_for_less)
{
    ptac_scratch_clear();

    void *small = ptac_scratch_take(5000);

    ptac_scratch_give(small);

    void *large = ptac_scratch_take(3 << 20);

    EXPECT(large && ptac_scratch_kept() >= 5000);
    memset(large, 1, 3 << 20);
    EXPECT(ptac_scratch_take(4000) == small);
    ptac_scratch_give(small);
    ptac_scratch_give(large);
    EXPECT(ptac_scratch_kept() >= (3 << 20) + 5000);
    EXPECT(ptac_scratch_take(3 << 20) == large);
    ptac_scratch_give(large);
    ptac_scratch_clear();
}

UNIT(larger_scratch_takes_the_place_of_smaller)
{
    enum { PLACES = 8 };
    void *all[PLACES], *large = ptac_scratch_take(3 << 20);

    ptac_scratch_clear();
    for (int i = 0; i < PLACES; i++)
        all[i] = ptac_scratch_take(5000);
    for (int i = 0; i < PLACES; i++)
        ptac_scratch_give(all[i]);
    EXPECT(large);
    ptac_scratch_give(large);
    EXPECT(ptac_scratch_kept() >= 3 << 20 && ptac_scratch_kept() < 5 << 20);
    EXPECT(ptac_scratch_take(3 << 20) == large);
    ptac_scratch_give(large);
    ptac_scratch_clear();
}

UNIT(the_cache_has_places_for_a_few)
{
    enum { MANY = 20 };
    void *all[MANY];

    ptac_scratch_clear();
    for (int i = 0; i < MANY; i++) {
        all[i] = ptac_scratch_take(10000);
        EXPECT(all[i]);
        memset(all[i], i, 10000);
    }
    for (int i = 0; i < MANY; i++) {
        EXPECT(((unsigned char *)all[i])[9999] == i);
        ptac_scratch_give(all[i]);
    }
    EXPECT(ptac_scratch_kept() >= 8 * 10000 && ptac_scratch_kept() < MANY * 10000);
    ptac_scratch_clear();
}

/* 8 MiB for each CPU, 64 at least: more than that goes back at once. */
UNIT(little_is_kept)
{
    enum { PIECE = 24 << 20, MANY = 4 };
    const long n_cpus = sysconf(_SC_NPROCESSORS_CONF);
    const size_t most = n_cpus > 8 ? (size_t)n_cpus << 23 : 64 << 20;
    void *all[MANY], *huge = ptac_scratch_take(most + 1);

    ptac_scratch_clear();
    ptac_scratch_give(huge);
    EXPECT(huge && ptac_scratch_kept() == 0);
    for (int i = 0; i < MANY; i++)
        all[i] = ptac_scratch_take(PIECE);
    for (int i = 0; i < MANY; i++)
        ptac_scratch_give(all[i]);
    EXPECT(ptac_scratch_kept() >= PIECE && ptac_scratch_kept() <= most);
    ptac_scratch_clear();
}

UNIT(scratch_that_cannot_be_had_is_null)
{
    EXPECT(!ptac_scratch_take(SIZE_MAX));
    EXPECT(!ptac_scratch_take(SIZE_MAX / 2));
    ptac_scratch_give(NULL);
}

static bool is_over;

static void *take_and_give(void *unused)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
        ptac_scratch_give(ptac_scratch_take(10000));
    return unused;
}

static bool is_right_when_cleared(void)
{
    ptac_scratch_clear();
    return ptac_scratch_kept() == 0;
}

UNIT(children_keep_what_is_in_their_cache)
{
    enum { FORKS = 200 };
    pthread_t threads[2];
    int n_right = 0;

    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, take_and_give, NULL) == 0);
    for (int i = 0; i < FORKS; i++)
        n_right += unit_in_child(is_right_when_cleared);
    __atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    EXPECT(n_right == FORKS);
    ptac_scratch_clear();
}
