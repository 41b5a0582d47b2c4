/*
 * generator.h - the engine inside a generator of torch's for the CPU, and its lock.
 *
 * Torch's C ABI knows no generators. Where an at::CPUGeneratorImpl keeps its engine is
 * learnt by comparing private generators' memory with the states that torch tells; and
 * which of its words are the lock, by a thread of torch's that has to wait for it.
 * Until both are known nobody gets an engine, and stock draws all numbers.
 */
#ifndef PTAC_BIND_TORCH_GENERATOR_H
#define PTAC_BIND_TORCH_GENERATOR_H

#include "data/mt19937.h"
#include "ops/random/engine.h"

/*
 * Where n > 1 generators, given by their addresses, keep what their get_state() told.
 * False: not found, or the generators are not of one class.
 */
bool ptac_generator_learn(void *const *generators, const ptac_mt19937 *const *told,
                          int n);

/*
 * The lock of a private generator, for a thread of torch's to run into. Try to take it:
 * false where its words are not those of a free lock. Whether somebody waits for it.
 * Give it back, and say whether it is proved.
 */
bool ptac_generator_try_lock(void *generator);
bool ptac_generator_is_awaited(const void *generator);
void ptac_generator_end_try(void *generator, bool is_proved);

/* Have engines be handed out, since ours drew as torch does, or have them kept. */
void ptac_generator_set_proved(bool is_proved);

/*
 * The engine of a generator, NULL for torch's default one, which no thread can draw
 * from until it is given back. NULL where it is not as we know it.
 */
typedef struct ptac_held_engine {
    void *generator;
    ptac_engine *engine;
} ptac_held_engine;

ptac_held_engine ptac_generator_hold(void *generator);
void ptac_generator_let_go(const ptac_held_engine *held);

/* The same for scopes, also while an exception passes. */
#define PTAC_HELD __attribute__((cleanup(ptac_generator_let_go)))

#endif
