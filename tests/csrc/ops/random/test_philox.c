/*
 * test_philox.c - Philox4x32-10 against the known answers of its authors, and the grid
 * that torch takes for dropout.
 */
#include "ops/random/dropout.h"
#include "ops/random/philox.h"
#include "unit.h"

#include <math.h>
#include <string.h>

/* From Random123's kat_vectors, the lines "philox4x32 10". */
static const struct {
    ptac_random4 counter;
    unsigned int key[2];
    ptac_random4 answer;
} known[] = {
    {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     {0xffffffff, 0xffffffff},
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     {0xa4093822, 0x299f31d0},
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

UNIT(philox_gives_the_known_answers)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const ptac_random4 got =
            ptac_philox(known[i].counter, known[i].key[0], known[i].key[1]);

        EXPECT(memcmp(&got, &known[i].answer, sizeof got) == 0);
    }
}

/* torch.manual_seed(0); torch.rand(8, device="cuda"): one thread an element. */
UNIT(threads_draw_what_torch_prints)
{
    static const double printed[] = {0.3990, 0.5167, 0.0249, 0.9401,
                                     0.9459, 0.7967, 0.4150, 0.8203};

    for (unsigned int thread = 0; thread < 8; thread++) {
        const ptac_random4 words = ptac_curand4(0, 0, thread, 0);

        EXPECT(fabs(ptac_curand_uniform(words.at[0]) - printed[thread]) < 0.5e-4);
    }
}

UNIT(counters_carry_as_curand_has_them)
{
    const ptac_random4 counter = {{2, 1, 7, 3}};
    const ptac_random4 expected = ptac_philox(counter, 5, 9);
    const ptac_random4 got =
        ptac_curand4((9ull << 32) + 5, ((1ull << 32) - 1) * 4, (3ull << 32) + 7, 3);

    EXPECT(memcmp(&got, &expected, sizeof got) == 0);
}

UNIT(uniform_numbers_are_above_0_and_reach_1)
{
    EXPECT(ptac_curand_uniform(0) == 0x1p-33f);
    EXPECT(ptac_curand_uniform(0x80000000) == 0.5f + 0x1p-33f);
    EXPECT(ptac_curand_uniform(0xffffffff) == 1.0f);
}

static int vector_of(uintptr_t address, int64_t n, int element_bytes)
{
    const ptac_view x = {.data = (void *)address, .n_elements = n};

    return ptac_dropout_vector(&x, element_bytes);
}

UNIT(vectors_are_torchs)
{
    EXPECT(vector_of(512, 64, 4) == 4);
    EXPECT(vector_of(512, 64, 2) == 8);
    EXPECT(vector_of(512, 68, 2) == 4);
    EXPECT(vector_of(512, 66, 2) == 2);
    EXPECT(vector_of(512, 65, 2) == 1);
    EXPECT(vector_of(520, 64, 4) == 2);
    EXPECT(vector_of(520, 64, 2) == 4);
    EXPECT(vector_of(514, 64, 2) == 1);
}

UNIT(the_offset_moves_as_torchs)
{
    const ptac_dropout h100 = {.n_processors = 132, .n_threads = 2048};
    const int64_t most = 132 * 8;

    EXPECT(ptac_dropout_blocks(&h100, 1) == 1);
    EXPECT(ptac_dropout_blocks(&h100, 256 * 5 + 1) == 6);
    EXPECT(ptac_dropout_blocks(&h100, INT64_C(1) << 40) == most);
    EXPECT(ptac_dropout_increment(&h100, 1) == 4);
    EXPECT(ptac_dropout_increment(&h100, most * 1024) == 4);
    EXPECT(ptac_dropout_increment(&h100, most * 1024 + 1) == 8);
}
