/*
 * cuda_mock.h - a CUDA driver without a device, for tests: strict, and late.
 *
 * Memory is real (memfd, mapped with MAP_FIXED, so aliasing is real), the driver's
 * rules are enforced, and what streams have queued runs only when the test lets it, or
 * when somebody waits for it. What breaks a rule is counted as a violation.
 */
#ifndef PTAC_TESTS_CUDA_MOCK_H
#define PTAC_TESTS_CUDA_MOCK_H

#include "device/cuda/driver.h"

enum {
    MOCK_GRANULARITY = 64 << 10,
    MOCK_FAILURE =
        999, /* what a call that was told to fail returns; or 2 where it can */
};

#define MOCK_API __attribute__((visibility("default")))

/* All anew: so much memory on the one device. Nothing may be left of before. */
MOCK_API void mock_reset(size_t memory);
/* Handles, mappings, ranges and events that are left, and registered host memory. */
MOCK_API int mock_leftovers(void);
MOCK_API size_t mock_used(void);

/* Rules broken so far, and what was said of the last. */
MOCK_API int mock_violations(void);
MOCK_API const char *mock_violation(void);

/* The n-th call from now on that may fail does, and how many such calls there were. */
MOCK_API void mock_fail_at(long n);
MOCK_API long mock_calls(void);
MOCK_API bool mock_has_failed(void);

/* Streams 1 to 31; NULL is the default stream. */
MOCK_API cu_stream mock_stream(int n);
MOCK_API void mock_stream_destroy(cu_stream stream);
/* Queue a write of a pattern that depends on tag, or a check that it is there. */
MOCK_API void mock_write(cu_stream stream, const void *at, size_t bytes, unsigned tag);
MOCK_API void mock_check(cu_stream stream, const void *at, size_t bytes, unsigned tag);
/* What is queued on one stream from now on comes after what the other has now. */
MOCK_API void mock_order(cu_stream first, cu_stream then);
/* Let the stream do up to n of what it has queued. */
MOCK_API void mock_run(cu_stream stream, int n);
MOCK_API void mock_run_all(void);
/* Whether queries let the stream of the event do one more thing. */
MOCK_API void mock_run_on_query(bool does);
MOCK_API void mock_capture(cu_stream stream, bool is_captured);
MOCK_API int mock_queries(void);

#endif
