/*
 * philox.h - Philox4x32-10 as CUDA's curand and torch use it, in C and in kernels.
 *
 * Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
 * A counter of four words and a key of two give four random words. curand_init(seed,
 * thread, offset) has the seed as key, the thread in the counter's upper words and, for
 * offsets that are multiples of four, a fourth of the offset in its lower ones; each
 * curand4() adds one to those.
 */
#ifndef PTAC_OPS_RANDOM_PHILOX_H
#define PTAC_OPS_RANDOM_PHILOX_H

#ifndef PTAC_DEVICE
#define PTAC_DEVICE static inline
#endif

typedef struct ptac_random4 {
    unsigned int at[4];
} ptac_random4;

PTAC_DEVICE ptac_random4 ptac_philox(ptac_random4 counter, unsigned int key0,
                                     unsigned int key1)
{
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = 0xd2511f53ull * counter.at[0];
        const unsigned long long b = 0xcd9e8d57ull * counter.at[2];
        const ptac_random4 next = {{
            (unsigned int)(b >> 32) ^ counter.at[1] ^ key0,
            (unsigned int)b,
            (unsigned int)(a >> 32) ^ counter.at[3] ^ key1,
            (unsigned int)a,
        }};

        counter = next;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return counter;
}

/* What a thread's curand4() gives, called for the time `call` since curand_init(). */
PTAC_DEVICE ptac_random4 ptac_curand4(unsigned long long seed,
                                      unsigned long long offset,
                                      unsigned long long thread,
                                      unsigned long long call)
{
    const unsigned long long count = offset / 4 + call;
    const ptac_random4 counter = {{
        (unsigned int)count,
        (unsigned int)(count >> 32),
        (unsigned int)thread,
        (unsigned int)(thread >> 32),
    }};

    return ptac_philox(counter, (unsigned int)seed, (unsigned int)(seed >> 32));
}

/* curand_uniform() of a random word: in (0, 1]. The product is exact. */
PTAC_DEVICE float ptac_curand_uniform(unsigned int word)
{
    return (float)word * 0x1p-32f + 0x1p-33f;
}

#endif
