/*
 * test_got.c - slots of libraries that were linked in every way: found, written, put
 * back. PTAC_TEST_LIBRARIES names them, with colons between.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "bind/abi/got.h"

#include "calls.h"
#include "unit.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct user {
    void *library;
    int (*take)(void **memory, size_t bytes);
    void (*give)(void *memory);
} user;

static int n_frees;
static void (*real_free)(void *memory);

static void counted_free(void *memory)
{
    n_frees++;
    real_free(memory);
}

static void other_free(void *memory)
{
    real_free(memory);
}

/* What /proc/self/maps says of the page, "rw-p" and such. */
static void access_of(const uintptr_t *at, char access[5])
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char line[512], found[5];

    strcpy(access, "none");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, found) == 3 &&
            from <= (uintptr_t)at && (uintptr_t)at < to)
            strcpy(access, found);
    if (maps)
        fclose(maps);
}

static bool use(const user *u)
{
    void *memory = NULL;

    if (u->take(&memory, 1000) != 0 || (uintptr_t)memory % 64)
        return false;
    u->give(memory);
    return true;
}

static void write_and_restore(const user *u, const got_slots *slots)
{
    char before[GOT_MAX_SLOTS][5], after[5];

    for (int i = 0; i < slots->n; i++)
        access_of(slots->at[i], before[i]);
    n_frees = 0;
    EXPECT(got_write(slots, (uintptr_t)counted_free));
    EXPECT(use(u) && n_frees == 1);
    for (int i = 0; i < slots->n; i++) {
        EXPECT(*slots->at[i] == (uintptr_t)counted_free);
        access_of(slots->at[i], after);
        EXPECT_TEXT(after, before[i]);
    }
    EXPECT(got_restore(slots, (uintptr_t)counted_free));
    for (int i = 0; i < slots->n; i++) {
        EXPECT(*slots->at[i] == slots->found[i]);
        access_of(slots->at[i], after);
        EXPECT_TEXT(after, before[i]);
    }
    EXPECT(use(u) && n_frees == 1);
}

/* Who came after us stays, and we are told. */
static void be_overtaken(const user *u, got_slots *slots)
{
    got_slots theirs = *slots;

    EXPECT(got_write(slots, (uintptr_t)counted_free));
    theirs.n = 1;
    EXPECT(got_write(&theirs, (uintptr_t)other_free));
    EXPECT(!got_restore(slots, (uintptr_t)counted_free));
    EXPECT(*slots->at[0] == (uintptr_t)other_free);
    for (int i = 1; i < slots->n; i++)
        EXPECT(*slots->at[i] == slots->found[i]);
    EXPECT(use(u));
    EXPECT(got_restore(&theirs, (uintptr_t)other_free));
}

/* Pages that stay read-only: nothing is written, in none of the slots. */
static void be_refused(const got_slots *slots)
{
    for (int n = 1; n <= slots->n; n++) {
        bool is_done;

        calls_refuse(CALL_mprotect, n, true);
        is_done = got_write(slots, (uintptr_t)counted_free);
        EXPECT(is_done != calls_were_refused() || n > 1);
        calls_allow();
        if (is_done)
            EXPECT(got_restore(slots, (uintptr_t)counted_free));
        for (int i = 0; i < slots->n; i++)
            EXPECT(*slots->at[i] == slots->found[i]);
    }
}

static void check_library(const char *path)
{
    user u = {.library = dlopen(path, RTLD_LAZY | RTLD_LOCAL)};
    got_slots frees, memaligns, others;

    EXPECT(u.library != NULL);
    if (!u.library)
        return;
    u.take = (int (*)(void **, size_t))dlsym(u.library, "user_take");
    u.give = (void (*)(void *))dlsym(u.library, "user_give");
    EXPECT(!got_find(u.library, "getpid", &others));
    EXPECT(!got_find(u.library, "user_give", &others) || others.n > 0);
    /* Twice: as the linker left it, lazily perhaps, and after the first call. */
    for (int i = 0; i < 2; i++) {
        EXPECT(got_find(u.library, "free", &frees) && frees.n >= 1);
        EXPECT(got_find(u.library, "posix_memalign", &memaligns) && memaligns.n >= 1);
        EXPECT(frees.n == (strstr(path, "addresses") ? 2 : 1));
        real_free = (void (*)(void *))got_function(u.library, "free", &frees);
        EXPECT(real_free == (void (*)(void *))dlsym(RTLD_DEFAULT, "free"));
        EXPECT(got_function(u.library, "posix_memalign", &memaligns) ==
               (uintptr_t)dlsym(RTLD_DEFAULT, "posix_memalign"));
        write_and_restore(&u, &frees);
        be_overtaken(&u, &frees);
        be_refused(&frees);
        EXPECT(use(&u));
    }
    dlclose(u.library);
}

UNIT(slots_are_written_and_put_back)
{
    const char *given = getenv("PTAC_TEST_LIBRARIES");
    char *names = given ? strdup(given) : NULL, *rest = names;

    if (!names)
        unit_skip("PTAC_TEST_LIBRARIES names no library");
    for (char *path; (path = strsep(&rest, ":"));) {
        printf("  %s\n", strrchr(path, '/'));
        check_library(path);
    }
    free(names);
}
