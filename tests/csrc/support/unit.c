/*
 * unit.c - runs the tests that were compiled in: all, or those named.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_UNITS = 256,
    CHILD_SECONDS = 60, /* a child that hangs is a failure, not a stuck test run */
};

static struct {
    const char *name;
    void (*test)(void);
} units[MAX_UNITS];
static int n_units;
static int n_failures;

void unit_add(const char *name, void (*test)(void))
{
    if (n_units == MAX_UNITS)
        abort();
    units[n_units].name = name;
    units[n_units++].test = test;
}

void unit_fail(const char *file, int line, const char *what)
{
    /* A broken loop would say the same a million times. */
    if (__atomic_fetch_add(&n_failures, 1, __ATOMIC_RELAXED) < 20)
        printf("  FAIL %s:%d: %s\n", file, line, what);
}

void unit_skip(const char *reason)
{
    printf("  skipped: %s\n", reason);
}

static int status_of_child(bool (*check)(void))
{
    int status = -1;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        const int before = n_failures;

        setrlimit(RLIMIT_CORE, &none);
        alarm(CHILD_SECONDS);
        const bool fine = check();
        fflush(stdout);
        _exit(fine && n_failures == before ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

uint64_t unit_amount(uint64_t usual, uint64_t full)
{
    const char *is_full = getenv("PTAC_TEST_FULL");

    return is_full && strcmp(is_full, "1") == 0 ? full : usual;
}

bool unit_in_child(bool (*check)(void))
{
    const int status = status_of_child(check);

    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool unit_child_dies(bool (*act)(void), int signal_number)
{
    const int status = status_of_child(act);

    return WIFSIGNALED(status) && WTERMSIG(status) == signal_number;
}

static bool is_asked(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc == 1;
}

int main(int argc, char **argv)
{
    int n_run = 0;

    for (int i = 0; i < n_units; i++) {
        const int before = n_failures;

        if (!is_asked(units[i].name, argc, argv))
            continue;
        n_run++;
        units[i].test();
        printf("%s %s\n", n_failures == before ? "ok  " : "FAIL", units[i].name);
    }
    printf("%s: %d tests, %d failures\n", n_failures ? "FAILED" : "passed", n_run,
           n_failures);
    return n_failures == 0 && n_run > 0 ? 0 : 1;
}
