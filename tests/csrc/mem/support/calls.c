/*
 * calls.c - the wrapped functions.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "calls.h"

#include "mem/cpu/cpu_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Names that the linker's --wrap prescribes. */
#define WRAPPED(result, name, ...)                                                     \
    result __real_##name(__VA_ARGS__);                                                 \
    result __wrap_##name(__VA_ARGS__)

WRAPPED(void *, mmap, void *at, size_t bytes, int access, int flags, int file,
        off_t offset);
WRAPPED(int, munmap, void *at, size_t bytes);
WRAPPED(int, mprotect, void *at, size_t bytes, int access);
WRAPPED(int, madvise, void *at, size_t bytes, int advice);
WRAPPED(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes,
        void *(*body)(void *), void *argument);
WRAPPED(int, nanosleep, const struct timespec *time, struct timespec *left);
WRAPPED(int, open, const char *path, int flags, ...);
WRAPPED(long, sysconf, int name);
WRAPPED(void *, malloc, size_t bytes);
WRAPPED(void *, calloc, size_t n, size_t bytes);
WRAPPED(void *, realloc, void *memory, size_t bytes);
WRAPPED(void, qsort, void *items, size_t n, size_t bytes,
        int (*compare)(const void *, const void *));

#define READ(word)     __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define WRITE(word, n) __atomic_store_n(&(word), n, __ATOMIC_RELAXED)
#define ADD(word, n)   __atomic_add_fetch(&(word), n, __ATOMIC_RELAXED)

static int n_made[N_CALLS], first_refused[N_CALLS];
static bool are_later_refused, was_refused;
static size_t most_bytes = SIZE_MAX;
static int64_t bytes_mapped;

const char *call_name(call_kind kind)
{
    static const char *const names[] = {
#define X(function) #function,
        FAILING_CALLS(X)
#undef X
    };

    return names[kind];
}

void calls_allow(void)
{
    for (int i = 0; i < N_CALLS; i++) {
        WRITE(n_made[i], 0);
        WRITE(first_refused[i], 0);
    }
    WRITE(was_refused, false);
    WRITE(most_bytes, SIZE_MAX);
}

void calls_refuse(call_kind kind, int n, bool and_later)
{
    calls_allow();
    WRITE(are_later_refused, and_later);
    WRITE(first_refused[kind], n);
}

int calls_made(call_kind kind)
{
    return READ(n_made[kind]);
}

bool calls_were_refused(void)
{
    return READ(was_refused);
}

void calls_limit_addresses(size_t bytes)
{
    WRITE(most_bytes, bytes);
}

int64_t calls_bytes_mapped(void)
{
    return READ(bytes_mapped);
}

static bool is_refused(call_kind kind)
{
    const int n = ADD(n_made[kind], 1), first = READ(first_refused[kind]);
    const bool is = first && (READ(are_later_refused) ? n >= first : n == first);

    if (is)
        WRITE(was_refused, true);
    return is;
}

