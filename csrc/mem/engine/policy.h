/*
 * policy.h - which free block a request is cut from: one row a strategy.
 *
 * The engine tells a policy of every free block that could serve a request, and asks it
 * for one. README.md shows how to add a strategy of your own.
 */
#ifndef PTAC_MEM_ENGINE_POLICY_H
#define PTAC_MEM_ENGINE_POLICY_H

#include "mem/engine/block.h"

/*
 * A policy keeps its index in zeroed memory that the arena owns. It may use a listed
 * block's previous, next and requested as it likes, and must not touch anything else of
 * it. No function may allocate, block or fail.
 */
typedef struct ptac_policy {
    const char *name;   /* what the user writes: enable_memory_pool(policy=name) */
    size_t index_bytes; /* at most PTAC_INDEX_BYTES */
    /*
     * Of larger blocks it takes the lowest it looks at. The pool then spares itself a
     * split and a merge more often; leave it out when in doubt.
     */
    bool takes_lowest;
    void (*add)(void *index, ptac_block *block);
    void (*drop)(void *index, ptac_block *block);
    /*
     * A listed block of at least bytes, which stays listed; NULL: grow the arena. May
     * be asked without anything being cut.
     */
    ptac_block *(*find)(void *index, size_t bytes);
} ptac_policy;

enum {
    PTAC_MAX_POLICIES = 16,
    PTAC_INDEX_BYTES = 64 << 10,
};

/* The row of this name, or NULL; the i-th row, or NULL beyond the last. */
const ptac_policy *ptac_policy_find(const char *name);
const ptac_policy *ptac_policy_at(int i);

void ptac_policy_register(const ptac_policy *row);

/* A row of this name with what follows it in ptac_policy. */
#define PTAC_POLICY(strategy, index_size, ...)                                         \
    _Static_assert((index_size) <= PTAC_INDEX_BYTES, "the arena's room for it");       \
    __attribute__((constructor)) static void register_##strategy(void)                 \
    {                                                                                  \
        static const ptac_policy row = {#strategy, index_size, __VA_ARGS__};           \
                                                                                       \
        ptac_policy_register(&row);                                                    \
    }

#endif
