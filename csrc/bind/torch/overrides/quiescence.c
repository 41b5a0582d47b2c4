/*
 * quiescence.c - whether no thread can be on its way from the dispatcher to a kernel.
 *
 * Torch's tables are read without locks, so an entry may be taken out only while no
 * other thread reads it. Between the look into the table and our kernel no system call
 * is made. A thread that sleeps in one is therefore elsewhere, and so are all where
 * every other thread sleeps: those that want the interpreter's lock go on sleeping
 * while the caller holds it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "bind/torch/overrides/override.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* By its line of figures: "number (name) state ..."; one that has ended sleeps too. */
static bool sleeps(const char *thread)
{
    char path[64], text[128] = "";
    const char *state;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
    file = fopen(path, "re");
    if (!file)
        return errno == ENOENT;
    state = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    fclose(file);
    return state ? strchr("SZX", state[2]) != NULL : errno == ESRCH;
}

bool ptac_is_quiet(void)
{
    DIR *threads = opendir("/proc/self/task");
    bool all_sleep = threads != NULL;

    for (const struct dirent *entry; all_sleep && (entry = readdir(threads));)
        all_sleep = *entry->d_name == '.' || atoi(entry->d_name) == gettid() ||
                    sleeps(entry->d_name);
    if (threads)
        closedir(threads);
    return all_sleep && ptac_calls_in_flight() == 0;
}