static int64_t whole_pages(size_t bytes)
{
    const size_t page = (size_t)__real_sysconf(_SC_PAGESIZE);

    return (int64_t)((bytes + page - 1) & ~(page - 1));
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    void *memory;

    if (is_refused(CALL_mmap) || bytes > READ(most_bytes)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    memory = __real_mmap(at, bytes, access, flags, file, offset);
    if (memory != MAP_FAILED)
        ADD(bytes_mapped, whole_pages(bytes));
    return memory;
}

int __wrap_munmap(void *at, size_t bytes)
{
    int error;

    if (is_refused(CALL_munmap)) {
        errno = ENOMEM;
        return -1;
    }
    error = __real_munmap(at, bytes);
    if (!error)
        ADD(bytes_mapped, -whole_pages(bytes));
    return error;
}

int __wrap_mprotect(void *at, size_t bytes, int access)
{
    if (is_refused(CALL_mprotect)) {
        errno = ENOMEM;
        return -1;
    }
    return __real_mprotect(at, bytes, access);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (is_refused(CALL_madvise)) {
        errno = EINVAL;
        return -1;
    }
    return __real_madvise(at, bytes, advice);
}

/* --- heaps ------------------------------------------------------------------------ */

static int n_under_lock;

int calls_under_lock(void)
{
    return READ(n_under_lock);
}

static void note_heap(void)
{
    if (READ(ptac_cpu_pool()->lock.word))
        ADD(n_under_lock, 1);
}

void *__wrap_malloc(size_t bytes)
{
    note_heap();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    note_heap();
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    note_heap();
    return __real_realloc(memory, bytes);
}

void __wrap_qsort(void *items, size_t n, size_t bytes,
                  int (*compare)(const void *, const void *))
{
    note_heap();
    __real_qsort(items, n, bytes, compare);
}

/* --- threads that sleep ----------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_clock_stopped, is_asleep, may_go_on;
static int n_threads;

typedef struct body {
    void *(*run)(void *);
    void *argument;
} body;

static void *run(void *argument)
{
    const body b = *(body *)argument;
    void *result;

    free(argument);
    result = b.run(b.argument);
    pthread_mutex_lock(&mutex);
    n_threads--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run_it)(void *), void *argument)
{
    body *b;
    int error;

    if (!attributes) /* a test's own, not the engine's */
        return __real_pthread_create(thread, attributes, run_it, argument);
    note_heap(); /* for its stack */
    if (is_refused(CALL_pthread_create) || !(b = malloc(sizeof *b)))
        return EAGAIN;
    *b = (body){run_it, argument};
    pthread_mutex_lock(&mutex);
    error = __real_pthread_create(thread, attributes, run, b);
    n_threads += !error;
    pthread_mutex_unlock(&mutex);
    if (error)
        free(b);
    return error;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    pthread_mutex_lock(&mutex);
    if (!is_clock_stopped) {
        pthread_mutex_unlock(&mutex);
        return __real_nanosleep(time, left);
    }
    is_asleep = true;
    pthread_cond_broadcast(&changed);
    while (!may_go_on)
        pthread_cond_wait(&changed, &mutex);
    is_asleep = may_go_on = false;
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* In a child: nobody waits any more, whatever the copy says. */
static void forget_threads(void)
{
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&changed, NULL);
    n_threads = 0;
    is_asleep = may_go_on = false;
}

void calls_stop_clock(void)
{
    static bool is_watching;

    if (!is_watching)
        pthread_atfork(NULL, NULL, forget_threads);
    is_watching = is_clock_stopped = true;
}

bool calls_tick(void)
{
    bool goes_on;

    pthread_mutex_lock(&mutex);
    while (!is_asleep && n_threads)
        pthread_cond_wait(&changed, &mutex);
    may_go_on = is_asleep;
    pthread_cond_broadcast(&changed);
    while (n_threads && (may_go_on || !is_asleep))
        pthread_cond_wait(&changed, &mutex);
    goes_on = n_threads > 0;
    pthread_mutex_unlock(&mutex);
    return goes_on;
}

int calls_n_threads(void)
{
    int n;

    pthread_mutex_lock(&mutex);
    n = n_threads;
    pthread_mutex_unlock(&mutex);
    return n;
}

/* --- files and figures --------------------------------------------------------- */

static const char *folder;
static size_t physical;

void calls_pretend_files(const char *pretended)
{
    folder = pretended;
}

void calls_pretend_memory(size_t bytes)
{
    physical = bytes;
}

int __wrap_open(const char *path, int flags, ...)
{
    char below[4096];

    if (!folder || *path != '/')
        return __real_open(path, flags);
    snprintf(below, sizeof below, "%s%s", folder, path);
    return __real_open(below, flags);
}

long __wrap_sysconf(int name)
{
    if (name == _SC_PHYS_PAGES && physical)
        return (long)(physical / (size_t)__real_sysconf(_SC_PAGESIZE));
    return __real_sysconf(name);
}
