/*
 * files.c - a folder of its own below TMPDIR.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "files.h"

#include "calls.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

bool files_begin(void)
{
    const char *folder = getenv("TMPDIR");

    snprintf(root, sizeof root, "%s/files-XXXXXX", folder ? folder : "/tmp");
    if (!mkdtemp(root)) {
        perror(root);
        return false;
    }
    calls_pretend_files(root);
    return true;
}

void files_write(const char *path, const char *text)
{
    char whole[1024];
    FILE *file;

    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/'));
         slash++) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    file = fopen(whole, "we");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        perror(whole);
}

static int remove_one(const char *path, const struct stat *s, int kind,
                      struct FTW *where)
{
    (void)s;
    (void)kind;
    (void)where;
    return remove(path);
}

void files_end(void)
{
    calls_pretend_files(NULL);
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
