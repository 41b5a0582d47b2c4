/*
 * memory_limits.c - reading /proc and /sys/fs/cgroup.
 *
 * Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
 */
#include "mem/cpu/memory_limits.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    TEXT_BYTES = 16 << 10,
    PATH_BYTES = 4096,
};

/* The file's text, cut at n - 1 bytes; false when it cannot be read. */
static bool read_text(const char *path, char *text, size_t n)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;

    if (file < 0)
        return false;
    while (length < n - 1) {
        const ssize_t got = read(file, text + length, n - 1 - length);

        if (got <= 0)
            break;
        length += (size_t)got;
    }
    close(file);
    text[length] = '\0';
    return length > 0;
}

/* What follows a name at the beginning of a part of a text, or NULL. */
static const char *after(const char *text, char between, const char *name)
{
    const size_t length = strlen(name);

    for (const char *at = text; at; at = strchr(at, between)) {
        at += *at == between;
        if (strncmp(at, name, length) == 0)
            return at + length;
    }
    return NULL;
}

/* The number behind a name at the beginning of a line, or fallback. */
static size_t number_after(const char *text, const char *name, size_t fallback)
{
    const char *found = after(text, '\n', name);

    return found ? (size_t)strtoull(found, NULL, 10) : fallback;
}

/* Where the system tells of memory groups, by version. */
typedef struct group_files {
    const char *root, *limit, *usage;
    const char *droppable[4]; /* in memory.stat: clean pages, what is kept in case */
} group_files;

static const group_files versions[2] = {
    {"/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
    {"/sys/fs/cgroup",
     "memory.max",
     "memory.current",
     {"inactive_file ", "active_file ", "slab_reclaimable "}},
};

typedef struct group {
    const group_files *files;
    char path[PATH_BYTES];
} group;

/* Which memory group this process is in; version 1 goes first. */
static bool find_group(group *g)
{
    char text[TEXT_BYTES], *line, *rest = text;

    g->files = NULL;
    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return false;
    while ((line = strsep(&rest, "\n"))) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        const char *end;

        if (!path)
            continue;
        *path++ = '\0';
        end = after(names + 1, ',', "memory");
        if (end && (*end == ',' || !*end))
            g->files = &versions[0];
        else if (!g->files && strcmp(line, "0:") == 0)
            g->files = &versions[1];
        else
            continue;
        if (snprintf(g->path, sizeof g->path, "%s", path) >= (int)sizeof g->path)
            return false;
    }
    return g->files != NULL;
}

/* The text of a group's file; false when it cannot be read. */
static bool read_group(const group *g, const char *name, char *text, size_t n)
{
    char path[PATH_BYTES];
    const char *below = strcmp(g->path, "/") == 0 ? "" : g->path;

    return snprintf(path, sizeof path, "%s%s/%s", g->files->root, below, name) <
               PATH_BYTES &&
           read_text(path, text, n);
}

/* A file of one number; "max" and what is no number are SIZE_MAX. */
static size_t read_number(const group *g, const char *name)
{
    char text[64], *end;

    if (!read_group(g, name, text, sizeof text))
        return SIZE_MAX;

    const unsigned long long n = strtoull(text, &end, 10);

    return end == text ? SIZE_MAX : (size_t)n;
}

/* From this group to the one around it; false at the outermost. */
static bool go_up(group *g)
{
    char *slash = strrchr(g->path, '/');

    if (!slash || strcmp(g->path, "/") == 0)
        return false;
    slash[slash == g->path] = '\0';
    return true;
}

size_t ptac_cgroup_limit(void)
{
    const size_t physical = ptac_physical_memory();
    size_t least = SIZE_MAX;
    group g;

    for (bool is_one = find_group(&g); is_one; is_one = go_up(&g)) {
        const size_t limit = read_number(&g, g.files->limit);

        least = limit < least ? limit : least;
    }
    return least < physical ? least : SIZE_MAX;
}

size_t ptac_physical_memory(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);

    return pages > 0 && bytes > 0 ? (size_t)pages * (size_t)bytes : 0;
}

size_t ptac_addresses_left(void)
{
    struct rlimit limit;
    char text[64];

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    if (!read_text("/proc/self/statm", text, sizeof text))
        return 0;

    const size_t used =
        (size_t)strtoull(text, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);

    return used < limit.rlim_cur ? (size_t)limit.rlim_cur - used : 0;
}

/* What is used of the group's memory, without what the kernel would drop for others. */
static size_t bytes_kept(const group *g)
{
    char text[TEXT_BYTES];
    size_t kept = read_number(g, g->files->usage);

    if (kept == SIZE_MAX)
        return 0;
    if (!read_group(g, "memory.stat", text, sizeof text))
        return kept;
    for (const char *const *name = g->files->droppable; *name; name++) {
        const size_t bytes = number_after(text, *name, 0);

        kept -= bytes < kept ? bytes : kept;
    }
    return kept;
}

static bool group_is_short(void)
{
    group g;

    for (bool is_one = find_group(&g); is_one; is_one = go_up(&g)) {
        const size_t limit = read_number(&g, g.files->limit);

        if (limit < ptac_physical_memory() && bytes_kept(&g) > limit - limit / 20)
            return true;
    }
    return false;
}

bool ptac_memory_is_short(void)
{
    char text[TEXT_BYTES];

    if (read_text("/proc/meminfo", text, sizeof text)) {
        const size_t total = number_after(text, "MemTotal:", 0);
        const size_t left = number_after(text, "MemAvailable:", total);

        if (left < total / 20)
            return true;
    }
    return group_is_short();
}
