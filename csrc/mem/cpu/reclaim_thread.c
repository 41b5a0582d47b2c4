/*
 * reclaim_thread.c - a detached thread; it ends by itself when its tick says so.
 */
#include "mem/cpu/reclaim_thread.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

enum {
    STACK_BYTES = 256 << 10,
};

static void *run(void *argument)
{
    const struct timespec second = {.tv_sec = 1};
    bool (*tick)(void);

    *(void **)&tick = argument;
    do {
        nanosleep(&second, NULL);
    } while (tick());
    return NULL;
}

bool ptac_reclaim_thread_start(bool (*tick)(void))
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);

    if (!error) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        error = pthread_create(&thread, &attributes, run, *(void **)&tick);
        pthread_attr_destroy(&attributes);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return !error;
}
