/*
 * lt_plan.c - the table of plans: sets of a few places, each behind a version.
 *
 * A place's version is odd while it is written. Who reads takes the version before and
 * after, and finds nothing where they differ (a sequence lock, without waiting). Words
 * are read and written one by one as atomics, so that no race is undefined.
 */
#include "ops/linear/cuda/lt_plan.h"

#include <string.h>

enum {
    N_SETS = 512, /* a power of two */
    N_WAYS = 4,
    KEY_WORDS = sizeof(ptac_lt_key) / sizeof(uint64_t),
    PLAN_WORDS = sizeof(ptac_lt_plan) / sizeof(uint64_t),
};

typedef struct place {
    uint32_t version; /* 0: was never written */
    uint64_t key[KEY_WORDS], plan[PLAN_WORDS];
} place;

static struct {
    place ways[N_WAYS];
    uint32_t next; /* to be written over */
} sets[N_SETS];

#define LOAD(value) __atomic_load_n(&(value), __ATOMIC_ACQUIRE)

/* FNV-1a over words. */
static uint64_t hash(const uint64_t words[KEY_WORDS])
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < KEY_WORDS; i++)
        h = (h ^ words[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

static void load(const uint64_t *from, uint64_t *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = LOAD(from[i]);
}

/* Releases order what is written here behind the odd version. */
static void store(const uint64_t *from, uint64_t *to, int n)
{
    for (int i = 0; i < n; i++)
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELEASE);
}

static bool read_place(const place *p, uint64_t key[KEY_WORDS],
                       uint64_t plan[PLAN_WORDS])
{
    const uint32_t before = LOAD(p->version);

    if (before == 0 || before % 2)
        return false;
    load(p->key, key, KEY_WORDS);
    load(p->plan, plan, PLAN_WORDS);
    return LOAD(p->version) == before;
}

bool ptac_lt_plan_find(const ptac_lt_key *key, ptac_lt_plan *plan)
{
    uint64_t wanted[KEY_WORDS], found[KEY_WORDS], words[PLAN_WORDS];

    memcpy(wanted, key, sizeof wanted);

    const place *ways = sets[hash(wanted) % N_SETS].ways;

    for (int i = 0; i < N_WAYS; i++)
        if (read_place(&ways[i], found, words) &&
            memcmp(found, wanted, sizeof found) == 0) {
            memcpy(plan, words, sizeof words);
            return true;
        }
    return false;
}

void ptac_lt_plan_keep(const ptac_lt_key *key, const ptac_lt_plan *plan)
{
    uint64_t words[KEY_WORDS], plan_words[PLAN_WORDS];

    memcpy(words, key, sizeof words);
    memcpy(plan_words, plan, sizeof plan_words);

    const uint64_t set = hash(words) % N_SETS;
    const uint32_t way = __atomic_fetch_add(&sets[set].next, 1, __ATOMIC_RELAXED);
    place *p = &sets[set].ways[way % N_WAYS];
    uint32_t version = LOAD(p->version);

    if (version % 2 ||
        !__atomic_compare_exchange_n(&p->version, &version, version + 1, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    store(words, p->key, KEY_WORDS);
    store(plan_words, p->plan, PLAN_WORDS);
    __atomic_store_n(&p->version, version + 2, __ATOMIC_RELEASE);
}

void ptac_lt_plan_clear(void)
{
    for (int set = 0; set < N_SETS; set++)
        for (int way = 0; way < N_WAYS; way++)
            __atomic_store_n(&sets[set].ways[way].version, 0, __ATOMIC_RELEASE);
}
