/*
 * test_descent.c - sums of gradient times direction, against a loop that knows neither
 * vectors nor blocks.
 *
 * Each row that this CPU has, both dtypes, arrays that end at a page nobody may touch.
 */
#include "arena.h"
#include "core/cpu.h"
#include "ops/learning_rate/descent.h"
#include "threads.h"
#include "unit.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK = 16384, /* a block in descent.c; lengths around it are tried */
    MOST_ITEMS = 4,
    PARTIAL = 3 * MOST_ITEMS, /* its slot, behind those of the arrays */
    N_ARRAYS = 3,
    ODD = 37, /* elements: vectors of all widths, and a rest */
};

/* Items in the arena: array k of item i in slot 3 i + k. */
typedef struct sum {
    ptac_descent items[MOST_ITEMS];
    int n_items;
} sum;

typedef struct expected {
    long double value, allowed;
} expected;

static const void **array_of(ptac_descent *d, int k)
{
    return k == 0 ? &d->grad : k == 1 ? &d->average : &d->square;
}

static ptac_dtype dtype_of(const ptac_descent *d)
{
    return d->is_double ? PTAC_F64 : PTAC_F32;
}

/* Far from where squares leave the range of float; a twentieth are zeros. */
static void fill(rng *r, ptac_dtype dtype, void *memory, int64_t n, bool is_square)
{
    for (int64_t i = 0; i < n; i++) {
        const double sign = is_square || rng_chance(r, 50) ? 1 : -1;
        const double size = 1 + 0x1p-20 * (double)rng_below(r, 1 << 20);
        const double value = ldexp(sign * size, (int)rng_between(r, -12, 11));

        set_real(dtype, memory, i, rng_chance(r, 5) ? 0 : value);
    }
}

static void add_array(rng *r, sum *s, int item, int k, bool is_there)
{
    ptac_descent *d = &s->items[item];
    const size_t size = dtype_bytes(dtype_of(d));
    void *memory;

    if (!is_there)
        return;
    memory = arena_place(r, 3 * item + k, (size_t)d->n * size, size);
    fill(r, dtype_of(d), memory, d->n, k == 2);
    *array_of(d, k) = memory;
}

static void add_item(rng *r, sum *s, const ptac_descent *like, bool has_average,
                     bool has_square)
{
    s->items[s->n_items] = *like;
    add_array(r, s, s->n_items, 0, true);
    add_array(r, s, s->n_items, 1, has_average);
    add_array(r, s, s->n_items, 2, has_square);
    s->n_items++;
}

/* Coefficients as optimizers have them; zero eps is not for gradients of zero. */
static ptac_descent random_item(rng *r)
{
    static const double eps[] = {1e-8, 1e-3, 1};
    const double scales[] = {1, 1, 0x1p-16, 0.37, -3};

    return (ptac_descent){
        .n = RNG_PICK(r, 0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 9),
        .is_double = rng_chance(r, 50),
        .is_scaled = rng_chance(r, 60),
        .scale = scales[rng_below(r, 5)],
        .keep_average = 0.7,
        .add_average = 0.3,
        .keep_square = 0.9,
        .add_square = 0.1,
        .eps = eps[rng_below(r, 3)],
    };
}

/* Of float vectors; everything else is computed in double. */
static bool is_in_float(const ptac_descent *d)
{
    return !d->is_double && d->is_scaled && (ptac_cpu_features() & PTAC_CPU_AVX2);
}

static long double element(const void *array, const ptac_descent *d, int64_t i)
{
    return array ? (long double)real_at(dtype_of(d), array, i) : 0;
}

/*
 * Roundings of a term: the scaled gradient, once or twice, in both factors and in the
 * square; a coefficient and a product in each part of the direction; a sum, a root, a
 * sum and a quotient. They come to less than 13 units of the term, whose direction is
 * taken without cancellation. Sums add a unit of double for each term before.
 */
