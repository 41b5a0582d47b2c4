/*
 * random.h - numbers that depend on the seed alone, and buffers full of them.
 *
 * splitmix64 (Steele, Lea, Flood 2014): any two states give unrelated sequences, so a
 * case needs no more than a mix of seed, operator and case number.
 */
#ifndef PTAC_TESTS_RANDOM_H
#define PTAC_TESTS_RANDOM_H

#include "core/base.h"

typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);

/* 0 ... n - 1, and lo ... hi. */
int64_t rng_below(rng *r, int64_t n);
int64_t rng_between(rng *r, int64_t lo, int64_t hi);

bool rng_chance(rng *r, int percent);

/* One of the given integers. */
#define RNG_PICK(r, ...)                                                               \
    rng_pick(r, (const int64_t[]){__VA_ARGS__},                                        \
             (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
int64_t rng_pick(rng *r, const int64_t *choices, int n);

/*
 * A length at which vector code goes wrong: 1, tiny, a multiple of a vector's width
 * and its neighbours; at most `most`, which is at least 1.
 */
int64_t rng_length(rng *r, int64_t most);

/*
 * Fill n elements of a floating dtype in one of several manners: smooth, with many
 * ties, with huge and denormal magnitudes, sprinkled with NaN, infinities and zeros of
 * both signs, all bits random.
 */
void fill_reals(rng *r, ptac_dtype dtype, void *memory, int64_t n);

/* Smooth values in (-scale, scale) and nothing special. */
void fill_smooth(rng *r, ptac_dtype dtype, void *memory, int64_t n, double scale);

/* One element as a double and back; the way back rounds to the dtype. */
double real_at(ptac_dtype dtype, const void *memory, int64_t i);
void set_real(ptac_dtype dtype, void *memory, int64_t i, double value);

/* Bytes an element of the dtype takes; 0 for PTAC_OTHER_DTYPE. */
size_t dtype_bytes(ptac_dtype dtype);

#endif
