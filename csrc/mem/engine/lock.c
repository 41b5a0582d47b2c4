/*
 * lock.c - waiting for a lock, in the kernel after a short spin.
 *
 * Drepper, Futexes Are Tricky (2011), mutex2; and a time limit for each sleep.
 */
#define _GNU_SOURCE 1
#include "mem/engine/lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    N_SPINS = 100,
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void ptac_lock_wait(ptac_lock *lock)
{
    const struct timespec millisecond = {.tv_nsec = 1000000};
    const int error = errno;

    for (int i = 0; i < N_SPINS; i++) {
        pause_briefly();
        if (__atomic_load_n(&lock->word, __ATOMIC_RELAXED) == 0 && ptac_lock_try(lock))
            return;
    }
    while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE) != 0)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, &millisecond, NULL, 0);
    errno = error;
}

void ptac_lock_wake(ptac_lock *lock)
{
    const int error = errno;

    syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = error;
}