static expected naive_sum(const sum *s)
{
    expected e = {0, 0};
    long double terms = 0;
    int64_t n = 0;

    for (int item = 0; item < s->n_items; item++) {
        const ptac_descent *d = &s->items[item];
        const long double unit = is_in_float(d) ? 0x1p-24L : 0x1p-53L;

        for (int64_t i = 0; i < d->n; i++) {
            const long double g = element(d->grad, d, i) * d->scale;
            const long double m = element(d->average, d, i) * d->keep_average;
            const long double v = element(d->square, d, i) * d->keep_square;
            const long double root =
                d->is_scaled ? sqrtl(v + g * g * d->add_square) + d->eps : 1;
            const long double size = fabsl(g) * (fabsl(m) + fabsl(g * d->add_average));

            e.value += g * (m + g * d->add_average) / root;
            e.allowed += 13 * unit * size / root;
            terms += size / root;
        }
        n += d->n;
    }
    e.allowed += 0x1p-53L * (long double)n * terms;
    return e;
}

/* The sum, with room for exactly the blocks that were asked for. */
static double sum_in_arena(rng *r, const sum *s)
{
    const int64_t n_blocks = ptac_descent_blocks(s->items, s->n_items);
    double *partial =
        arena_place(r, PARTIAL, (size_t)n_blocks * sizeof(double), sizeof(double));
    double value;

    memset(partial, 0xff, (size_t)n_blocks * sizeof *partial); /* NaN */
    value = ptac_descent_sum(s->items, s->n_items, partial);
    EXPECT(!arena_damage(PARTIAL));
    return value;
}

/* Of all bytes that a sum may read and must leave. */
static uint64_t fingerprint(sum *s)
{
    uint64_t hash = 0;

    for (int i = 0; i < s->n_items; i++) {
        for (int k = 0; k < N_ARRAYS; k++) {
            const unsigned char *bytes = *array_of(&s->items[i], k);
            const size_t size = dtype_bytes(dtype_of(&s->items[i]));

            for (size_t b = 0; bytes && b < (size_t)s->items[i].n * size; b++)
                hash = (hash ^ bytes[b]) * UINT64_C(0x100000001b3);
        }
    }
    return hash;
}

static void compare(rng *r, sum *s)
{
    const uint64_t before = fingerprint(s);
    const expected e = naive_sum(s);

    EXPECT(fabsl(sum_in_arena(r, s) - e.value) <= e.allowed);
    EXPECT(fingerprint(s) == before);
}

/* With each instruction set that decides about sums, as far as this CPU has it. */
static void on_each_row(void (*check)(rng *r), uint64_t seed)
{
    rng r = {seed};

    arena_prepare();
    for (ptac_isa isa = PTAC_ISA_SCALAR; isa <= PTAC_ISA_AVX2; isa++) {
        ptac_cpu_limit(isa);
        if (ptac_cpu_isa() == isa)
            check(&r);
    }
    ptac_cpu_limit(PTAC_ISA_AVX512);
}

static void random_sums(rng *r)
{
    for (int turn = 0; turn < 60; turn++) {
        const int n_items = (int)rng_below(r, MOST_ITEMS + 1);
        sum s = {.n_items = 0};

        for (int i = 0; i < n_items; i++) {
            const ptac_descent like = random_item(r);

            add_item(r, &s, &like, rng_chance(r, 50), rng_chance(r, 50));
        }
        compare(r, &s);
    }
}

UNIT(descents_are_sums_over_all_elements)
{
    on_each_row(random_sums, 3);
}

static void every_length(rng *r)
{
    for (int64_t n = 0; n <= 70; n++) {
        for (int manner = 0; manner < 32; manner++) {
            ptac_descent like = random_item(r);
            sum s = {.n_items = 0};

            like.n = n;
            like.scale = manner & 16 ? 1 : like.scale;
            like.is_double = manner & 1;
            like.is_scaled = manner & 2;
            add_item(r, &s, &like, manner & 4, manner & 8);
            compare(r, &s);
        }
    }
}

UNIT(descents_of_every_length)
{
    on_each_row(every_length, 4);
}

/* Integers, whose squares add up without any rounding: each counts, and counts once. */
static void integers(rng *r, int64_t n, bool is_double)
{
    const ptac_descent like = {
        .n = n, .is_double = is_double, .scale = 1, .add_average = 2};
    sum s = {.n_items = 0};
    int64_t squares = 0;

    for (int i = 0; i < 2; i++) {
        add_item(r, &s, &like, false, false);
        for (int64_t k = 0; k < n; k++) {
            const int64_t number = rng_between(r, -999, 999);

            set_real(dtype_of(&like), (void *)s.items[i].grad, k, (double)number);
            squares += number * number;
        }
    }
    EXPECT(sum_in_arena(r, &s) == 2 * (double)squares);
}

