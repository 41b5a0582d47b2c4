/*
 * cuda_stream_units.c - the contract of the stream pool, rule by rule, on the mock.
 *
 * Work is queued on streams of the mock as torch would queue kernels: first the
 * request, then the work, then the free, while the work itself runs later.
 */
#include "cuda_close.h"
#include "cuda_mock.h"
#include "mem/cuda/stream_pool.h"
#include "unit.h"

#include <string.h>

enum {
    SMALL_CHUNK = MOCK_GRANULARITY * 16, /* 1 MiB, so that a small block fits */
    LARGE_CHUNK = MOCK_GRANULARITY * 64, /* 4 MiB */
    LARGE = 3 << 20,
};

#define MEMORY ((size_t)64 << 20)

static ptac_stream_pool pool;

static void open_pool(size_t memory)
{
    const ptac_stream_pool_options options = {
        .policy = ptac_policy_find("best_fit"),
        .cap = SIZE_MAX,
        .small_chunk = SMALL_CHUNK,
        .large_chunk = LARGE_CHUNK,
        .n_history = 100,
    };

    mock_reset(memory);
    memset(&pool, 0, sizeof pool);
    EXPECT(ptac_cuda_load(NULL) == NULL);
    EXPECT(ptac_stream_pool_open(&pool, 0, &options) == NULL);
}

static void close_pool(void)
{
    EXPECT(cuda_close(&pool));
    EXPECT(mock_leftovers() == 0);
    if (mock_violations())
        unit_fail(__FILE__, __LINE__, mock_violation());
}

static void *take(size_t bytes, int stream)
{
    void *memory = NULL;

    EXPECT(ptac_stream_pool_alloc(&pool, bytes, mock_stream(stream), &memory) ==
           PTAC_ALLOC_DONE);
    EXPECT((uintptr_t)memory % PTAC_CUDA_GRANULE == 0);
    return memory;
}

static void give(void *memory)
{
    EXPECT(ptac_stream_pool_free(&pool, memory));
}

static ptac_mem_stats stats(void)
{
    ptac_mem_stats now;

    ptac_pool_stats(&pool.pool, &now);
    return now;
}

UNIT(nothing_is_asked_for_nothing)
{
    void *memory = &pool;

    open_pool(MEMORY);
    EXPECT(ptac_stream_pool_alloc(&pool, 0, NULL, &memory) == PTAC_ALLOC_DONE);
    EXPECT(memory == NULL);
    give(NULL);
    EXPECT(!ptac_stream_pool_free(&pool, &pool));
    EXPECT(!ptac_stream_pool_record(&pool, &pool, NULL));
    EXPECT(mock_used() == 0);
    close_pool();
}

UNIT(own_stream_reuses_at_once_and_without_the_driver)
{
    open_pool(MEMORY);

    void *first = take(LARGE, 1);

    mock_write(mock_stream(1), first, LARGE, 5);
    give(first);

    const long n = mock_calls();
    void *second = take(LARGE, 1);

    EXPECT(second == first);
    mock_write(mock_stream(1), second, LARGE, 6);
    mock_check(mock_stream(1), second, LARGE, 6);
    give(second);
    EXPECT(mock_calls() == n);
    close_pool();
}

/* A block that another stream still uses must not be had by its own stream. */
static void write_late(bool is_recorded)
{
    void *block = take(LARGE, 1);

    mock_write(mock_stream(2), block, LARGE, 1); /* the other stream's kernel */
    mock_check(mock_stream(2), block, LARGE, 1);
    if (is_recorded)
        EXPECT(ptac_stream_pool_record(&pool, block, mock_stream(2)));
    give(block);

    void *next = take(LARGE, 1);

    EXPECT((next == block) == !is_recorded);
    mock_run(mock_stream(2), 1);
    mock_write(mock_stream(1), next, LARGE, 2);
    mock_check(mock_stream(1), next, LARGE, 2);
    mock_run(mock_stream(1), 9);
    mock_run_all();
    give(next);
}

