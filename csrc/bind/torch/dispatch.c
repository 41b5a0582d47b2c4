/*
 * dispatch.c - admission, outcome and shadow checks of calls.
 */
#include "bind/torch/dispatch.h"

#include "bind/torch/rows/bf16.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Blocks of one thread that disable it. Any thread may end a block, also after the
 * thread itself has ended: the last of its holders, blocks and the thread, frees it.
 */
struct ptac_blocks {
    int n_open;
    int n_holders;
};

static __thread ptac_blocks *blocks;
static __thread int muted_depth;
static pthread_key_t thread_end;

static pthread_mutex_t trouble_lock = PTHREAD_MUTEX_INITIALIZER;
static char troubles[PTAC_N_OPS][PTAC_TROUBLE_BYTES];

static void let_go(void *blocks_of_thread)
{
    ptac_blocks *held = blocks_of_thread;

    if (__atomic_sub_fetch(&held->n_holders, 1, __ATOMIC_ACQ_REL) == 0)
        free(held);
}

static void leave_blocks(void *blocks_of_thread)
{
    blocks = NULL;
    let_go(blocks_of_thread);
}

/* A child would wait for ever for a thread that it does not have. */
static void before_fork(void)
{
    pthread_mutex_lock(&trouble_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&trouble_lock);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_key_create(&thread_end, leave_blocks);
    pthread_atfork(before_fork, after_fork, after_fork);
}

static int64_t shadow_every;
static int64_t shadow_seen[PTAC_N_OPS];
static bool failure_injected[PTAC_N_OPS];

static void (*forwarded_told)(void);

bool ptac_is_off(ptac_op op)
{
    void (*told)(void);

    if (__builtin_expect(ptac_chooser_gate(op) != PTAC_OFF, 1))
        return false;
    told = __atomic_load_n(&forwarded_told, __ATOMIC_RELAXED);
    if (told)
        told();
    return true;
}

void ptac_when_forwarded(void (*told)(void))
{
    __atomic_store_n(&forwarded_told, told, __ATOMIC_RELAXED);
}

ptac_blocks *ptac_thread_disable(void)
{
    if (!blocks) {
        blocks = calloc(1, sizeof *blocks);
        if (!blocks)
            return NULL;
        blocks->n_holders = 1;
        pthread_setspecific(thread_end, blocks);
    }
    __atomic_add_fetch(&blocks->n_holders, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&blocks->n_open, 1, __ATOMIC_RELAXED);
    return blocks;
}

void ptac_thread_enable(ptac_blocks *disabled)
{
    __atomic_sub_fetch(&disabled->n_open, 1, __ATOMIC_RELAXED);
    let_go(disabled);
}

void ptac_thread_mute(int by)
{
    muted_depth += by;
}

bool ptac_thread_is_disabled(void)
{
    return muted_depth > 0 ||
           (blocks && __atomic_load_n(&blocks->n_open, __ATOMIC_RELAXED) > 0);
}

/* Why no call of the operator is served now. A switch that is off comes first. */
static ptac_reason shut(ptac_device device, ptac_op op)
{
    const ptac_reason gate = ptac_chooser_gate_on(device, op);

    return gate != PTAC_OFF && ptac_thread_is_disabled() ? PTAC_DISABLED : gate;
}

static int threads_of(const ptac_call *call)
{
    return call->on == PTAC_ON_CPU ? ptac_the_host.n_threads() : 1;
}

const ptac_kernel *ptac_probe(ptac_call *call, ptac_reason *why)
{
    const ptac_kernel *row;

    *why = shut(call->on, call->op);
    if (*why)
        return NULL;
    call->n_threads = threads_of(call);
    row = (call->on == PTAC_ON_CPU ? ptac_select : ptac_select_on_cuda)(call, why);
    if (row && row->in_bf16)
        *why = ptac_bf16_reason();
    return *why ? NULL : row;
}

/* Whether the row of that name takes a call that no switch and no table is against. */
static const ptac_kernel *take(const ptac_call *call, const ptac_kernel *row,
                               ptac_reason *why)
{
    if (!*why && ptac_chooser_is_quarantined(row))
        *why = PTAC_QUARANTINED;
    if (!*why)
        *why = row->accepts(call);
    if (!*why && row->in_bf16)
        *why = ptac_bf16_reason();
    return *why ? NULL : row;
}

