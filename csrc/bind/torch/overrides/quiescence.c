/*
 * quiescence.c - whether no thread can be on its way from the dispatcher to a kernel.
 *
 * Torch's tables are read without locks, so an entry may be taken out only while no
 * other thread reads it. Between the look into the table and our kernel no system call
 * is made. A thread that sleeps in one is therefore elsewhere, and so are all where
 * every other thread sleeps: those that want the interpreter's lock go on sleeping
 * while the caller holds it.
 *
 * Threads are looked at one after the other, twice. Where each sleeps both times and
 * has not been switched in between, all of them slept between the two rounds. What a
 * timer or another process wakes after that, and what then calls torch without the
 * interpreter's lock, is not seen.
 */
#define _GNU_SOURCE 1
#include "bind/torch/overrides/override.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Add to the history how often a thread has been switched; whether it sleeps. */
static bool sleeps(const char *thread, uint64_t *history)
{
    char path[64], line[128], state = 'X'; /* one that has ended sleeps too */
    const char *count;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%.20s/status", thread);
    file = fopen(path, "re");
    if (!file)
        return errno == ENOENT;
    errno = 0;
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "State: %c", &state);
        if ((count = strstr(line, "voluntary_ctxt_switches:")))
            *history = *history * 31 + strtoull(strchr(count, ':') + 1, NULL, 10);
    }
    fclose(file);
    return strchr("SZX", state) && (errno == 0 || errno == ESRCH);
}

/* Whether all threads but this one sleep, and how often they have been switched. */
static bool all_sleep(uint64_t *history)
{
    DIR *threads = opendir("/proc/self/task");
    bool so_far = threads != NULL;

    *history = 0;
    for (const struct dirent *entry; so_far && (entry = readdir(threads));)
        so_far = *entry->d_name == '.' || atoi(entry->d_name) == gettid() ||
                 sleeps(entry->d_name, history);
    if (threads)
        closedir(threads);
    return so_far;
}

bool ptac_is_quiet(void)
{
    uint64_t first, second;

    return all_sleep(&first) && all_sleep(&second) && first == second &&
           ptac_calls_in_flight() == 0;
}
