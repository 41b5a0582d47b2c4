/*
 * test_images.c - batches of images against moving pixels one by one; random numbers
 * against published ones.
 */
#include "arena.h"
#include "data/images.h"
#include "data/mt19937.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEVELS = 256,
    MOST = 24,      /* pixels in a row or column */
    MOST_MOVED = 64 /* the same behind padding */
};

/* An image of one channel, as the reference moves it. */
typedef struct plane {
    int height, width;
    float pixels[MOST_MOVED * MOST_MOVED];
} plane;

static float pixel_at(const plane *p, int y, int x, float fill)
{
    if (y < 0 || x < 0 || y >= p->height || x >= p->width)
        return fill;
    return p->pixels[y * p->width + x];
}

static void window(plane *p, int top, int left, int height, int width, float fill)
{
    static plane made;

    made.height = height;
    made.width = width;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            made.pixels[y * width + x] = pixel_at(p, top + y, left + x, fill);
    *p = made;
}

static void mirror(plane *p, bool is_x)
{
    static plane made;

    made = *p;
    for (int y = 0; y < p->height; y++)
        for (int x = 0; x < p->width; x++)
            made.pixels[y * p->width + x] = pixel_at(p, is_x ? y : p->height - 1 - y,
                                                     is_x ? p->width - 1 - x : x, 0);
    *p = made;
}

/* As torchvision's documentation describes each transform. */
static void move_plane(plane *p, const ptac_move *move, const uint32_t **drawn,
                       float fill)
{
    const int32_t *n = move->numbers;

    switch (move->kind) {
    case PTAC_MOVE_PAD:
        window(p, -n[1], -n[0], p->height + n[1] + n[3], p->width + n[0] + n[2], fill);
        return;
    case PTAC_MOVE_CROP:
        window(p, n[0], n[1], n[2], n[3], fill);
        return;
    case PTAC_MOVE_RANDOM_CROP:
        if (p->height != n[0] || p->width != n[1]) {
            const uint32_t top = *(*drawn)++ % (uint32_t)(p->height - n[0] + 1);
            const uint32_t left = *(*drawn)++ % (uint32_t)(p->width - n[1] + 1);

            window(p, (int)top, (int)left, n[0], n[1], fill);
        }
        return;
    default:
        if ((double)(*(*drawn)++ % (1u << 24)) / (1u << 24) < (double)move->probability)
            mirror(p, move->kind == PTAC_MOVE_FLIP_X);
    }
}

/* Moves that can be made, in an order in which they can. */
static int random_moves(rng *r, ptac_move *moves, int height, int width)
{
    const int n = (int)rng_below(r, 6);
    bool is_cut = false;

    for (int i = 0; i < n; i++) {
        ptac_move *move = &moves[i];
        const int kind = (int)rng_below(r, PTAC_N_MOVE_KINDS);

        *move = (ptac_move){.kind = (ptac_move_kind)kind};
        move->probability = (float)RNG_PICK(r, 0, 1, 2, 4) / 4;
        if (kind == PTAC_MOVE_PAD && !is_cut && height + width < MOST_MOVED) {
            for (int k = 0; k < 4; k++)
                move->numbers[k] = (int32_t)rng_below(r, 4);
            height += move->numbers[1] + move->numbers[3];
            width += move->numbers[0] + move->numbers[2];
        } else if (kind == PTAC_MOVE_CROP || kind == PTAC_MOVE_RANDOM_CROP) {
            const bool is_fixed = kind == PTAC_MOVE_CROP;
            const int h = (int)rng_between(r, 1, height);
            const int w = (int)rng_between(r, 1, width);

            move->numbers[is_fixed ? 2 : 0] = h;
            move->numbers[is_fixed ? 3 : 1] = w;
            if (is_fixed) {
                move->numbers[0] = (int32_t)rng_between(r, 0, height - h);
                move->numbers[1] = (int32_t)rng_between(r, 0, width - w);
            }
            height = h;
            width = w;
            is_cut = true;
        } else {
            move->kind = rng_chance(r, 50) ? PTAC_MOVE_FLIP_X : PTAC_MOVE_FLIP_Y;
        }
    }
    return n;
}

static void expect_batch(const ptac_images *images, const int64_t *index, int64_t n,
                         const uint32_t *drawn, int32_t n_draws, const float *out)
{
    static plane p;

    for (int64_t i = 0; i < n; i++) {
        for (int32_t c = 0; c < images->channels; c++) {
            const uint8_t *image =
                (const uint8_t *)images->table.data + index[i] * images->table.stride;
            const uint32_t *mine = drawn + i * n_draws;

            p.height = images->height;
            p.width = images->width;
            for (int k = 0; k < p.height * p.width; k++)
                p.pixels[k] =
                    images->values[c * LEVELS + image[k * images->channels + c]];
            for (int32_t m = 0; m < images->n_moves; m++)
                move_plane(&p, &images->moves[m], &mine, images->fill[c]);
            EXPECT(mine == drawn + (i + 1) * n_draws);
            EXPECT(memcmp(out, p.pixels, (size_t)(p.height * p.width) * sizeof(*out)) ==
                   0);
            out += p.height * p.width;
        }
    }
}

