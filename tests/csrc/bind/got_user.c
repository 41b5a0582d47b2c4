/*
 * got_user.c - a library that imports posix_memalign and free, linked in several ways
 * for test_got.c.
 */
#include <stdlib.h>

int user_take(void **memory, size_t bytes);
void user_give(void *memory);

#if defined(WITH_ADDRESSES) /* a word of data for each function as well */
void (*user_table[])(void *) = {free};
int (*user_other_table[])(void **, size_t, size_t) = {posix_memalign};
#endif

int user_take(void **memory, size_t bytes)
{
    return posix_memalign(memory, 64, bytes);
}

void user_give(void *memory)
{
    free(memory);
}
