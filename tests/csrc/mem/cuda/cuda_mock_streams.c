/*
 * cuda_mock_streams.c - streams that do later what was queued, and events.
 *
 * A stream is a list of things to do: write a pattern, check one, pass an event, wait
 * for one. Work that was queued runs on after its stream has been destroyed.
 */
#include "cuda_mock.h"
#include "cuda_mock_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_STREAMS = 32,
    MAX_EVENTS = 4096, /* of the driver; as many are the mock's own */
    STRIDE = 4096,     /* a word of each page is written and checked */
};

typedef enum kind {
    WRITE,
    CHECK,
    PASS,
    WAIT,
} kind;

typedef struct todo {
    struct todo *next;
    kind kind;
    uintptr_t at;
    size_t bytes;
    unsigned tag;
    int event;
    long number; /* of the record that is passed or waited for */
} todo;

typedef struct stream {
    todo *first, **end;
    bool is_destroyed, is_captured;
} stream;

typedef struct event {
    bool is_used;
    long recorded, passed; /* numbers of its records */
    int stream;            /* of the last one */
} event;

static stream streams[MAX_STREAMS];
static event events[2 * MAX_EVENTS];
static int n_orders;
static int n_queries;
static bool runs_on_query;

static int index_of(cu_stream s)
{
    return (int)(uintptr_t)s / 16;
}

cu_stream mock_stream(int n)
{
    return (cu_stream)(uintptr_t)(n * 16);
}

bool mock_is_capturing(void)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        if (streams[i].is_captured)
            return true;
    return false;
}

void mock_streams_reset(void)
{
    mock_run_all();
    memset(streams, 0, sizeof streams);
    n_queries = 0;
    runs_on_query = false;
}

int mock_events_left(void)
{
    int n = 0;

    for (int i = 0; i < MAX_EVENTS; i++)
        n += events[i].is_used;
    return n;
}

void mock_stream_destroy(cu_stream s)
{
    streams[index_of(s)].is_destroyed = true;
}

void mock_capture(cu_stream s, bool is_captured)
{
    streams[index_of(s)].is_captured = is_captured;
}

void mock_run_on_query(bool does)
{
    runs_on_query = does;
}

int mock_queries(void)
{
    return n_queries;
}

static void queue(cu_stream s, todo what)
{
    stream *to = &streams[index_of(s)];
    todo *copy = malloc(sizeof *copy);

    if (!copy)
        abort();
    if (!to->end || !to->first)
        to->end = &to->first;
    *copy = what;
    copy->next = NULL;
    *to->end = copy;
    to->end = &copy->next;
}

void mock_write(cu_stream s, const void *at, size_t bytes, unsigned tag)
{
    queue(s, (todo){.kind = WRITE, .at = (uintptr_t)at, .bytes = bytes, .tag = tag});
}

void mock_check(cu_stream s, const void *at, size_t bytes, unsigned tag)
{
    queue(s, (todo){.kind = CHECK, .at = (uintptr_t)at, .bytes = bytes, .tag = tag});
}

void mock_order(cu_stream first, cu_stream then)
{
    const int i = MAX_EVENTS + n_orders++ % MAX_EVENTS;
    const long number = ++events[i].recorded;

    queue(first, (todo){.kind = PASS, .event = i, .number = number});
    queue(then, (todo){.kind = WAIT, .event = i, .number = number});
}

static void touch(const todo *t)
{
    if (!mock_is_usable(t->at, t->bytes)) {
        mock_violate("work on the device touched memory that is not mapped");
        return;
    }
    for (size_t i = 0; i + sizeof(unsigned) <= t->bytes; i += STRIDE) {
        unsigned *word = (unsigned *)(t->at + i);
        const unsigned expected = t->tag ^ (unsigned)i;

        if (t->kind == WRITE) {
            *word = expected;
        } else if (*word != expected) {
            mock_violate("work on the device found what another had written");
            return;
        }
    }
}

/* Does the first thing; false when there is none, or it has to wait. */
static bool step(stream *s)
{
    todo *t = s->first;

    if (!t)
        return false;
    if (t->kind == WAIT && events[t->event].passed < t->number)
        return false;
    if (t->kind == PASS && events[t->event].passed < t->number)
        events[t->event].passed = t->number;
    if (t->kind == WRITE || t->kind == CHECK)
        touch(t);
    s->first = t->next;
    if (!s->first)
        s->end = &s->first;
    free(t);
    return true;
}

