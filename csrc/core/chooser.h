/*
 * chooser.h - which row serves a call, decided by tables and never by a clock.
 *
 * Calibration leaves, for each operator, shape kind and dtype, points (threads, work)
 * with the row that was measured fastest there, or none where stock was. A call takes
 * the point with the largest calibrated thread count and then the largest work that
 * do not exceed its own.
 *
 * Work alone does not tell how fast a product is: 196 rows times a weight of 2048 x 512
 * lose where 512 x 512 x 512 gain. Points of products have three sizes. A call takes
 * the points that exceed it in none of them; of these, those that no other of them
 * exceeds are its neighbours. Where they have not all the same row, it is one of the
 * two fastest of the largest, if all know that it is faster than stock, or stock.
 * Neighbours with less than an eighth of the largest one's work are too far to say.
 *
 * The caller of ptac_chooser_install() has already left out rows that the numerics
 * level or the CPU forbids, so a lookup is all that is left.
 *
 * Calls on a CUDA device have a table of their own, and without one are served by rows
 * that cannot lose: see chooser_cuda.c.
 */
#ifndef PTAC_CORE_CHOOSER_H
#define PTAC_CORE_CHOOSER_H

#include "core/calibration.h"

/*
 * Take a copy of the points and decide by them from now on; no points send every call
 * to stock. Calls in flight finish with the table they found; the old table is freed by
 * ptac_chooser_collect() once none is in flight. PTAC_FAILED: no memory, the old table
 * stays. One thread at a time may install or collect.
 */
ptac_status ptac_chooser_install(const ptac_point *points, int n_points);
void ptac_chooser_collect(void);

/*
 * The row for this call, or NULL with *why saying what sends it to stock.
 * Thread-safe, does not lock. What the tables say of the call's time is counted with
 * its outcome: see ptac_count_estimate().
 */
const ptac_kernel *ptac_select(const ptac_call *call, ptac_reason *why);

/* False where tables have no such place; else its row, NULL where stock was faster. */
bool ptac_chooser_knows(ptac_op op, const ptac_shape *shape, ptac_dtype dtype,
                        int n_threads, const ptac_kernel **row);

/*
 * Whether this thread's last call with a pinned row is one for which a table could have
 * chosen it: see ptac_kernel.pays.
 */
bool ptac_chooser_pinned_pays(void);

/* Calls with less work are never served: for call paths that can tell it early. */
int64_t ptac_chooser_least_work(ptac_op op);

/*
 * The row for this call on a CUDA device: of those that cannot lose to stock, or that
 * the device's table names, and that are within ptac_chooser_set_level(), the one of
 * the highest rank that accepts it. None where the table has stock faster.
 */
const ptac_kernel *ptac_select_on_cuda(const ptac_call *call, ptac_reason *why);

/*
 * The same as ptac_chooser_install() of calls on CUDA devices, those of which the test
 * says that they have that name; each is asked once, by a call on it. No points: no
 * table.
 */
typedef bool ptac_device_test(int device, const char *name);

ptac_status ptac_chooser_install_on_cuda(const ptac_point *points, int n_points,
                                         const char *device, ptac_device_test *test);

/* What is known of a call on CUDA by measurement. */
typedef enum ptac_measured {
    PTAC_NOT_MEASURED = 0, /* its device has no table, or that has no such place */
    PTAC_MEASURED_FASTER,
    PTAC_MEASURED_SLOWER,
    PTAC_MEASURED_NOW, /* see ptac_chooser_set_measuring() */
} ptac_measured;

/*
 * Also the row that was measured faster, else NULL. What the table says of the call's
 * time is counted with its outcome.
 */
ptac_measured ptac_chooser_measured(const ptac_call *call, const ptac_kernel **row);

/* Have calls on CUDA be served whatever tables and models say: for calibration. */
void ptac_chooser_set_measuring(bool on);

/*
 * How far from stock's bits rows without a table may be, but for quantization's.
 * PTAC_CLOSE at first.
 */
void ptac_chooser_set_level(ptac_level most);

/*
 * An operator's gate: PTAC_TAKE opens it, else why to forward. PTAC_OFF at first. Each
 * device has one; those of all are set at once, or that of one, and the CPU's is asked.
 */
void ptac_chooser_set_gate(ptac_op op, ptac_reason reason);
void ptac_chooser_set_gate_on(ptac_device device, ptac_op op, ptac_reason reason);
ptac_reason ptac_chooser_gate(ptac_op op);
ptac_reason ptac_chooser_gate_on(ptac_device device, ptac_op op);

/*
 * Serve every acceptable call of an operator on the CPU by this row whatever the tables
 * say; NULL takes it back. Returns the row that was pinned before. For tests,
 * calibration and benchmarks.
 */
const ptac_kernel *ptac_chooser_pin(ptac_op op, const ptac_kernel *row);
const ptac_kernel *ptac_chooser_pinned(ptac_op op);

/*
 * Another number whenever the row of a call on the CPU may have become another one: for
 * those who remember rows.
 */
uint64_t ptac_chooser_generation(void);

/* A row that broke is not asked again until ptac_chooser_reset_quarantine(). */
void ptac_chooser_quarantine(const ptac_kernel *row);
bool ptac_chooser_is_quarantined(const ptac_kernel *row);
void ptac_chooser_reset_quarantine(void);

#endif
