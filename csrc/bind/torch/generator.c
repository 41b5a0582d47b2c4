/*
 * generator.c - finding and locking the engines of torch's generators.
 *
 * An object of C++ begins with the address of its class's table. An object with
 * another one, as a generator of another device is, is nothing that we know.
 */
#include "bind/torch/generator.h"

#include "bind/abi/torch_abi.h"

#include <malloc.h>
#include <pthread.h>
#include <string.h>

enum {
    LOCK = 16,     /* std::mutex, behind the table's address and the counts */
    CONTENDED = 2, /* glibc's lock word, its first, while somebody waits */
    FIRST_OFFSET = LOCK + sizeof(pthread_mutex_t),
};

static const void *class_table;
static size_t engine_offset;
static bool lock_is_proved, is_proved;

static const void *table_of(const void *generator)
{
    return *(const void *const *)generator;
}

static ptac_engine *engine_of(void *generator)
{
    return (ptac_engine *)((char *)generator + engine_offset);
}

static pthread_mutex_t *lock_of(void *generator)
{
    return (pthread_mutex_t *)((char *)generator + LOCK);
}

static bool is_as_told(const ptac_engine *engine, const ptac_mt19937 *told)
{
    if (engine->seed != told->seed || engine->left != told->left ||
        *(const unsigned char *)&engine->is_seeded != 1 || !told->is_seeded ||
        engine->next != told->next)
        return false;
    for (int i = 0; i < PTAC_ENGINE_WORDS; i++)
        if (engine->words[i] != told->words[i])
            return false;
    return true;
}

static bool are_all_as_told(void *const *generators, const ptac_mt19937 *const *told,
                            int n, size_t offset)
{
    for (int i = 0; i < n; i++)
        if (!is_as_told((const ptac_engine *)((char *)generators[i] + offset), told[i]))
            return false;
    return true;
}

bool ptac_generator_learn(void *const *generators, const ptac_mt19937 *const *told,
                          int n)
{
    size_t found = 0, end = SIZE_MAX;
    int n_found = 0;

    _Static_assert((int)PTAC_MT_WORDS == (int)PTAC_ENGINE_WORDS, "one algorithm");
    if (!T.default_cpu_generator || n < 2)
        return false;
    for (int i = 0; i < n; i++) {
        const size_t bytes = malloc_usable_size(generators[i]);

        if (table_of(generators[i]) != table_of(generators[0]))
            return false;
        if (bytes < end)
            end = bytes;
    }
    for (size_t at = FIRST_OFFSET; at + sizeof(ptac_engine) <= end;
         at += _Alignof(ptac_engine)) {
        if (are_all_as_told(generators, told, n, at)) {
            found = at;
            n_found++;
        }
    }
    if (n_found != 1)
        return false;
    engine_offset = found;
    class_table = table_of(generators[0]);
    return true;
}

static bool is_ours(const void *generator)
{
    return class_table && table_of(generator) == class_table;
}

bool ptac_generator_try_lock(void *generator)
{
    static const pthread_mutex_t unlocked;

    return is_ours(generator) &&
           memcmp(lock_of(generator), &unlocked, sizeof unlocked) == 0 &&
           pthread_mutex_trylock(lock_of(generator)) == 0;
}

bool ptac_generator_is_awaited(const void *generator)
{
    return __atomic_load_n((const int *)((const char *)generator + LOCK),
                           __ATOMIC_RELAXED) == CONTENDED;
}

void ptac_generator_end_try(void *generator, bool is_awaited)
{
    pthread_mutex_unlock(lock_of(generator));
    lock_is_proved = is_awaited;
}

void ptac_generator_set_proved(bool proved)
{
    __atomic_store_n(&is_proved, proved, __ATOMIC_RELEASE);
}

ptac_held_engine ptac_generator_hold(void *generator)
{
    ptac_held_engine held = {NULL, NULL};

    if (!__atomic_load_n(&is_proved, __ATOMIC_ACQUIRE) || !lock_is_proved)
        return held;
    if (!generator)
        generator = *T.default_cpu_generator();
    if (!is_ours(generator))
        return held;
    pthread_mutex_lock(lock_of(generator));
    held = (ptac_held_engine){generator, engine_of(generator)};
    if (ptac_engine_is_sound(held.engine))
        return held;
    ptac_generator_let_go(&held);
    return (ptac_held_engine){NULL, NULL};
}

void ptac_generator_let_go(const ptac_held_engine *held)
{
    if (held->engine)
        pthread_mutex_unlock(lock_of(held->generator));
}