const ptac_kernel *ptac_probe_or(ptac_call *call, const char *row_name,
                                 ptac_reason *why)
{
    const ptac_kernel *row = ptac_probe(call, why);

    if (row || (*why != PTAC_NOT_FASTER && *why != PTAC_SHAPE))
        return row;
    row = ptac_registry_find_on(call->on, call->op, row_name);
    if (!row)
        return NULL;
    *why = shut(call->on, call->op);
    return take(call, row, why);
}

void ptac_refuse(ptac_op op, ptac_reason why)
{
    if (ptac_chooser_gate(op) != PTAC_OFF && why != PTAC_OFF && muted_depth == 0)
        ptac_count_forwarded(op, why);
}

const ptac_kernel *ptac_admit(ptac_call *call)
{
    ptac_reason why;
    const ptac_kernel *row = ptac_probe(call, &why);

    if (!row)
        ptac_refuse(call->op, why);
    return row;
}

const ptac_kernel *ptac_admit_row(ptac_call *call, const char *row_name)
{
    const ptac_kernel *row = ptac_registry_find_on(call->on, call->op, row_name);
    ptac_reason why = shut(call->on, call->op);

    call->n_threads = threads_of(call);
    if (!why && !row)
        why = PTAC_GRAD;
    row = take(call, row, &why);
    if (!row)
        ptac_refuse(call->op, why);
    return row;
}

static void report_trouble(const ptac_kernel *row, const char *text)
{
    pthread_mutex_lock(&trouble_lock);
    snprintf(troubles[row->op], sizeof troubles[row->op], "%s: %s", row->name, text);
    pthread_mutex_unlock(&trouble_lock);
    ptac_chooser_quarantine(row);
}

void ptac_trouble(ptac_op op, char text[PTAC_TROUBLE_BYTES])
{
    pthread_mutex_lock(&trouble_lock);
    memcpy(text, troubles[op], PTAC_TROUBLE_BYTES);
    pthread_mutex_unlock(&trouble_lock);
}

void ptac_inject_failure(ptac_op op)
{
    __atomic_store_n(&failure_injected[op], true, __ATOMIC_RELAXED);
}

static ptac_status run_or_fail(const ptac_kernel *row, const ptac_call *call)
{
    bool *injected = &failure_injected[row->op];

    if (__builtin_expect(__atomic_load_n(injected, __ATOMIC_RELAXED), 0) &&
        __atomic_exchange_n(injected, false, __ATOMIC_RELAXED)) {
        ptac_error_set("failure injected by a test");
        return PTAC_FAILED;
    }
    return row->run(call);
}

const ptac_kernel *ptac_last_row(ptac_op op)
{
    return ptac_noted_row(op);
}

void ptac_keep_weights(const ptac_kernel *row, ptac_call *call, ptac_kept *kept)
{
    enum { LINE = 64 };
    const size_t n = row->kept_bytes ? row->kept_bytes(call) : 0;

    kept->data = n ? aligned_alloc(LINE, (n + LINE - 1) / LINE * LINE) : NULL;
    if (kept->data)
        call->kept = kept;
}

bool ptac_run(const ptac_kernel *row, const ptac_call *call)
{
    static const ptac_reason reasons[] = {
        [PTAC_UNSUPPORTED] = PTAC_ARGUMENT, [PTAC_UNSUITED] = PTAC_VALUES,
        [PTAC_NO_MEMORY] = PTAC_MEMORY,     [PTAC_NOT_YET] = PTAC_COMPILING,
        [PTAC_FAILED] = PTAC_TAKE, /* none: it is counted as a failure */
    };
    ptac_status status;

    ptac_note_row(row->op, row);
    status = run_or_fail(row, call);
    if (status == PTAC_OK) {
        ptac_count_accelerated(row->op);
        if (row->in_bf16)
            ptac_bf16_count();
    } else if (reasons[status]) {
        ptac_count_forwarded(row->op, reasons[status]);
    } else {
        ptac_count_failed(row->op);
        report_trouble(row, ptac_error_get());
    }
    return status == PTAC_OK;
}

void ptac_shadow_every(int64_t every)
{
    __atomic_store_n(&shadow_every, every < UINT32_MAX ? every : UINT32_MAX,
                     __ATOMIC_RELAXED);
}

