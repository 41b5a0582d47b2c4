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

/* A file of one number; "max" and what is no number are SIZE_MAX. */
static size_t read_number(const char *path)
{
    char text[64], *end;

    if (!read_text(path, text, sizeof text))
        return SIZE_MAX;

    const unsigned long long n = strtoull(text, &end, 10);

    return end == text ? SIZE_MAX : (size_t)n;
}

/* The number behind a name at the beginning of a line, or fallback. */
static size_t number_after(const char *text, const char *name, size_t fallback)
{
    const size_t length = strlen(name);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0)
            return (size_t)strtoull(line + length, NULL, 10);
        if (!*line)
            break;
    }
    return fallback;
}

typedef struct group {
    const char *root, *limit, *usage;
    const char *const *droppable; /* in memory.stat, to NULL */
    char path[PATH_BYTES];
} group;

/* Clean pages of files, used of late or not, and what the kernel keeps in case. */
static const char *const droppable_1[] = {"total_inactive_file ", "total_active_file ",
                                          NULL};
static const char *const droppable_2[] = {"inactive_file ", "active_file ",
                                          "slab_reclaimable ", NULL};

/* Whether a list with commas has this word. */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (!at[length] || at[length] == ','))
            return true;
    }
    return false;
}

/* Which memory group this process is in. */
static bool find_group(group *g)
{
    char text[TEXT_BYTES], *line, *rest = text;

    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return false;
    g->root = NULL;
    while ((line = strsep(&rest, "\n"))) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;

        if (!path || (g->root && strncmp(line, "0::", 3) == 0))
            continue;
        *path++ = '\0';
        if (has_word(names + 1, "memory")) {
            g->root = "/sys/fs/cgroup/memory";
            g->limit = "memory.limit_in_bytes";
            g->usage = "memory.usage_in_bytes";
            g->droppable = droppable_1;
        } else if (strcmp(line, "0:") == 0) {
            g->root = "/sys/fs/cgroup";
            g->limit = "memory.max";
            g->usage = "memory.current";
            g->droppable = droppable_2;
        } else {
            continue;
        }
        if (snprintf(g->path, sizeof g->path, "%s", path) >= (int)sizeof g->path)
            return false;
    }
    return g->root != NULL;
}

static bool group_file(const group *g, const char *name, char *path)
{
    return snprintf(path, PATH_BYTES, "%s%s/%s", g->root,
                    strcmp(g->path, "/") == 0 ? "" : g->path, name) < PATH_BYTES;
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
    char path[PATH_BYTES];
    group g;

    if (!find_group(&g))
        return SIZE_MAX;
    do {
        const size_t limit =
            group_file(&g, g.limit, path) ? read_number(path) : SIZE_MAX;

        if (limit < least)
            least = limit;
    } while (go_up(&g));
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
    char path[PATH_BYTES], text[TEXT_BYTES];
    size_t kept = group_file(g, g->usage, path) ? read_number(path) : SIZE_MAX;

    if (kept == SIZE_MAX)
        return 0;
    if (!group_file(g, "memory.stat", path) || !read_text(path, text, sizeof text))
        return kept;
    for (const char *const *name = g->droppable; *name; name++) {
        const size_t bytes = number_after(text, *name, 0);

        kept -= bytes < kept ? bytes : kept;
    }
    return kept;
}

static bool group_is_short(void)
{
    char path[PATH_BYTES];
    group g;

    if (!find_group(&g))
        return false;
    do {
        if (!group_file(&g, g.limit, path))
            return false;

        const size_t limit = read_number(path);

        if (limit < ptac_physical_memory() && bytes_kept(&g) > limit - limit / 20)
            return true;
    } while (go_up(&g));
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
