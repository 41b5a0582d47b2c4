/*
 * dispatch.h - the way of a call through bind: admit, run, settle, compare.
 *
 * Every bound operator, whether an override of aten or an operator of our own, goes
 * through these steps, so that switching, counting, quarantine and shadow checks mean
 * the same everywhere:
 *
 *     PTAC_IN_FLIGHT;
 *     row = ptac_admit(&call);             NULL: run stock, already counted
 *     ... allocate call.outputs ...
 *     if (ptac_run(row, &call)) ...        false: run stock, already counted
 */
#ifndef PTAC_BIND_TORCH_DISPATCH_H
#define PTAC_BIND_TORCH_DISPATCH_H

#include "bind/torch/bridge.h"

static inline void ptac_leave_flight(const int *unused)
{
    (void)unused;
    ptac_call_leave();
}

/* This scope is a call in flight, also while an exception passes through it. */
#define PTAC_IN_FLIGHT                                                                 \
    __attribute__((cleanup(ptac_leave_flight))) const int in_flight =                  \
        (ptac_call_enter(), 0);                                                        \
    (void)in_flight

/*
 * This operator is switched off: run stock and count nothing. Tells whoever waits for
 * the last calls to pass, see ptac_when_forwarded().
 */
bool ptac_is_off(ptac_op op);

/* Have told called, from any thread, each time that a call finds its operator off. */
void ptac_when_forwarded(void (*told)(void));

/*
 * The row that serves this call where it lies (call->on). Fills in the thread count;
 * counts a refusal.
 */
const ptac_kernel *ptac_admit(ptac_call *call);

/*
 * For a gradient whose forward call has chosen: the row of that name, whatever tables
 * say, unless the operator is shut, has no such row, or the row broke or does not
 * accept. Counts a refusal.
 */
const ptac_kernel *ptac_admit_row(ptac_call *call, const char *row_name);

/*
 * ptac_admit()'s question without counting; *why says what a refusal would be counted
 * as.
 */
const ptac_kernel *ptac_probe(ptac_call *call, ptac_reason *why);

/*
 * The same for who saves the call to torch that stock costs: where tables do not say
 * that a row is faster, the row of that name.
 */
const ptac_kernel *ptac_probe_or(ptac_call *call, const char *row_name,
                                 ptac_reason *why);

/* Count a call that was sent to stock, unless its operator is switched off. */
void ptac_refuse(ptac_op op, ptac_reason why);

/*
 * Memory for what a row makes of weights that stay as they are: the row's calls have
 * it from then on. Without memory, or where the row keeps nothing, calls have none.
 */
void ptac_keep_weights(const ptac_kernel *row, ptac_call *call, ptac_kept *kept);

/* Run the row and count the outcome. A row that breaks is quarantined. */
bool ptac_run(const ptac_kernel *row, const ptac_call *call);

/*
 * This thread's operators go to stock until ptac_thread_enable(), once, is given what
 * ptac_thread_disable() returned, by whichever thread; NULL: no memory. Blocks nest.
 */
typedef struct ptac_blocks ptac_blocks;

ptac_blocks *ptac_thread_disable(void);
void ptac_thread_enable(ptac_blocks *disabled);
bool ptac_thread_is_disabled(void);

/* The same without counting what is refused: stock repeats a call for a comparison. */
void ptac_thread_mute(int by);

static inline void ptac_unmute(const int *by)
{
    ptac_thread_mute(-*by);
}

/* For the rest of this scope, also while an exception passes through it. */
#define PTAC_MUTED                                                                     \
    __attribute__((cleanup(ptac_unmute))) const int muted = (ptac_thread_mute(1), 1);  \
    (void)muted

/*
 * Shadow checks: one accelerated call in every, of each operator, is repeated by stock
 * and compared; 0 switches them off. ptac_shadow_due() counts the call.
 */
void ptac_shadow_every(int64_t every);
bool ptac_shadow_is_on(void);
bool ptac_shadow_due(ptac_op op);

/*
 * Compare our outputs with stock's by the row's level. A row that differs is
 * quarantined with a text for the report and false comes back: hand out stock's.
 * The two times (ns) are counted as saved where both are positive.
 */
bool ptac_shadow_agrees(const ptac_kernel *row, const ptac_view *ours,
                        const ptac_view *stock, int n_outputs, int64_t t_ours_ns,
                        int64_t t_stock_ns);

/* A clock that shadow checks time by. */
int64_t ptac_now_ns(void);

/*
 * Torch's own kernel with the arguments in context; throws torch's errors. The handles
 * in out become the caller's.
 */
typedef void (*ptac_stock_fn)(const void *context, at_tensor *out);

/*
 * ptac_run() of an admitted call with outputs already made, followed, where a shadow
 * check is due, by stock's kernel and a comparison, after which the n_made outputs that
 * stock has too are what has to be handed out. False: run stock, already counted; made
 * is as it was.
 */
bool ptac_run_checked(const ptac_kernel *row, const ptac_call *call, int n_made,
                      at_tensor *made, ptac_stock_fn stock, const void *context);

/* The row that this thread's last ptac_run() of an operator ran, or NULL. */
const ptac_kernel *ptac_last_row(ptac_op op);

/* Tests: the next run of this operator's row breaks before it writes. */
void ptac_inject_failure(ptac_op op);

enum {
    PTAC_TROUBLE_BYTES = 256,
};

/* What last went wrong with this operator's rows, "" when nothing has. */
void ptac_trouble(ptac_op op, char text[PTAC_TROUBLE_BYTES]);

#endif
