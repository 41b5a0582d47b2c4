/*
 * cuda_random_units.c - random programs on four streams, against what must hold.
 *
 * Every block is filled by work on its stream and checked by work before it is freed;
 * some are also read by another stream, with record_stream. The mock runs it all late
 * and in changing order, so that memory handed out too early is found by its contents.
 */
#include "cuda_close.h"
#include "cuda_mock.h"
#include "mem/cuda/stream_pool.h"
#include "random.h"
#include "unit.h"

#include <string.h>

enum {
    N_STREAMS = 4,
    N_BLOCKS = 48,
    N_OPERATIONS = 3000,
    N_FAILING = 100, /* operations of a run in which the n-th call fails */
};

typedef struct held {
    void *memory;
    size_t bytes, rounded;
    int stream;
    unsigned tag;
} held;

static ptac_stream_pool pool;
static held blocks[N_BLOCKS];
static rng random_numbers;
static int64_t n_ooms;
static bool has_failed; /* a call of the driver, on purpose */

static void open_pool(uint64_t seed, size_t memory)
{
    const ptac_stream_pool_options options = {
        .policy = ptac_policy_find(seed % 2 ? "best_fit" : "first_fit"),
        .cap = SIZE_MAX,
        .small_chunk = (size_t)1 << 20,
        .large_chunk = (size_t)4 << 20,
    };

    mock_reset(memory);
    mock_run_on_query(true);
    memset(&pool, 0, sizeof pool);
    memset(blocks, 0, sizeof blocks);
    random_numbers.state = seed;
    n_ooms = 0;
    has_failed = false;
    EXPECT(ptac_cuda_load(NULL) == NULL);
    EXPECT(ptac_stream_pool_open(&pool, 0, &options) == NULL);
}

static size_t some_bytes(void)
{
    return rng_below(&random_numbers, 3) == 0
               ? 1 + (size_t)rng_below(&random_numbers, 1 << 20)
               : (size_t)(1 << 20) + (size_t)rng_below(&random_numbers, 5 << 20);
}

static void take(held *block)
{
    const cu_stream stream =
        mock_stream(block->stream = 1 + (int)rng_below(&random_numbers, N_STREAMS));

    block->bytes = some_bytes();
    if (ptac_stream_pool_alloc(&pool, block->bytes, stream, &block->memory) !=
        PTAC_ALLOC_DONE) {
        n_ooms++;
        EXPECT(block->memory == NULL);
        return;
    }
    block->rounded =
        (block->bytes + PTAC_CUDA_GRANULE - 1) & ~(size_t)(PTAC_CUDA_GRANULE - 1);
    block->tag = (unsigned)rng_next(&random_numbers);
    mock_write(stream, block->memory, block->bytes, block->tag);
}

static void give(held *block)
{
    const int reader = 1 + (int)rng_below(&random_numbers, N_STREAMS);

    mock_check(mock_stream(block->stream), block->memory, block->bytes, block->tag);
    if (reader != block->stream && rng_below(&random_numbers, 3) == 0) {
        EXPECT(ptac_stream_pool_record(&pool, block->memory, mock_stream(reader)));
        mock_order(mock_stream(block->stream), mock_stream(reader));
        mock_check(mock_stream(reader), block->memory, block->bytes, block->tag);
    }
    EXPECT(ptac_stream_pool_free(&pool, block->memory));
    block->memory = NULL;
}

static void step(void)
{
    held *block = &blocks[rng_below(&random_numbers, N_BLOCKS)];

    if (block->memory)
        give(block);
    else
        take(block);
    if (rng_below(&random_numbers, 4) == 0)
        mock_run(mock_stream(1 + (int)rng_below(&random_numbers, N_STREAMS)), 5);
    if (rng_below(&random_numbers, 400) == 0)
        ptac_stream_pool_trim(&pool);
}

/* The statistics are what the blocks add up to. */
static void recount(void)
{
    int64_t n[2] = {0, 0}, bytes[2] = {0, 0}, requested[2] = {0, 0};
    ptac_mem_stats s;

    for (int i = 0; i < N_BLOCKS; i++) {
        const int is_small = blocks[i].bytes <= PTAC_SMALL_BYTES;

        if (!blocks[i].memory)
            continue;
        n[is_small]++;
        bytes[is_small] += (int64_t)blocks[i].rounded;
        requested[is_small] += (int64_t)blocks[i].bytes;
    }
    ptac_pool_stats(&pool.pool, &s);
    EXPECT(s.allocation[PTAC_SMALL].current == n[1]);
    EXPECT(s.allocation[PTAC_LARGE].current == n[0]);
    EXPECT(s.allocated_bytes[PTAC_SMALL].current == bytes[1]);
    EXPECT(s.allocated_bytes[PTAC_LARGE].current == bytes[0]);
    EXPECT(s.requested_bytes[PTAC_ALL].current == requested[0] + requested[1]);
    EXPECT(s.active_bytes[PTAC_ALL].current >= bytes[0] + bytes[1]);
    EXPECT(s.active_bytes[PTAC_ALL].current <= s.reserved_bytes[PTAC_ALL].current);
    EXPECT(s.num_ooms == n_ooms);
    if (!has_failed) {
        EXPECT(s.reserved_bytes[PTAC_ALL].current == (int64_t)mock_used());
        EXPECT(s.reserved_bytes[PTAC_ALL].current ==
               s.reserved_bytes[PTAC_SMALL].current +
                   s.reserved_bytes[PTAC_LARGE].current);
    }
}

static void close_pool(void)
{
    for (int i = 0; i < N_BLOCKS; i++)
        if (blocks[i].memory)
            give(&blocks[i]);
    recount();
    EXPECT(cuda_close(&pool));
    EXPECT(mock_used() == 0);
    EXPECT(mock_leftovers() == 0);
    if (mock_violations())
        unit_fail(__FILE__, __LINE__, mock_violation());
}

UNIT(random_programs_find_their_bytes)
{
    ptac_mem_stats s;

    open_pool(1, (size_t)72 << 20);
    for (int i = 0; i < N_OPERATIONS; i++) {
        step();
        if (i % 50 == 0)
            recount();
    }
    ptac_pool_stats(&pool.pool, &s);
    EXPECT(s.num_ooms > 0 && s.stream_steals > 0 && s.num_alloc_retries > 0);
    EXPECT(s.num_sync_all_streams > 0);
    close_pool();
}

/* The n-th call of the driver fails: nothing is lost, and nothing handed out early. */
UNIT(every_call_of_the_driver_may_fail)
{
    const long between = (long)unit_amount(6, 2); /* the source's own units take all */
    long n = 0;

    do {
        open_pool((uint64_t)(1000 + n % 7), (size_t)48 << 20);
        mock_fail_at(n += between);
        for (int i = 0; i < N_FAILING; i++)
            step();

        has_failed = mock_has_failed();

        mock_fail_at(0);
        close_pool();
        if (!has_failed)
            break;
    } while (n < 400);
    EXPECT(n >= 100);
}