UNIT(record_stream_keeps_a_block_until_its_uses_end)
{
    open_pool(MEMORY);
    write_late(true);
    EXPECT(mock_violations() == 0);
    EXPECT(stats().active[PTAC_ALL].current == 1); /* pending: freed, not yet free */
    EXPECT(stats().allocation[PTAC_ALL].current == 0);
    give(take(512, 1)); /* any request looks at events */
    EXPECT(stats().active[PTAC_ALL].current == 0);
    close_pool();
}

UNIT(the_mock_sees_what_lacks_record_stream)
{
    open_pool(MEMORY);
    write_late(false);
    EXPECT(mock_violations() > 0);
    mock_reset(MEMORY);
    close_pool();
}

UNIT(another_stream_gets_a_block_only_when_its_work_has_ended)
{
    open_pool(MEMORY);
    give(take(LARGE, 2)); /* a second stream is there: events are recorded */

    void *block = take(LARGE, 1);

    mock_write(mock_stream(1), block, LARGE, 1);
    mock_check(mock_stream(1), block, LARGE, 1);
    give(block);

    void *other = take(LARGE, 3);

    mock_write(mock_stream(3), other, LARGE, 3);
    mock_run(mock_stream(3), 9); /* before stream 1 has done anything */
    mock_run_all();
    EXPECT(mock_violations() == 0);
    give(other);
    EXPECT(stats().stream_steals <= 1); /* stream 2's, which had no work */
    close_pool();
}

/* The device is full: the other stream's block is taken behind a wait. */
UNIT(a_full_device_makes_streams_wait_for_each_other)
{
    open_pool(LARGE_CHUNK);

    for (int i = 0; i < 10; i++) {
        const int stream = 1 + i % 2;
        void *block = take(LARGE, stream);

        mock_write(mock_stream(stream), block, LARGE, (unsigned)i);
        mock_check(mock_stream(stream), block, LARGE, (unsigned)i);
        give(block);
        mock_run(mock_stream(2), 99); /* the second is always ahead, if it may be */
    }
    mock_run_all();
    EXPECT(mock_violations() == 0);
    EXPECT(stats().stream_steals > 0);
    EXPECT(stats().num_sync_all_streams == 0);
    EXPECT(stats().num_ooms == 0);
    close_pool();
}

UNIT(ping_pong_between_streams_stays_flat)
{
    int64_t settled = 0;

    open_pool(MEMORY);
    for (int i = 0; i < 200; i++) {
        const int from = 1 + i % 4, to = 1 + (i + 1) % 4;
        void *block = take(LARGE, from);

        mock_write(mock_stream(from), block, LARGE, (unsigned)i);
        EXPECT(ptac_stream_pool_record(&pool, block, mock_stream(to)));
        mock_run_all();
        mock_check(mock_stream(to), block, LARGE, (unsigned)i);
        give(block);
        if (i == 10)
            settled = stats().reserved_bytes[PTAC_ALL].current;
    }
    mock_run_all();
    EXPECT(settled > 0 && stats().reserved_bytes[PTAC_ALL].peak == settled);
    close_pool();
}

UNIT(streams_that_have_ended_lend_to_all)
{
    open_pool(MEMORY);
    for (int i = 1; i < 32; i++) {
        void *block = take(LARGE, i);

        mock_write(mock_stream(i), block, LARGE, (unsigned)i);
        give(block);
        mock_run_all();
    }
    EXPECT(stats().reserved_bytes[PTAC_ALL].current <= 2 * LARGE_CHUNK);
    EXPECT(stats().stream_steals >= 29);
    close_pool();
}

UNIT(small_and_large_blocks_lie_apart)
{
    open_pool(MEMORY);

    void *small = take(700, 1), *large = take(LARGE, 1);
    const ptac_mem_stats now = stats();

    EXPECT(now.reserved_bytes[PTAC_SMALL].current == SMALL_CHUNK);
    EXPECT(now.reserved_bytes[PTAC_LARGE].current == LARGE_CHUNK);
    EXPECT(now.allocated_bytes[PTAC_SMALL].current == 1024);
    EXPECT(now.requested_bytes[PTAC_SMALL].current == 700);
    EXPECT(now.num_device_alloc == 2);
    give(small);
    give(large);
    EXPECT(ptac_stream_pool_trim(&pool) == SMALL_CHUNK + LARGE_CHUNK);
    EXPECT(stats().num_device_free == 2 && mock_used() == 0);
    close_pool();
}