static void squares_of_integers(rng *r)
{
    for (int is_double = 0; is_double < 2; is_double++) {
        for (int64_t n = 0; n <= 70; n++)
            integers(r, n, is_double);
        for (int64_t n = BLOCK - 2; n <= BLOCK + 2; n++)
            integers(r, n, is_double);
        integers(r, 3 * BLOCK - 1, is_double);
    }
}

UNIT(squares_of_integers_are_summed_exactly)
{
    on_each_row(squares_of_integers, 5);
}

UNIT(descents_of_nothing)
{
    const ptac_descent nothing[3] = {{.n = 0}, {.n = 0, .is_double = true}, {.n = 0}};
    const float two = 2;
    const ptac_descent between[3] = {
        {.n = 0}, {.n = 1, .grad = &two, .scale = 1, .add_average = 1}, {.n = 0}};
    double partial = NAN;

    EXPECT(ptac_descent_blocks(NULL, 0) == 0 && ptac_descent_sum(NULL, 0, NULL) == 0);
    EXPECT(ptac_descent_blocks(nothing, 3) == 0);
    EXPECT(ptac_descent_sum(nothing, 3, NULL) == 0);
    EXPECT(ptac_descent_blocks(between, 3) == 1);
    EXPECT(ptac_descent_sum(between, 3, &partial) == 4);
}

UNIT(threads_change_no_bit_of_a_descent)
{
    rng r = {6};

    arena_prepare();
    for (int turn = 0; turn < 40; turn++) {
        sum s = {.n_items = 0};
        double serial, shared;
        int64_t n_shared;

        for (int i = 0; i < MOST_ITEMS; i++) {
            ptac_descent like = random_item(&r);

            if (i == turn % MOST_ITEMS)
                like.n = 5 * BLOCK + rng_below(&r, BLOCK);
            add_item(&r, &s, &like, rng_chance(&r, 50), rng_chance(&r, 50));
        }
        serial = sum_in_arena(&r, &s);
        threads_install((int)rng_between(&r, 1, MAX_THREADS), &r);
        n_shared = threads_n_shared();
        shared = sum_in_arena(&r, &s);
        EXPECT(threads_n_shared() == n_shared + 1);
        threads_install(0, &r);
        EXPECT(memcmp(&serial, &shared, sizeof serial) == 0);
    }
}

/* Wherever it stands: the learning rate is then left as it is. */
static void what_is_not_finite(rng *r)
{
    static const double strange[] = {NAN, INFINITY, -INFINITY};

    for (int i = 0; i < ODD * 3 * 2 * 2 * 2; i++) {
        const int at = i % ODD, kind = i / ODD % 3, k = i / ODD / 3 % 2;
        ptac_descent like = random_item(r);
        sum s = {.n_items = 0};

        like.n = ODD;
        like.is_double = i / ODD / 3 / 2 % 2;
        like.is_scaled = i / ODD / 3 / 2 / 2;
        add_item(r, &s, &like, k == 1 || rng_chance(r, 50), rng_chance(r, 50));
        set_real(dtype_of(&like), (void *)*array_of(&s.items[0], k), at, strange[kind]);
        EXPECT(!isfinite(sum_in_arena(r, &s)));
    }
}

UNIT(no_descent_hides_what_is_not_finite)
{
    on_each_row(what_is_not_finite, 7);
}

/* A second moment without bounds stands for steps of nothing; NaN for no number. */
static void infinite_squares(rng *r)
{
    for (int i = 0; i < ODD * 2; i++) {
        ptac_descent like = random_item(r);
        sum s = {.n_items = 0};
        expected rest;

        like.n = ODD;
        like.is_double = i / ODD;
        like.is_scaled = true;
        add_item(r, &s, &like, true, true);
        set_real(dtype_of(&like), (void *)s.items[0].square, i % ODD, INFINITY);
        rest = naive_sum(&s);
        EXPECT(fabsl(sum_in_arena(r, &s) - rest.value) <= rest.allowed);
        set_real(dtype_of(&like), (void *)s.items[0].square, i % ODD, NAN);
        EXPECT(isnan(sum_in_arena(r, &s)));
    }
}

UNIT(infinite_squares_take_their_terms_away)
{
    on_each_row(infinite_squares, 8);
}
