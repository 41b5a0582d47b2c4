/*
 * cuda_source_units.c - a device's memory chunk by chunk, with every call failing once.
 */
#include "cuda_mock.h"
#include "mem/cuda/source_cuda.h"
#include "unit.h"

#include <signal.h>
#include <string.h>

enum {
    CHUNK = 2 * MOCK_GRANULARITY,
    N_CHUNKS = 16,
};

static ptac_cuda_device device;
static ptac_source_cuda cuda;
static ptac_source *const source = &cuda.source;

static uintptr_t open_source(size_t memory)
{
    mock_reset(memory);
    EXPECT(mock_leftovers() == 0);
    EXPECT(ptac_cuda_load(NULL) == NULL);
    EXPECT(ptac_cuda_device_open(&device, 0) == NULL);
    ptac_source_cuda_init(&cuda, &device, CHUNK);
    return source->reserve(source, N_CHUNKS * CHUNK);
}

static void expect_clean(void)
{
    EXPECT(mock_used() == 0);
    EXPECT(mock_leftovers() == 0);
    if (mock_violations())
        unit_fail(__FILE__, __LINE__, mock_violation());
}

UNIT(source_maps_and_unmaps)
{
    const uintptr_t base = open_source((size_t)N_CHUNKS * CHUNK);
    unsigned char *memory = (unsigned char *)base;

    EXPECT(base % CHUNK == 0);
    EXPECT(source->commit(source, base + CHUNK, 3 * CHUNK));
    EXPECT(mock_used() == 3 * CHUNK);
    memset(memory + CHUNK, 7, 3 * CHUNK);
    EXPECT(source->release(source, base + 2 * CHUNK, CHUNK));
    EXPECT(mock_used() == 2 * CHUNK);
    EXPECT(memory[CHUNK] == 7 && memory[3 * CHUNK] == 7);
    EXPECT(source->commit(source, base + 2 * CHUNK, CHUNK));
    EXPECT(memory[2 * CHUNK] == 0); /* other memory than before */
    EXPECT(source->release(source, base + CHUNK, 3 * CHUNK));
    EXPECT(cuda.source.n_created == 4 && cuda.source.n_released == 4);
    source->unreserve(source, base, N_CHUNKS * CHUNK);
    expect_clean();
}

static uintptr_t touched;

static bool touch(void)
{
    *(volatile unsigned char *)touched = 1;
    return true;
}

UNIT(source_has_no_memory_before_commit_and_after_release)
{
    const uintptr_t base = open_source((size_t)N_CHUNKS * CHUNK);

    touched = base;
    EXPECT(!unit_in_child(touch));
    EXPECT(source->commit(source, base, CHUNK));
    EXPECT(unit_in_child(touch));
    EXPECT(source->release(source, base, CHUNK));
    EXPECT(!unit_in_child(touch));
    source->unreserve(source, base, N_CHUNKS * CHUNK);
    expect_clean();
}

UNIT(source_commits_all_or_nothing)
{
    const uintptr_t base = open_source(5 * CHUNK);

    EXPECT(!source->commit(source, base, 6 * CHUNK));
    EXPECT(cuda.error == PTAC_CU_OUT_OF_MEMORY);
    EXPECT(mock_used() == 0);
    EXPECT(source->commit(source, base, 5 * CHUNK));
    EXPECT(source->release(source, base, 5 * CHUNK));
    source->unreserve(source, base, N_CHUNKS * CHUNK);
    expect_clean();
}

/* Each call of a commit and a release fails once, and all goes on as if it had not. */
UNIT(source_undoes_what_fails)
{
    long n = 0;

    do {
        const uintptr_t base = open_source((size_t)N_CHUNKS * CHUNK);
        unsigned *kept = (unsigned *)base;

        EXPECT(source->commit(source, base, CHUNK));
        *kept = 99;
        mock_fail_at(++n);
        if (!source->commit(source, base + CHUNK, 3 * CHUNK)) {
            EXPECT(mock_used() == CHUNK);
            EXPECT(source->commit(source, base + CHUNK, 3 * CHUNK));
        }
        EXPECT(mock_used() == 4 * CHUNK);
        EXPECT(source->release(source, base + CHUNK, 3 * CHUNK));
        EXPECT(mock_used() <= 2 * CHUNK && *kept == 99);
        /* What was not taken back is there again, and goes at the latest at the end. */
        EXPECT(source->commit(source, base + CHUNK, 3 * CHUNK) ||
               source->commit(source, base + CHUNK, 3 * CHUNK));
        EXPECT(mock_used() == 4 * CHUNK);
        memset((void *)(base + CHUNK), 1, 3 * CHUNK);
        EXPECT(source->release(source, base, 4 * CHUNK));
        source->unreserve(source, base, N_CHUNKS * CHUNK);
        expect_clean();
    } while (mock_has_failed());
    EXPECT(n > 20);
}

/* A commit that fails for lack of memory, and the undoing of it fails as well. */
UNIT(source_undoes_what_fails_twice)
{
    long n = 0;

    do {
        const uintptr_t base = open_source(3 * CHUNK);

        mock_fail_at(++n);
        EXPECT(!source->commit(source, base, 4 * CHUNK));
        EXPECT(source->commit(source, base, 3 * CHUNK) ||
               source->commit(source, base, 3 * CHUNK));
        memset((void *)base, 1, 3 * CHUNK);
        EXPECT(source->release(source, base, 3 * CHUNK));
        source->unreserve(source, base, N_CHUNKS * CHUNK);
        expect_clean();
    } while (mock_has_failed());
    EXPECT(n > 12);
}

/* The mock is as strict as it says; without that the tests above show nothing. */
UNIT(mock_minds_its_rules)
{
    const uintptr_t base = open_source((size_t)N_CHUNKS * CHUNK);
    int n = mock_violations();

    EXPECT(source->commit(source, base, 2 * CHUNK));
    EXPECT(ptac_cuda.memory_unmap(base, 2 * CHUNK) != PTAC_CU_OK); /* two mappings */
    EXPECT(mock_violations() == ++n);
    EXPECT(ptac_cuda.memory_unmap(base, CHUNK / 2) != PTAC_CU_OK);
    EXPECT(mock_violations() == ++n);
    EXPECT(ptac_cuda.memory_map(base, CHUNK, 0, cuda.chunks[0].handle, 0) !=
           PTAC_CU_OK);
    EXPECT(mock_violations() == ++n);
    EXPECT(ptac_cuda.address_free(base, N_CHUNKS * CHUNK) != PTAC_CU_OK);
    EXPECT(mock_violations() == ++n);
    mock_write(mock_stream(1), (void *)(base + 3 * CHUNK), CHUNK, 1);
    mock_run_all();
    EXPECT(mock_violations() == ++n);
    mock_capture(mock_stream(1), true);
    EXPECT(ptac_cuda.event_query(NULL) != PTAC_CU_OK);
    EXPECT(ptac_cuda.memory_unmap(base, CHUNK) == PTAC_CU_OK);
    mock_capture(mock_stream(1), false);
    EXPECT(mock_violations() == n + 3);
    EXPECT(ptac_cuda.memory_release(cuda.chunks[0].handle) == PTAC_CU_OK);
    EXPECT(source->release(source, base + CHUNK, CHUNK));
    source->unreserve(source, base, N_CHUNKS * CHUNK);
    EXPECT(mock_used() == 0);
}