UNIT(trim_waits_for_work_that_is_queued)
{
    open_pool(MEMORY);

    void *block = take(LARGE, 1);

    mock_write(mock_stream(1), block, LARGE, 4);
    give(block);
    EXPECT(ptac_stream_pool_trim(&pool) == LARGE_CHUNK);
    mock_run_all();
    EXPECT(mock_violations() == 0);
    close_pool();
}

UNIT(what_is_free_goes_back_before_a_request_fails)
{
    void *memory;

    open_pool(4 * LARGE_CHUNK);

    void *first = take(2 * LARGE, 1), *second = take(2 * LARGE, 1);

    mock_write(mock_stream(1), first, 2 * LARGE, 1);
    give(first);
    give(second);
    mock_write(mock_stream(1), first, 2 * LARGE, 1);

    void *whole = take(4 * LARGE_CHUNK, 2); /* all that the device has */

    mock_write(mock_stream(2), whole, 4 * LARGE_CHUNK, 2);
    EXPECT(stats().num_sync_all_streams == 1 && stats().num_alloc_retries == 1);
    EXPECT(ptac_stream_pool_alloc(&pool, LARGE, mock_stream(1), &memory) ==
           PTAC_ALLOC_OUT_OF_MEMORY);
    EXPECT(memory == NULL && stats().num_ooms == 1);

    ptac_event events[100];
    const size_t n = ptac_history_copy(&pool.pool.history, events, 100);

    EXPECT(n > 0 && events[n - 1].kind == PTAC_EVENT_OOM);
    give(whole);
    give(take(LARGE, 1));
    mock_run_all();
    close_pool();
}

UNIT(the_cap_is_kept)
{
    void *memory;

    open_pool(MEMORY);
    ptac_stream_pool_set_cap(&pool, 2 * LARGE_CHUNK);

    void *block = take(LARGE_CHUNK + LARGE, 1);

    EXPECT(ptac_stream_pool_alloc(&pool, LARGE, mock_stream(1), &memory) ==
           PTAC_ALLOC_OUT_OF_MEMORY);
    ptac_stream_pool_set_cap(&pool, SIZE_MAX);
    give(take(LARGE, 1));
    give(block);
    close_pool();
}

UNIT(a_destroyed_stream_loses_nothing)
{
    open_pool(3 * LARGE_CHUNK);

    void *used = take(LARGE, 1), *own = take(LARGE, 2);

    EXPECT(ptac_stream_pool_record(&pool, used, mock_stream(2)));
    mock_write(mock_stream(2), used, LARGE, 7);
    mock_write(mock_stream(2), own, LARGE, 8);
    mock_stream_destroy(mock_stream(2));
    give(used);
    give(own);
    EXPECT(stats().active[PTAC_ALL].current == 1);

    void *next = take(LARGE, 1);

    EXPECT(next != used); /* no event tells when: only a wait for the device does */
    give(next);

    void *all = take(3 * LARGE_CHUNK, 1);

    EXPECT(stats().active[PTAC_ALL].current == 1);
    mock_run_all();
    give(all);
    close_pool();
}

static const uint64_t graph_id[2] = {3, 4};

static void *captured;

static void capture_something(void)
{
    EXPECT(ptac_stream_pool_capture_begin(&pool, graph_id) == NULL);
    mock_capture(mock_stream(1), true);
    captured = take(LARGE, 1);
}

static void end_capture(void)
{
    mock_capture(mock_stream(1), false);
    ptac_stream_pool_capture_end(&pool, graph_id);
}