void mock_run(cu_stream s, int n)
{
    while (n-- > 0 && step(&streams[index_of(s)]))
        ;
}

void mock_run_all(void)
{
    for (bool is_moving = true; is_moving;) {
        is_moving = false;
        for (int i = 0; i < MAX_STREAMS; i++)
            while (step(&streams[i]))
                is_moving = true;
    }
}

/* --- the driver's functions ----------------------------------------------------- */

static event *event_of(cu_event e, const char *what)
{
    const size_t i = (size_t)(uintptr_t)e;

    if (i == 0 || i >= MAX_EVENTS || !events[i].is_used) {
        mock_violate(what);
        return NULL;
    }
    return &events[i];
}

MOCK_API cu_result cuEventCreate(cu_event *made, unsigned int flags)
{
    size_t i = 1;

    mock_need_context("cuEventCreate without a context");
    if (flags != PTAC_CU_EVENT_DISABLE_TIMING)
        mock_violate("an event that times");
    while (i < MAX_EVENTS && events[i].is_used)
        i++;
    if (i == MAX_EVENTS || mock_fails())
        return PTAC_CU_OUT_OF_MEMORY;
    events[i] = (event){.is_used = true};
    *made = (cu_event)(uintptr_t)i;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuEventDestroy_v2(cu_event e)
{
    event *found = event_of(e, "destroyed an event that is none");

    if (found)
        found->is_used = false;
    return found ? PTAC_CU_OK : MOCK_INVALID_HANDLE;
}

MOCK_API cu_result cuEventRecord(cu_event e, cu_stream s)
{
    event *found = event_of(e, "recorded an event that is none");

    mock_need_context("cuEventRecord without a context");
    if (!found || streams[index_of(s)].is_destroyed)
        return MOCK_INVALID_HANDLE;
    if (mock_is_capturing())
        mock_violate("cuEventRecord during a capture");
    if (mock_fails())
        return MOCK_FAILURE;
    found->stream = index_of(s);
    queue(s, (todo){.kind = PASS,
                    .event = (int)(found - events),
                    .number = ++found->recorded});
    return PTAC_CU_OK;
}

MOCK_API cu_result cuEventQuery(cu_event e)
{
    event *found = event_of(e, "asked an event that is none");

    n_queries++;
    if (mock_is_capturing()) {
        mock_violate("cuEventQuery during a capture");
        return MOCK_CAPTURE_UNSUPPORTED;
    }
    if (!found)
        return MOCK_INVALID_HANDLE;
    if (mock_fails())
        return MOCK_FAILURE;
    if (runs_on_query)
        step(&streams[found->stream]);
    return found->passed == found->recorded ? PTAC_CU_OK : PTAC_CU_NOT_READY;
}

MOCK_API cu_result cuStreamWaitEvent(cu_stream s, cu_event e, unsigned int flags)
{
    event *found = event_of(e, "made a stream wait for an event that is none");

    if (!found || flags || streams[index_of(s)].is_destroyed)
        return MOCK_INVALID_HANDLE;
    if (mock_is_capturing())
        mock_violate("cuStreamWaitEvent during a capture");
    if (mock_fails())
        return MOCK_FAILURE;
    queue(s, (todo){.kind = WAIT,
                    .event = (int)(found - events),
                    .number = found->recorded});
    return PTAC_CU_OK;
}

MOCK_API cu_result cuStreamIsCapturing(cu_stream s, cu_capture_status *status)
{
    if (mock_fails())
        return MOCK_FAILURE;
    *status = streams[index_of(s)].is_captured;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuCtxSynchronize(void)
{
    mock_need_context("cuCtxSynchronize without a context");
    if (mock_is_capturing()) {
        mock_violate("cuCtxSynchronize during a capture");
        return MOCK_CAPTURE_UNSUPPORTED;
    }
    if (mock_fails())
        return MOCK_FAILURE;
    mock_run_all();
    return PTAC_CU_OK;
}
