/*
 * heap.c - the wrapped allocation functions.
 */
#include "heap.h"

#include <stddef.h>

/* Names that the linker's --wrap prescribes. */
void *__real_calloc(size_t n, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *memory);

static heap_counts counts;
static __thread int refusing;

#define COUNT(what) __atomic_fetch_add(&counts.what, 1, __ATOMIC_RELAXED)
#define READ(what)  __atomic_load_n(&counts.what, __ATOMIC_RELAXED)

void *__wrap_calloc(size_t n, size_t size)
{
    COUNT(n_callocs);
    return refusing ? NULL : __real_calloc(n, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    COUNT(n_aligned_allocs);
    return refusing ? NULL : __real_aligned_alloc(alignment, size);
}

void __wrap_free(void *memory)
{
    COUNT(n_frees);
    __real_free(memory);
}

heap_counts heap_count(void)
{
    return (heap_counts){READ(n_callocs), READ(n_aligned_allocs), READ(n_frees)};
}

void heap_refuse(int refused)
{
    refusing = refused;
}
