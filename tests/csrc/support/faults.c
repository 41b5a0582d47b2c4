/*
 * faults.c - signal handlers and sanitizer callbacks that print the note.
 */
#include "faults.h"

#include "arena.h"
#include "sanitizers.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char note[1024];

void faults_note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(note, sizeof note, format, args);
    va_end(args);
}

const char *faults_noted(void)
{
    return note;
}

#if defined(UNDER_ADDRESS_SANITIZER) || defined(UNDER_THREAD_SANITIZER)
/* Of the sanitizers' common interface, which gcc installs for some of them only. */
void __sanitizer_set_death_callback(void (*callback)(void));

static void print_note(void)
{
    fprintf(stderr, "while running %s\n", note);
}

void faults_watch(const char *(*name_of_slot)(int slot))
{
    (void)name_of_slot; /* the sanitizer says more than we could */
    __sanitizer_set_death_callback(print_note);
}
#else
static const char *(*name_of)(int slot);

/* The fault is the row's own doing, in no lock of libc's: printing is safe enough. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    int slot;
    int64_t distance;

    (void)context;
    printf("FAIL %s\n  %s", note, strsignal(number));
    if (number == SIGSEGV && arena_forbid(false) &&
        arena_locate(info->si_addr, &slot, &distance))
        printf(": %s belongs to the device: only kernels may touch it", name_of(slot));
    else if (number == SIGSEGV && arena_locate(info->si_addr, &slot, &distance))
        printf(": touched %lld bytes %s %s",
               (long long)(distance < 0 ? -distance : distance),
               distance < 0 ? "before" : "behind the end of", name_of(slot));
    printf("\n");
    fflush(stdout);
    _exit(1);
}

void faults_watch(const char *(*name_of_slot)(int slot))
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static char own_stack[1 << 16];
    const stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
    struct sigaction action = {.sa_sigaction = on_fault,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK};

    name_of = name_of_slot;
    sigaltstack(&stack, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}
#endif