bool ptac_shadow_is_on(void)
{
    return __atomic_load_n(&shadow_every, __ATOMIC_RELAXED) != 0;
}

bool ptac_shadow_due(ptac_op op)
{
    const int64_t every = __atomic_load_n(&shadow_every, __ATOMIC_RELAXED);

    if (__builtin_expect(every == 0, 1))
        return false;

    /*
     * The multiples of the golden ratio lie evenly between whole numbers, whichever
     * period of calls, such as a model's layers, one looks at.
     */
    const uint32_t golden = 2654435769u;
    const uint32_t n =
        (uint32_t)__atomic_fetch_add(&shadow_seen[op], 1, __ATOMIC_RELAXED);

    return (uint64_t)(uint32_t)(n * golden) * (uint64_t)every >> 32 == 0;
}

/* IEEE 754's binary16. */
static double half(uint16_t bits)
{
    const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double magnitude =
        exponent ? ldexp(fraction | 0x400, exponent - 25) : ldexp(fraction, -24);

    if (exponent == 0x1f)
        magnitude = fraction ? NAN : INFINITY;
    return bits >> 15 ? -magnitude : magnitude;
}

static double element(const ptac_view *view, int64_t i)
{
    uint32_t bits;
    float value;

    switch (view->dtype) {
    case PTAC_F16:
        return half(((const uint16_t *)view->data)[i]);
    case PTAC_F32:
        return ((const float *)view->data)[i];
    case PTAC_F64:
        return ((const double *)view->data)[i];
    case PTAC_BF16:
        bits = (uint32_t)((const uint16_t *)view->data)[i] << 16;
        memcpy(&value, &bits, sizeof value);
        return value;
    default:
        return (double)((const int64_t *)view->data)[i];
    }
}

static double unit_roundoff(ptac_dtype dtype)
{
    static const double of_dtype[PTAC_N_DTYPES] = {
        [PTAC_F32] = 0x1p-24, [PTAC_BF16] = 0x1p-9, [PTAC_F64] = 0x1p-53,
        [PTAC_I64] = 0x1p-24, [PTAC_F16] = 0x1p-11,
    };

    return of_dtype[dtype];
}

/*
 * Without a float64 result at hand the contract is checked from below: two results
 * that each lie within m times stock's error of the truth differ by little more than
 * that error, which for sums of n terms is of the order of sqrt(n) roundings. 4096
 * roundings of the largest magnitude pass what rounding can do and stop wrong numbers.
 * Where operands are rounded to bfloat16, once each, 32 of those roundings do.
 */
static double tolerance(const ptac_view *stock, const ptac_kernel *row)
{
    double largest = 0;

    if (row->level == PTAC_EXACT)
        return 0;
    for (int64_t i = 0; i < stock->n_elements; i++) {
        const double magnitude = fabs(element(stock, i));

        if (isfinite(magnitude) && magnitude > largest)
            largest = magnitude;
    }
    return row->in_bf16 ? 32 * unit_roundoff(PTAC_BF16) * largest
                        : 4096 * unit_roundoff(stock->dtype) * largest;
}

static bool outputs_agree(const ptac_view *ours, const ptac_view *stock,
                          const ptac_kernel *row)
{
    const double allowed = tolerance(stock, row);

    if (ours->dtype != stock->dtype || ours->n_elements != stock->n_elements)
        return false;
    for (int64_t i = 0; i < stock->n_elements; i++) {
        const double a = element(ours, i), b = element(stock, i);

        if (a != b && !(fabs(a - b) <= allowed) && !(isnan(a) && isnan(b)))
            return false;
    }
    return true;
}

bool ptac_shadow_agrees(const ptac_kernel *row, const ptac_view *ours,
                        const ptac_view *stock, int n_outputs, int64_t t_ours_ns,
                        int64_t t_stock_ns)
{
    for (int i = 0; i < n_outputs; i++) {
        if (!outputs_agree(&ours[i], &stock[i], row)) {
            report_trouble(row,
                           "a shadow check found numbers that stock does not give");
            return false;
        }
    }
    if (t_ours_ns > 0 && t_stock_ns > 0)
        ptac_count_saved(row->op, t_stock_ns - t_ours_ns);
    return true;
}