UNIT(a_capture_asks_nothing_and_gives_nothing_back)
{
    open_pool(4 * LARGE_CHUNK);

    void *before = take(LARGE, 1), *used = take(LARGE, 3);

    EXPECT(ptac_stream_pool_record(&pool, used, mock_stream(2)));
    give(before);
    capture_something();

    const int n = mock_queries();
    void *memory;

    EXPECT(captured != before); /* which the graph would use again at each replay */
    give(used);
    give(take(LARGE, 2));
    EXPECT(ptac_stream_pool_trim(&pool) == 0);
    EXPECT(ptac_stream_pool_alloc(&pool, MEMORY, mock_stream(1), &memory) ==
           PTAC_ALLOC_OUT_OF_MEMORY);
    EXPECT(ptac_stream_pool_record(&pool, captured, mock_stream(2)));
    EXPECT(ptac_stream_pool_capture_begin(&pool, graph_id) != NULL);
    EXPECT(mock_queries() == n);
    end_capture();
    EXPECT(mock_violations() == 0);
    give(captured);
    give(take(512, 2)); /* events that were put off are recorded now */
    mock_run_all();
    give(take(512, 2));
    EXPECT(stats().active[PTAC_ALL].current == 0);
    ptac_stream_pool_capture_release(&pool, graph_id);
    close_pool();
}

UNIT(a_graph_keeps_its_addresses_until_it_is_released)
{
    open_pool(2 * LARGE_CHUNK);
    capture_something();

    void *first = captured;

    give(first);

    void *second = take(LARGE, 1);

    EXPECT(second == first); /* in the order of the same stream, as in any lists */
    give(second);
    end_capture();

    void *other = take(LARGE, 1), *memory;

    EXPECT(other != first);
    EXPECT(ptac_stream_pool_alloc(&pool, LARGE, mock_stream(2), &memory) ==
           PTAC_ALLOC_OUT_OF_MEMORY);
    mock_write(mock_stream(1), first, LARGE, 9); /* the graph is replayed */
    mock_run_all();
    mock_write(mock_stream(1), first, LARGE, 9);
    ptac_stream_pool_capture_release(&pool, graph_id);
    memory = take(LARGE, 2); /* waits, since the graph may still be running */
    EXPECT(mock_violations() == 0);
    give(memory);
    give(other);
    close_pool();
}

UNIT(a_shared_graph_pool_is_released_by_its_last_holder)
{
    open_pool(LARGE_CHUNK);
    for (int i = 0; i < 2; i++) {
        capture_something();
        give(captured);
        end_capture();
    }

    void *memory;

    ptac_stream_pool_capture_release(&pool, graph_id);
    EXPECT(ptac_stream_pool_alloc(&pool, LARGE, mock_stream(1), &memory) ==
           PTAC_ALLOC_OUT_OF_MEMORY);
    ptac_stream_pool_capture_release(&pool, graph_id);
    give(take(LARGE, 1));
    close_pool();
}

UNIT(more_streams_than_lists)
{
    open_pool(MEMORY);
    for (int i = 0; i < 3 * PTAC_MAX_STREAMS; i++) {
        const cu_stream stream = (cu_stream)(uintptr_t)(16 * (i % 31) + i / 31);
        void *memory = NULL;

        EXPECT(ptac_stream_pool_alloc(&pool, LARGE, stream, &memory) ==
               PTAC_ALLOC_DONE);
        give(memory);
        mock_run_all();
    }
    EXPECT(pool.n_streams == PTAC_MAX_STREAMS);
    close_pool();
}

static void *inherited;

static bool child_is_harmless(void)
{
    const long n = mock_calls();
    void *memory = &pool;
    bool fine = ptac_stream_pool_free(&pool, inherited);

    fine &= ptac_stream_pool_alloc(&pool, LARGE, NULL, &memory) == PTAC_ALLOC_FORKED;
    fine &= memory == NULL && ptac_stream_pool_trim(&pool) == 0;
    return fine && mock_calls() == n;
}

static bool child_of_fork(void)
{
    pool.is_child = true;
    return child_is_harmless();
}

UNIT(a_forked_child_leaves_the_device_alone)
{
    open_pool(MEMORY);
    inherited = take(LARGE, 1);
    EXPECT(unit_in_child(child_of_fork));
    give(inherited);
    close_pool();
}
