/*
 * arena.c - slots between forbidden pages.
 */
#include "arena.h"

#include "sanitizers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(UNDER_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address))
#endif

enum {
    FORBIDDEN = 1 << 16, /* more than a page, so that strides over it are caught too */
    GUARD = 512,         /* eight of the widest vectors */
    PATTERN = 0xa5,
};

typedef struct slot {
    unsigned char *begin, *end; /* of the memory that may be touched */
    unsigned char *data;
    size_t bytes;
} slot;

static slot slots[ARENA_SLOTS];
static bool is_forbidden;

void arena_prepare(void)
{
    const size_t stride = ARENA_SLOT_BYTES + FORBIDDEN;
    unsigned char *all;

    if (slots[0].begin)
        return;
    all = mmap(NULL, ARENA_SLOTS * stride + FORBIDDEN, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    for (int i = 0; i < ARENA_SLOTS; i++) {
        slot *s = &slots[i];

        s->begin = all + FORBIDDEN + (size_t)i * stride;
        s->end = s->begin + ARENA_SLOT_BYTES;
        s->data = s->begin;
        if (mprotect(s->begin, ARENA_SLOT_BYTES, PROT_READ | PROT_WRITE) != 0) {
            perror("mprotect");
            exit(2);
        }
    }
}

/* The guards around the buffer, at most GUARD bytes each; shorter at a slot's edge. */
static size_t before(const slot *s)
{
    const size_t room = (size_t)(s->data - s->begin);

    return room < GUARD ? room : GUARD;
}

static size_t behind(const slot *s)
{
    const size_t room = (size_t)(s->end - s->data) - s->bytes;

    return room < GUARD ? room : GUARD;
}

static void unpoison(const slot *s)
{
    ASAN_UNPOISON_MEMORY_REGION(s->data - before(s), before(s));
    ASAN_UNPOISON_MEMORY_REGION(s->data + s->bytes, behind(s));
}

void *arena_place(rng *r, int index, size_t bytes, size_t element_bytes)
{
    slot *s = &slots[index];
    const size_t room = ARENA_SLOT_BYTES - bytes;

    if (bytes > ARENA_SLOT_BYTES) {
        fprintf(stderr, "a buffer of %zu bytes is too large for the arena\n", bytes);
        exit(2);
    }
    unpoison(s);
    s->bytes = bytes;
    switch (r ? rng_below(r, 4) : 0) {
    case 0:
        s->data = s->begin;
        break;
    case 1:
        s->data = s->begin + GUARD + (size_t)rng_below(r, 128) * element_bytes;
        if (s->data + bytes > s->end)
            s->data = s->end - bytes;
        break;
    default:
        s->data = s->begin + room;
    }
    memset(s->data - before(s), PATTERN, before(s));
    memset(s->data + bytes, PATTERN, behind(s));
    ASAN_POISON_MEMORY_REGION(s->data - before(s), before(s));
    ASAN_POISON_MEMORY_REGION(s->data + bytes, behind(s));
    return s->data;
}

bool arena_forbid(bool all)
{
    const bool before = is_forbidden;

    for (int i = 0; i < ARENA_SLOTS && before != all; i++)
        if (mprotect(slots[i].begin, ARENA_SLOT_BYTES,
                     all ? PROT_NONE : PROT_READ | PROT_WRITE) != 0)
            abort();
    is_forbidden = all;
    return before;
}

const char *arena_damage(int index)
{
    const slot *s = &slots[index];
    const char *damage = NULL;

    unpoison(s);
    for (size_t i = 1; i <= before(s); i++)
        if (s->data[-(int64_t)i] != PATTERN)
            damage = "bytes before it were overwritten";
    for (size_t i = 0; i < behind(s); i++)
        if (s->data[s->bytes + i] != PATTERN)
            damage = "bytes behind it were overwritten";
    return damage;
}

bool arena_locate(const void *address, int *index, int64_t *distance)
{
    const unsigned char *at = address;

    for (int i = 0; i < ARENA_SLOTS; i++) {
        const slot *s = &slots[i];

        if (s->begin && at >= s->begin - FORBIDDEN / 2 && at < s->end + FORBIDDEN / 2) {
            *index = i;
            *distance = at < s->data ? at - s->data : at - (s->data + s->bytes);
            return true;
        }
    }
    return false;
}