UNIT(images_are_moved_and_looked_up)
{
    static float values[4 * LEVELS], fill[4];
    static uint32_t drawn[8 * 2 * PTAC_MAX_MOVES];
    rng r = {42};

    arena_prepare();
    for (uint64_t trial = 0; trial < unit_amount(400, 10000); trial++) {
        ptac_move moves[PTAC_MAX_MOVES];
        ptac_images images = {.values = values, .fill = fill, .moves = moves};
        const int64_t n_rows = rng_between(&r, 1, 5), n = rng_between(&r, 1, 8);
        int32_t height, width, n_draws;
        int64_t index[8];

        images.height = (int32_t)rng_between(&r, 1, MOST);
        images.width = (int32_t)rng_between(&r, 1, MOST);
        images.channels = (int32_t)rng_between(&r, 1, 4);
        images.n_moves = random_moves(&r, moves, images.height, images.width);

        const int64_t bytes = (int64_t)images.height * images.width * images.channels;
        uint8_t *rows = arena_place(&r, 0, (size_t)(n_rows * bytes), 1);

        for (int64_t i = 0; i < n_rows * bytes; i++)
            rows[i] = (uint8_t)rng_next(&r);
        for (int i = 0; i < 4 * LEVELS; i++)
            values[i] = (float)rng_below(&r, 1000);
        for (int c = 0; c < 4; c++)
            fill[c] = (float)-c - 1;
        for (int64_t i = 0; i < n; i++)
            index[i] = rng_below(&r, n_rows);
        for (size_t i = 0; i < sizeof(drawn) / sizeof(drawn[0]); i++)
            drawn[i] = (uint32_t)rng_next(&r);
        images.table = (ptac_table){(const char *)rows, n_rows, bytes, bytes};
        EXPECT(ptac_images_extent(&images, &height, &width, &n_draws) == PTAC_OK);

        const int64_t n_floats = n * images.channels * height * width;
        float *out =
            arena_place(&r, 1, (size_t)n_floats * sizeof(float), sizeof(float));

        ptac_images_batch(&images, index, n, drawn, out);
        EXPECT(arena_damage(0) == NULL);
        EXPECT(arena_damage(1) == NULL);
        expect_batch(&images, index, n, drawn, n_draws, out);
    }
}

UNIT(moves_that_cannot_be_made_are_refused)
{
    static const ptac_move wrong[] = {
        {PTAC_MOVE_CROP, {0, 0, 9, 4}, 0},
        {PTAC_MOVE_CROP, {5, 0, 4, 4}, 0},
        {PTAC_MOVE_CROP, {-1, 0, 4, 4}, 0},
        {PTAC_MOVE_CROP, {0, 0, 0, 4}, 0},
        {PTAC_MOVE_CROP, {INT32_MAX, 0, INT32_MAX, 4}, 0},
        {PTAC_MOVE_RANDOM_CROP, {9, 4, 0, 0}, 0},
        {PTAC_MOVE_RANDOM_CROP, {4, INT32_MIN, 0, 0}, 0},
        {PTAC_MOVE_PAD, {-1, 0, 0, 0}, 0},
        {PTAC_MOVE_PAD, {INT32_MAX, 0, INT32_MAX, 0}, 0},
        {PTAC_MOVE_PAD, {PTAC_MAX_IMAGE_EXTENT, 0, 0, 0}, 0},
        {PTAC_N_MOVE_KINDS, {0}, 0},
    };
    const ptac_move cut_and_padded[] = {{PTAC_MOVE_CROP, {0, 0, 4, 4}, 0},
                                        {PTAC_MOVE_PAD, {1, 1, 1, 1}, 0}};
    ptac_images images = {.height = 8, .width = 8, .channels = 1, .n_moves = 1};
    int32_t height, width, n_draws;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        images.moves = &wrong[i];
        EXPECT(ptac_images_extent(&images, &height, &width, &n_draws) ==
               PTAC_UNSUPPORTED);
    }
    images.moves = cut_and_padded;
    images.n_moves = 2;
    EXPECT(ptac_images_extent(&images, &height, &width, &n_draws) == PTAC_UNSUPPORTED);
    images.n_moves = PTAC_MAX_MOVES + 1;
    EXPECT(ptac_images_extent(&images, &height, &width, &n_draws) == PTAC_UNSUPPORTED);
}

/* The state that torch.manual_seed(seed) leaves, which is that of the paper. */
static ptac_mt19937 seeded(uint32_t seed)
{
    ptac_mt19937 state = {.seed = seed, .left = 1, .is_seeded = 1};

    state.words[0] = seed;
    for (uint32_t i = 1; i < PTAC_MT_WORDS; i++) {
        const uint32_t before = (uint32_t)state.words[i - 1];

        state.words[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    return state;
}

UNIT(the_ten_thousandth_number_is_the_one_that_is_published)
{
    static uint32_t drawn[10000];
    ptac_mt19937 state = seeded(5489);

    /* ISO C++, [rand.predef]: mt19937's 10000th consecutive invocation. */
    ptac_mt19937_draw(&state, drawn, 10000);
    EXPECT(drawn[9999] == 4123659995u);
    EXPECT(ptac_mt19937_is_sound(&state));

    ptac_mt19937 again = seeded(5489);

    for (int i = 0; i < 10000; i++) {
        uint32_t one;

        EXPECT(ptac_mt19937_is_sound(&again));
        ptac_mt19937_draw(&again, &one, 1);
        EXPECT(one == drawn[i]);
    }
    EXPECT(memcmp(&again, &state, sizeof(state)) == 0);
}

UNIT(states_that_would_lead_astray_are_not_sound)
{
    ptac_mt19937 state = seeded(1);

    state.left = 0;
    EXPECT(!ptac_mt19937_is_sound(&state));
    state.left = -5;
    EXPECT(!ptac_mt19937_is_sound(&state));
    state.left = PTAC_MT_WORDS + 1;
    EXPECT(!ptac_mt19937_is_sound(&state));
    state.left = 10;
    state.next = 600;
    EXPECT(!ptac_mt19937_is_sound(&state));
    state.left = 1;
    state.next = UINT64_MAX;
    EXPECT(!ptac_mt19937_is_sound(&state));
}
